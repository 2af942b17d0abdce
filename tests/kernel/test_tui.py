"""`staddle tui` on a real sandbox, by textual's pilot: every pane, and what its keys do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.geometry import Region

from staddle import Network, Policy, Sandbox
from staddle.network.host import gateway_process
from staddle.tui import terminal_pane
from staddle.tui.app import PALETTE, TuiApp
from tests.support.staddle_command import environment
from tests.support.tui_app import Driven, drive
from tests.support.waiting import unique_seconds, until, with_argument
from tests.support.web import serving

# What the UI does is the same for every user; that sandboxes are, other tests see to.
pytestmark = pytest.mark.same_for_everyone


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "a.py").write_text("def f():\n    return 1\n")
    (directory / "gone").write_text("soon\n")
    return directory


def text_of(widget: Any) -> str:
    return str(widget.render())


@pytest.mark.slow
def test_changes_diff_commit_discard_and_undo(work: Path) -> None:
    async def steps(ui: Driven) -> None:
        await ui.prompt()
        await ui.run(
            "sed -i s/1/2/ a.py; rm gone; mkdir d; echo new > d/b; printf '#!/bin/sh' > x; chmod +x x"
        )
        await ui.changed("a.py", "d", "d/b", "gone", "x")
        await ui.until(lambda: "5 changes, 1 needs approval (!): 3 added, 1 m" in ui.screen())
        await ui.until(lambda: "! A x " in ui.screen() and "it is a new executable" in ui.screen())

        await ui.press("f3")  # a diff of the one under the cursor, both ways
        pane = ui.tab.side_pane("changes")
        assert pane is not None
        await ui.until(lambda: ui.app.focused is pane)
        pane.move_cursor_to_line(2)  # type: ignore[attr-defined]
        await ui.press("enter")
        await ui.top("DiffScreen")
        await ui.until(lambda: "+    return 2" in ui.screen() and "-    return 1" in ui.screen())
        await ui.press("v")
        await ui.until(lambda: "    return 1" in ui.screen() and "│     return 2" in ui.screen())
        await ui.press("escape")

        await ui.press("slash", "g", "o", "n", "e", "enter")
        await ui.until(lambda: "D gone" in ui.screen() and "M a.py" not in ui.screen())
        await ui.press("slash", *["backspace"] * 4, "enter")

        await ui.press("f9")  # the new program is held back, and not chosen
        review = await ui.top("ReviewScreen")
        assert "refused: it is a new executable" in ui.screen()
        rows = review.query_one("SelectionList")
        assert sorted(rows.selected) == ["a.py", "d", "d/b", "gone"]
        await ui.until(lambda: "+    return 2" in ui.screen(), "the diff of the first change")
        await ui.press("down", "down")
        await ui.until(lambda: "+new" in ui.screen(), "the diff of d/b")
        await ui.press("c")
        await ui.until(lambda: not (work / "gone").exists())
        await ui.changed("x")
        assert (work / "a.py").read_text() == "def f():\n    return 2\n"
        assert (work / "d" / "b").read_text() == "new\n"
        assert not (work / "x").exists()
        await ui.until(lambda: ("file", "committed /workspace/d/b") in ui.log())
        assert ("sandbox", "committed 4 changes") in ui.log()
        assert ui.log().count(("file", "added /workspace/d/b")) == 1

        await ui.press("f3", "D")  # discarded, and brought back
        await ui.top("ConfirmScreen")
        await ui.press("y")
        await ui.changed()
        await ui.until(lambda: ui.tab.watched.before_discard is not None)
        await ui.press("u")
        await ui.changed("x")

        await ui.press("f9")
        review = await ui.top("ReviewScreen")
        await ui.press("space", "c")
        await ui.until((work / "x").exists)
        assert os.access(work / "x", os.X_OK)
        assert {kind for kind, _ in ui.log()} >= {"file", "sandbox"}

    drive(steps, work)


@pytest.mark.slow
def test_a_protected_name_is_marked_and_f2_returns_to_what_was_used_last(work: Path) -> None:
    async def steps(ui: Driven) -> None:
        await ui.prompt()
        await ui.run("git init -q .; echo x > .git/hooks/pre-commit; echo plain > plain")
        await ui.until(lambda: ui.tab.watched.marks)
        marks = ui.tab.watched.marks
        assert any(path.endswith("/.git/hooks/pre-commit") for path in marks)
        assert "/workspace/plain" not in marks
        await ui.tab.show_pane("changes", ui.app.feed)
        ui.tab.focus_shell(toggle=True)  # before the focus has moved
        assert not ui.tab.is_list
        ui.tab.focus_shell(toggle=True)
        await ui.until(lambda: ui.tab.is_list)
        await ui.press("f3", "f2")
        assert ui.tab.is_list
        await ui.press("f2")
        assert not ui.tab.is_list
        ui.tab.terminal.type(b"exit 3\r")
        await ui.until(lambda: ("sandbox", "the shell has ended with status 3") in ui.log())

    drive(steps, work)


@pytest.mark.slow
def test_a_conflict_is_shown_and_overwritten_only_when_chosen(work: Path) -> None:
    async def steps(ui: Driven) -> None:
        await ui.prompt()
        await ui.run("echo inside > a.py; echo other > b")
        (work / "a.py").write_text("changed on the host, and longer\n")
        await ui.changed("a.py", "b")
        await ui.press("f9")
        review = await ui.top("ReviewScreen")
        assert review.query_one("SelectionList").selected == ["b"]
        assert "conflict:" in ui.screen()
        await ui.press("space", "c")
        await ui.until(lambda: (work / "a.py").read_text() == "inside\n")

    drive(steps, work)


@pytest.mark.slow
def test_snapshots_forks_and_tabs(work: Path) -> None:
    async def steps(ui: Driven) -> None:
        await ui.prompt()
        await ui.run("echo one > n")
        await ui.press("f4", "s")
        await ui.top("SearchScreen")
        await ui.write("first")
        await ui.press("enter")
        await ui.until(lambda: [s.label for s in ui.tab.watched.snapshots] == ["first"])
        await ui.until(lambda: "○ first" in ui.screen() and "1 snapshot" in ui.screen())
        assert "1 snapshots" not in ui.screen()
        assert " by " not in ui.screen()
        await ui.run("echo two > n")
        await ui.press("s")
        await ui.top("SearchScreen")
        await ui.press("enter")
        await ui.until(lambda: len(ui.tab.watched.snapshots) == 2)

        pane: Any = ui.tab.side_pane("snapshots")
        await ui.until(lambda: pane.last_line >= 2)
        pane.move_cursor_to_line(1)
        await ui.press("m")
        await ui.until(lambda: "● first" in ui.screen())
        pane.move_cursor_to_line(2)
        await ui.press("x")
        await ui.top("TextScreen")
        await ui.until(lambda: "/workspace/n: added, with other content" in ui.screen())
        await ui.press("escape")

        pane.move_cursor_to_line(1)
        await ui.press("f")  # a fork of the first one, in a tab of its own
        await ui.until(lambda: len(ui.app.tabs) == 2 and ui.app.current == 1)
        await ui.prompt()
        await ui.run("cat n")
        assert "one" in ui.tab.terminal.screen_text().split()
        assert ui.tab.watched is not ui.app.tabs[0].watched
        assert "1 work │ 2 fork 1 │" in ui.screen()

        await ui.press("f3", "t")  # another shell of the fork
        await ui.until(lambda: len(ui.app.tabs) == 3)
        await ui.prompt()
        assert ui.tab.watched is ui.app.tabs[1].watched
        await ui.press("ctrl+pageup", "ctrl+pageup")
        assert ui.app.current == 0
        await ui.press("ctrl+pageup")
        assert ui.app.current == 2
        await ui.press("f3", "W")
        await ui.until(lambda: len(ui.app.tabs) == 2)
        await ui.press("f3", "W")  # the last one of a sandbox with changes: a question
        await ui.top("ConfirmScreen")
        await ui.press("y")
        await ui.until(lambda: len(ui.app.tabs) == 1)

        await ui.press("f4")
        pane.move_cursor_to_line(1)
        await ui.press("enter")
        await ui.top("ConfirmScreen")
        await ui.press("y")
        await ui.until(lambda: len(ui.app.screen_stack) == 1)
        ui.tab.terminal.type(b"echo typed-meanwhile; cat n\r")
        await ui.until(lambda: "one" in ui.tab.terminal.screen_text().split(), "the next shell to read it")
        assert "typed-meanwhile" in ui.tab.terminal.screen_text().split()
        assert not ui.tab.terminal.is_over

    drive(steps, work)


@pytest.mark.slow
def test_the_timeline_steps_back_and_forth_and_shows_what_a_point_changed(work: Path) -> None:
    async def steps(ui: Driven) -> None:
        def numbers() -> tuple[list[int], list[int]]:
            watched = ui.tab.watched
            return [each.number for each in watched.points], [each.number for each in watched.undone]

        async def line(text: str) -> None:
            await ui.prompt()
            ui.tab.focus_shell()
            await ui.until(lambda: ui.app.focused is ui.tab.terminal)
            ui.tab.terminal.type(text.encode())
            await ui.press("enter")

        await line("sed -i s/1/2/ a.py")  # one point for each line at the prompt
        await ui.until(lambda: numbers()[0] == [0, 1])
        await line("rm gone")
        await ui.until(lambda: numbers()[0] == [0, 1, 2])
        await line("cat a.py; sleep 0.6; echo read")
        await ui.until(lambda: "\nread" in ui.tab.terminal.screen_text())
        assert numbers()[0] == [0, 1, 2], "a line that only reads makes no point"

        await ui.press("f4", "f4")
        pane: Any = ui.tab.side_pane("timeline")
        await ui.until(lambda: ui.app.focused is pane and pane.row_count == 3)
        await ui.until(lambda: "(on a terminal)" in ui.screen())
        pane.move_cursor(row=1)
        await ui.press("enter")
        await ui.top("PointScreen")
        await ui.until(lambda: "+    return 2" in ui.screen() and "gone" not in ui.screen())
        await ui.press("escape")

        await ui.press("u")
        await ui.changed("a.py")
        await ui.until(lambda: numbers() == ([0, 1], [2]), str(numbers()))
        await ui.prompt()
        await ui.run("ls")  # a new shell is there
        await ui.press("r")
        await ui.changed("a.py", "gone")
        await ui.until(lambda: numbers() == ([0, 1, 2], []), str(numbers()))

        await ui.prompt()
        pane.move_cursor(row=2)  # the beginning, and forward again
        await ui.press("g")
        await ui.changed()
        await ui.until(lambda: numbers() == ([0], [1, 2]), str(numbers()))
        await ui.prompt()
        ui.tab.terminal.type(b"sleep 1000\r")  # a program that would be ended: it asks
        await ui.until(ui.tab.has_running)
        pane.move_cursor(row=1)
        await ui.press("g")
        await ui.top("ConfirmScreen")
        await ui.press("y")
        await ui.changed("a.py")
        await ui.until(lambda: numbers() == ([0, 1], [2]), str(numbers()))
        await ui.until(lambda: not ui.tab.has_running())

        await ui.prompt()
        await line("echo new > other")  # drops what was undone
        await ui.until(lambda: numbers() == ([0, 1, 3], []), str(numbers()))
        await ui.press("f2")  # commands of the list have their names
        await ui.until(lambda: ui.tab.is_list)
        await ui.write("touch listed")
        await ui.press("enter")
        await ui.until(lambda: ui.tab.watched.points[-1].command == "touch listed")
        await ui.press("f4")
        await ui.until(lambda: ui.tab.pane == "snapshots")

    drive(steps, work)


def test_without_layers_the_timeline_says_why_it_is_empty(work: Path) -> None:
    def opened(feed: Any, _: bool) -> Sandbox:
        return Sandbox(work, mode="bind", audit=feed.record)

    async def steps(ui: Driven) -> None:
        await ui.prompt()
        await ui.press("f4", "f4")
        await ui.until(lambda: "no history without layers" in ui.screen())
        await ui.press("enter", "g", "u")
        assert len(ui.app.screen_stack) == 1
        assert not any(kind == "error" for kind, _ in ui.log())

    drive(steps, work, open_it=opened)


@pytest.mark.slow
def test_the_list_of_commands_processes_policy_log_help_palette(work: Path) -> None:
    seconds = unique_seconds()

    async def steps(ui: Driven) -> None:
        await ui.prompt()
        await ui.press("f2")
        await ui.until(lambda: ui.tab.is_list)
        ui.tab.commands.run("echo $((6 * 7)); touch made; exit 3")
        await ui.until(lambda: "exit 3" in ui.screen() and "42" in ui.screen())
        assert ("command", "$ echo $((6 * 7)); touch made; exit 3") in ui.log()
        assert ("file", "added /workspace/made") in ui.log()
        assert {kind for kind, _ in ui.log()} >= {"command", "error", "file", "metric", "sandbox"}

        ui.tab.commands.run(f"touch live; sleep {seconds}")
        await ui.until(lambda: with_argument(seconds))
        await ui.until(lambda: "running" in ui.screen())
        await ui.until(lambda: any(c.path == "/workspace/live" for c in ui.tab.watched.changes))  # live
        assert ui.tab.commands.running is not None
        await ui.press("ctrl+c")
        await ui.until(lambda: ui.tab.commands.running is None)
        assert not with_argument(seconds)
        await ui.press("up", "up")
        assert ui.app.focused.value.startswith("echo $((6")  # type: ignore[union-attr]
        await ui.until(lambda: "2 commands" in ui.screen())

        ui.tab.commands.run(f"sleep {seconds} & disown")
        await ui.press("f6")
        await ui.until(lambda: f"sleep {seconds}"[:12] in ui.screen())
        processes: Any = ui.tab.side_pane("processes")
        await ui.until(lambda: len(ui.tab.watched.samples) > 1)
        assert "memory" in ui.screen()
        table = processes.query_one("DataTable")
        commands = [process.command for process in ui.tab.watched.processes]
        table.move_cursor(row=commands.index(f"sleep {seconds}"))
        await ui.press("K")
        await ui.until(lambda: not with_argument(seconds))

        await ui.press("f7")
        await ui.until(lambda: "may be read" in ui.screen())
        await ui.press("slash", *"network", "enter")
        await ui.until(lambda: "network" in ui.screen() and "may be read" not in ui.screen())

        await ui.press("f8")
        await ui.until(lambda: ui.app.focused is ui.tab.log_pane)
        await ui.press("question_mark")
        await ui.top("HelpScreen")
        assert "Ctrl-P" in ui.screen()
        await ui.press("escape", "ctrl+p")
        await ui.top("CommandPalette")
        await ui.press(*"light")
        await ui.until(lambda: "Light or dark" in ui.screen())
        await ui.press("enter")
        await ui.until(lambda: ui.app.theme == "textual-light")

        await ui.press("escape")
        await ui.press("f10")  # `made` is not committed: a question, and no is no
        await ui.top("ConfirmScreen")
        await ui.press("enter")
        await ui.until(lambda: len(ui.app.screen_stack) == 1)
        await ui.press("f10")
        await ui.top("ConfirmScreen")
        await ui.press("y")
        await ui.until(lambda: ui.app.return_value == 0)

    drive(steps, work)


@pytest.mark.slow
def test_connections_wait_for_an_answer(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[network]\nallow = ["127.0.0.1:1"]  # nothing\n')
    known = tuple((name, "127.0.0.1") for name in ("yes.example", "no.example"))
    monkeypatch.setattr(gateway_process, "host_names", lambda: known)

    async def steps(ui: Driven) -> None:
        await ui.prompt()
        results: list[str] = []

        def fetch(name: str) -> threading.Thread:
            sandbox = ui.sandbox
            line = f"curl -sS -m 90 http://{name}:{port} 2>/dev/null || echo refused"
            thread = threading.Thread(target=lambda: results.append(sandbox.run(line, timeout=100).stdout))
            thread.start()
            return thread

        first = fetch("no.example")
        await ui.until(ui.app.feed.questions)
        await ui.press("f5")
        await ui.until(lambda: f"no.example:{port}" in ui.screen() and "ask (" in ui.screen())
        await ui.press("n")
        await ui.until(lambda: results == ["refused\n"])
        first.join()
        fetch("no.example").join()  # it is not asked about again
        assert results == ["refused\n"] * 2
        await ui.until(lambda: "refused" in ui.screen())
        assert any(kind == "violation" for kind, _ in ui.log())

        second = fetch("yes.example")
        await ui.until(ui.app.feed.questions)
        await ui.until(lambda: "ask (" in ui.screen())
        await ui.press("home", "w")
        await ui.until(lambda: len(results) == 3)
        second.join()
        assert results[2] == "outside\n"
        await ui.until(lambda: "yes.example" in file.read_text())
        assert file.read_text() == f'[network]\nallow = ["yes.example:{port}", "127.0.0.1:1"]  # nothing\n'

        pane: Any = ui.tab.side_pane("network")  # what was refused can be allowed later
        rows = [getattr(item, "what", "") for item in pane._rows]
        pane.move_cursor(row=rows.index(f"no.example:{port}"))
        await ui.press("a")
        await ui.until(lambda: ui.app.feed.permits(f"no.example:{port}"))
        fetch("no.example").join()
        assert results[3] == "outside\n"

    with serving(lambda _: b"outside\n") as port:
        policy = Policy.agent().with_network(Network.allow(f"127.0.0.1:{port}"))
        drive(steps, work, policy=policy, asks=True, policy_file=str(file))


@pytest.mark.slow
def test_hostile_names_and_output_are_drawn_as_text(work: Path) -> None:
    evil = "x\x1b]52;c;aGk=\x07[red]m[@click=app.leave]c\u202e"

    async def steps(ui: Driven) -> None:
        await ui.prompt()
        ui.sandbox.files.write(f"/workspace/{evil}", f"{evil}\n")
        ui.tab.watched.look()
        await ui.until(lambda: "\\x1b]52;c;aGk=\\x07[red]m[@click" in ui.screen())
        await ui.press("f2")
        ui.tab.commands.run(f"cat *; echo '{evil}' >&2")
        await ui.until(lambda: "exit 0" in ui.screen())
        ui.tab.terminal.type(b"cat /workspace/x*\r")
        ui.app.tab.query_one("#shell").current = "terminal"  # type: ignore[union-attr]
        await ui.until(lambda: "[red]m[@click" in ui.tab.terminal.screen_text())
        await ui.press("f9")
        await ui.top("ReviewScreen")
        await ui.press("v")
        await ui.top("DiffScreen")
        await ui.until(lambda: "+x\\x1b]52" in ui.screen())
        await ui.press("escape", "escape")
        snapshot = ui.sandbox.snapshot(evil)
        ui.tab.watched.snapshots.append(snapshot)
        await ui.press("f4")
        ui.app.notify("[red]not markup[/]", markup=False)
        await ui.until(lambda: "\\x1b]52" in ui.screen())
        assert not set("\x1b\x07\u202e") & set(ui.screen())
        assert all(line.isprintable() for line in ui.screen().split("\n"))

    drive(steps, work)


@pytest.mark.slow
def test_it_stays_responsive_whatever_happens_inside(work: Path) -> None:
    async def steps(ui: Driven) -> None:
        await ui.prompt()
        await ui.run("mkdir many; cd many; for i in {1..20000}; do : > $i; done; cd ..")
        ui.tab.watched.look()
        await ui.until(lambda: len(ui.tab.watched.changes) == 20001)
        await ui.press("f3")
        await ui.until(lambda: "20,001 changes" in ui.screen() and "and 18,001 more" in ui.pane_text())
        await ui.press("f9")
        review = await ui.top("ReviewScreen")
        assert review.query_one("SelectionList").option_count == 1  # whole directories
        await ui.press("escape")

        ui.tab.terminal.type(b"yes some more text | head -c 20000000; echo over-$((6*7))\r")
        await ui.press("f1")  # while it floods
        await ui.top("HelpScreen")
        await ui.press("escape")
        await ui.until(lambda: "over-42" in ui.tab.terminal.screen_text())
        assert len(ui.tab.terminal.emulator.history) <= 3000

        ui.tab.terminal.type(b"trap '' INT TERM; while :; do :; done\r")  # a shell that listens to nobody
        await ui.press("f1")
        await ui.top("HelpScreen")
        await ui.press("escape")
        ui.sandbox.close()  # and a sandbox that is gone
        await ui.until(lambda: ui.tab.terminal.is_over or any(kind == "error" for kind, _ in ui.log()))
        await ui.press("f4", "f5", "f7", "f1")
        await ui.top("HelpScreen")

    drive(steps, work)


def test_a_row_that_is_drawn_at_once_does_not_forget_the_others(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TuiApp, "is_headless", False)

    async def steps(ui: Driven) -> None:
        await ui.prompt()
        pane = ui.tab.terminal
        await ui.until(lambda: not pane._repaint_regions)
        row = [Region(0, 0, pane.size.width, 1)]
        pane.refresh()  # all of it is to be drawn
        waiting = set(pane._repaint_regions)
        assert not terminal_pane._written(pane, row)
        assert waiting <= pane._repaint_regions
        pane._exchange_repaint_regions()
        ui.app.screen._repaint_required = False
        assert terminal_pane._written(pane, row)  # and this is why it was not written

    drive(steps, work)


@pytest.mark.slow
def test_every_action_of_the_palette(work: Path) -> None:
    """Each is chosen in the palette by its title, and does what its help text has."""
    seconds = unique_seconds()
    used: set[str] = set()

    async def choose(ui: Driven, title: str) -> None:
        await ui.until(lambda: len(ui.app.screen_stack) == 1, "no screen on top")
        await ui.press("ctrl+p")
        palette = await ui.top("CommandPalette")
        palette.query_one("Input").value = title
        options = palette.query_one("OptionList")

        def listed() -> bool:
            return bool(options.option_count) and title in str(options.get_option_at_index(0).prompt)

        await ui.until(listed, title)
        await ui.press("enter")
        await ui.until(lambda: type(ui.app.screen).__name__ != "CommandPalette", title)
        used.add(title)

    async def steps(ui: Driven) -> None:
        await ui.prompt()
        for title, pane in (
            *(("Changes", "changes"), ("Snapshots", "snapshots"), ("Network", "network")),
            *(("Processes", "processes"), ("Policy", "policy")),
        ):
            await choose(ui, title)
            await ui.until(lambda pane=pane: ui.tab.pane == pane and ui.tab.side_pane(pane) is not None)  # type: ignore[misc]
        await choose(ui, "Log")
        await ui.until(lambda: ui.app.focused is ui.tab.log_pane)
        await choose(ui, "Help")
        await ui.top("HelpScreen")
        await ui.press("escape")
        theme, width = ui.app.theme, ui.tab.terminal.size.width
        await choose(ui, "Light or dark")
        await ui.until(lambda: ui.app.theme != theme)
        await choose(ui, "Split the other way")
        await ui.until(lambda: ui.tab.terminal.size.width != width)
        await choose(ui, "Shell")
        await ui.until(lambda: ui.app.focused is ui.tab.terminal or ui.tab.is_list)
        await choose(ui, "Copy selection")

        ui.sandbox.files.write("/workspace/made", "x\n")
        await choose(ui, "Look again")
        await ui.until(lambda: [c.path for c in ui.tab.watched.changes] == ["/workspace/made"])
        await choose(ui, "Take a snapshot")
        await ui.top("SearchScreen")
        await ui.press("enter")
        await ui.until(lambda: len(ui.tab.watched.snapshots) == 1)
        await choose(ui, "Discard changes")
        await ui.top("ConfirmScreen")
        await ui.press("y")
        await ui.changed()
        await ui.until(lambda: ui.tab.watched.before_discard is not None)
        await choose(ui, "Undo discard")
        await ui.changed("made")
        await choose(ui, "Timeline")
        await ui.until(lambda: ui.tab.pane == "timeline" and len(ui.tab.watched.points) > 1)
        await ui.prompt()
        await choose(ui, "Undo a command")
        await ui.until(lambda: ui.tab.watched.undone)
        await ui.prompt()
        await choose(ui, "Redo a command")
        await ui.until(lambda: not ui.tab.watched.undone)
        await ui.changed("made")
        await choose(ui, "Commit")
        await ui.top("ReviewScreen")
        await ui.press("c")
        await ui.until((work / "made").exists)

        ui.tab.commands.run(f"sleep {seconds}")
        await ui.until(lambda: with_argument(seconds))
        await choose(ui, "Interrupt")
        await ui.until(lambda: not with_argument(seconds))

        for number, title in enumerate(("Fork", "New shell", "New sandbox"), 2):
            await choose(ui, title)
            await ui.until(lambda number=number: len(ui.app.tabs) == number, title)  # type: ignore[misc]
        await choose(ui, "Close tab")
        await ui.until(lambda: len(ui.app.tabs) == 3 or type(ui.app.screen).__name__ == "ConfirmScreen")
        await ui.press("y")
        await ui.until(lambda: len(ui.app.tabs) == 3)
        await choose(ui, "Leave")
        await ui.until(lambda: ui.app.return_value == 0 or type(ui.app.screen).__name__ == "ConfirmScreen")
        if ui.app.return_value is None:
            await ui.press("y")
        await ui.until(lambda: ui.app.return_value == 0)

    drive(steps, work)
    assert used == {title.rstrip("…") for title, _, _ in PALETTE}


@pytest.mark.slow
def test_what_cannot_be_opened_is_said(work: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not\x1b today")

    async def steps(ui: Driven) -> None:
        await ui.until(lambda: "not\\x1b today" in ui.screen())
        assert ui.log()[-1] == ("error", "not\\x1b today")
        await ui.press("f3", "f9", "f10")

    drive(steps, work, open_it=refuse)


@pytest.mark.slow
def test_narrow_and_vertical(work: Path) -> None:
    async def steps(ui: Driven) -> None:
        await ui.prompt()
        assert (ui.tab.terminal.size.width, ui.tab.terminal.size.height) == (80, 23)
        await ui.press("f3")
        await ui.until(lambda: "no changes" in ui.screen() and "$" not in ui.screen())
        await ui.press("escape")
        await ui.until(lambda: "$" in ui.screen())
        await ui.pilot.resize_terminal(130, 40)
        await ui.until(lambda: ui.tab.terminal.size.width < 80)
        await ui.run("stty size")
        assert f"39 {ui.tab.terminal.size.width}" in ui.tab.terminal.screen_text()
        await ui.app.run_action("toggle_split")
        await ui.until(lambda: ui.tab.terminal.size.width == 130)

    drive(steps, work, size=(80, 24))


def test_an_interrupt_while_the_ui_is_loaded_ends_the_program() -> None:
    # As KeyboardInterrupt it could leave a lock of the interpreter held, and the opening thread would wait.
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], env=environment(), capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


_INTERRUPTED = """
import os, signal
from staddle.tui.start import start

class Opening:
    error = None
    def begin(self):
        os.kill(os.getpid(), signal.SIGINT)
    def close(self):
        pass

start(Opening())
"""


@pytest.mark.slow
def test_nothing_is_left_behind(work: Path) -> None:
    seconds = unique_seconds()

    async def steps(ui: Driven) -> None:
        await ui.prompt()
        ui.tab.terminal.type(f"sleep {seconds}\r".encode())
        await ui.until(lambda: with_argument(seconds))
        ui.app.exit(0)

    drive(steps, work)
    assert until(lambda: not with_argument(seconds))
    assert sorted(path.name for path in work.iterdir()) == ["a.py", "gone"]
