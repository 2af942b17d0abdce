"""`staddle tui --attach` in tmux, on a sandbox of a server that stays."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from staddle.server.client import Client
from tests.support.server_process import ServerProcess
from tests.support.staddle_command import COMMAND
from tests.support.tmux import Tmux
from tests.support.waiting import until

pytestmark = pytest.mark.same_for_everyone


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with ServerProcess(tmp_path) as server, staddle.connect(server.path) as found:
        yield found


def attached(tmp_path: Path, name: str) -> Tmux:
    place = tmp_path / f"tmux-{name}-{len(list(tmp_path.iterdir()))}"
    place.mkdir()
    return Tmux(place, [*COMMAND, "tui", "--attach", name, "--server", str(tmp_path / "socket")])


def test_a_person_works_in_it_and_it_stays(client: Client, tmp_path: Path) -> None:
    """Terminals, changes, commit, snapshots, timeline; after leaving, all goes on, and can be seen again."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "f").write_text("one\n")
    sandbox = client.create(work, name="shown", history=True)
    sandbox.run("echo two > f")
    sandbox.snapshot("before")
    tmux = attached(tmp_path, "shown")
    try:
        tmux.until("/workspace$", "M f  4 B")
        tmux.keys("echo three > g; x=41", "Enter")
        tmux.until("A g  6 B")
        tmux.keys("F4")
        tmux.until("before")
        tmux.keys("F9")
        tmux.until("Commit 2 changes", "+two")
        tmux.keys("c")
        tmux.until("│ 0 changes")
        assert ((work / "f").read_text(), (work / "g").read_text()) == ("two\n", "three\n")
        tmux.keys("F2")
        tmux.keys("read line; echo got $line", "Enter")
        tmux.until("got $line")
        tmux.keys("F10")
        tmux.until("ended with 0")
    finally:
        tmux("kill-server")
    assert sandbox.alive
    assert [each.label for each in sandbox.snapshots()] == ["before"]
    (terminal,) = sandbox.terminals()
    terminal.write("this\n")
    again = attached(tmp_path, "shown")
    try:
        again.until("got this")  # the same terminal
        again.keys("echo $((x+1))!", "Enter")
        again.until("42!")
        assert len(sandbox.terminals()) == 1
        sandbox.close()
        again.until("ended")
        again.keys("F10")
        again.until("ended with 0")
    finally:
        again("kill-server")


@pytest.mark.parametrize(("key", "allow"), [("a", True), ("n", False)])
def test_a_question_is_answered(client: Client, tmp_path: Path, key: str, allow: bool) -> None:
    """A program inside waits for the person, who presses a key."""
    sandbox = client.create(name="asks", ask=True, on_connect_timeout=30)
    tmux = attached(tmp_path, "asks")
    try:
        tmux.until("/workspace$")
        sandbox.start("curl -sm 20 http://host.invalid/")
        tmux.until("ask (")

        def answers() -> set[object]:
            events = client.events(sandbox=sandbox.id)["events"]
            return {each["allow"] for each in events if each["kind"] == "answer"}

        def pressed() -> bool:
            tmux.keys("F5", "Home", key)  # the pane is on the screen before it has the keys
            return until(lambda: answers() == {allow}, 2.0)

        assert until(pressed)
        tmux.keys("F10")
        tmux.until("ended with 0")
    finally:
        tmux("kill-server")
    assert sandbox.questions() == []


def test_who_leaves_answers_no_question(client: Client, tmp_path: Path) -> None:
    """It waits for another client."""
    sandbox = client.create(name="waits", ask=True, on_connect_timeout=60)
    tmux = attached(tmp_path, "waits")
    try:
        tmux.until("/workspace$")
        sandbox.start("curl -sm 50 http://host.invalid/")
        tmux.until("ask (")
        tmux.keys("F10")
        tmux.until("ended with 0")
    finally:
        tmux("kill-server")
    (question,) = sandbox.questions()
    sandbox.answer(question["id"], False)


def test_old_output_gets_no_second_answer(client: Client, tmp_path: Path) -> None:
    """A query in the output from before is not answered: the answer would be typed. Control: a new one is."""
    sandbox = client.create(name="queries")
    terminal = sandbox.terminal(
        ["bash", "-c", r"printf 'early\033[6n'; read -rsn 3 -t 3 a; echo ready; cat -v"]
    )
    assert until(lambda: terminal.read(0.5).endswith(b"ready\r\n") or None)
    tmux = attached(tmp_path, "queries")
    try:
        tmux.until("ready")
        tmux.keys("typed", "Enter")
        assert until(lambda: tmux.screen().count("typed") == 2)
        assert "^[[" not in tmux.screen()
        client.get("queries").run(f"printf '\\033[6n' > /proc/{terminal.pid}/fd/1")
        tmux.keys("Enter")
        tmux.until("R")
        assert until(lambda: "^[[" in tmux.screen())
    finally:
        tmux("kill-server")


def test_options_that_do_not_go_with_it_are_refused(tmp_path: Path) -> None:
    for words in (["--attach", "x", "--keep", "y"], ["--server", "z"]):
        place = tmp_path / words[0]
        place.mkdir()
        tmux = Tmux(place, [*COMMAND, "tui", *words])
        try:
            tmux.until("attach", "ended with 125")
        finally:
            tmux("kill-server")
    assert (
        subprocess.run([*COMMAND, "tui", "--attach", "x"], check=False, capture_output=True).returncode == 125
    )
