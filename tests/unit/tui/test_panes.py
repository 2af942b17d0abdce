"""What the panes say, without a sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from textual.app import App, ComposeResult
from textual.widget import Widget

from staddle.layers.changes import Change
from staddle.tui.changes_pane import label_of
from staddle.tui.log_pane import lines_of
from staddle.tui.process_pane import SnapshotPane
from staddle.tui.tab import labels_within
from staddle.tui.terminal_pane import TerminalPane
from staddle.tui.timeline_pane import TimelinePane
from staddle.tui.watched import WatchedSandbox


def shown_in_an_app(widget: Widget, steps: Callable[[Any], Awaitable[None]]) -> None:
    class OneWidget(App[None]):
        def compose(self) -> ComposeResult:
            yield widget

    async def run() -> None:
        async with OneWidget().run_test(size=(60, 10)) as pilot:
            await steps(pilot)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("count", "said"), [(0, "no snapshots; s takes one"), (1, "1 snapshot"), (2, "2 snapshots")]
)
def test_snapshots_are_counted_and_how_they_were_taken_is_not_said(count: int, said: str) -> None:
    pane = SnapshotPane()
    taken = [SimpleNamespace(label="a", created=0.0, method="swap", closed=False, parent=None)] * count

    async def steps(_: Any) -> None:
        pane.show_snapshots(cast("Any", taken))
        assert str(pane.root.label) == said
        assert all("swap" not in str(node.label) for node in pane.root.children)

    shown_in_an_app(pane, steps)


def test_the_timeline_has_undone_points_above_the_present_and_nothing_that_acts_on_a_terminal() -> None:
    def point(number: int, **more: Any) -> Any:
        facts = {"cause": "command", "command": f"c{number}", "exit_code": 0, "changed": 1, "time": 0.0}
        return SimpleNamespace(number=number, **{**facts, **more})

    points = [point(0, cause="start", command="", changed=0), point(1, command="echo \x1b]0;x\x07\nrm")]
    undone = [point(2, changed=None), point(3, cause="files", command="")]
    pane = TimelinePane()

    async def steps(pilot: Any) -> None:
        pane.show_points(cast("Any", SimpleNamespace(points=points, undone=undone, no_history="")))
        await pilot.pause()
        rows = [[str(cell) for cell in pane.get_row_at(index)] for index in range(4)]
        assert [(row[0], row[1], row[3]) for row in rows] == [
            ("○", "3", "1"),
            ("○", "2", "many"),
            ("●", "1", "1"),
            ("○", "0", ""),
        ]
        assert [row[4] for row in rows[::3]] == ["(files)", "(the beginning)"]
        assert "\x1b" not in rows[2][4]
        assert "\n" not in rows[2][4]
        assert pane.before(undone[0]) is points[1]
        assert pane.before(points[0]) is None
        pane.show_points(cast("Any", SimpleNamespace(points=[], undone=[], no_history="none here")))
        assert str(pane.get_row_at(0)[4]) == "none here"
        assert pane.chosen() is None

    shown_in_an_app(pane, steps)


def test_a_step_moves_points_between_the_past_and_what_was_undone() -> None:
    watched = WatchedSandbox("work", lambda *_: None)
    first, second, third = (cast("Any", SimpleNamespace(number=number)) for number in (1, 2, 3))
    watched.stepped([third, second], -2)
    assert watched.undone == [second, third]
    watched.stepped([first], -1)
    assert watched.undone == [first, second, third]
    watched.stepped([first, second], 2)
    assert watched.undone == [third]
    later = cast("Any", SimpleNamespace(number=4))
    watched.sandbox = cast("Any", SimpleNamespace(history=lambda: [later]))
    assert watched._timeline()
    assert watched.undone == []


def test_a_commit_is_not_logged_as_an_addition() -> None:
    record = {"what": "committed", "changes": ["added /workspace/a b"]}
    assert list(lines_of(record)) == [("sandbox", "committed 1 change"), ("file", "committed /workspace/a b")]


def test_a_refused_change_and_a_conflict_are_marked() -> None:
    change = Change("added", "/workspace/.git/hooks/pre-commit", "file", 3, 0o644)
    label = label_of(change, "pre-commit", ".git/hooks is a protected name")
    assert label.plain == "! A pre-commit  3 B  .git/hooks is a protected name"
    assert (
        label_of(change.replace(conflict="it was changed"), "x").plain
        == "! A x  3 B  conflict: it was changed"
    )
    assert label_of(change, "x").plain == "A x  3 B"


def test_the_names_of_the_panes_fit_and_have_space_between_them() -> None:
    for width in (40, 44, 48, 60, 100):
        labels, gap = labels_within(width)
        assert len((" " * gap).join(f"3 {label}" for label in labels)) <= width
        assert gap >= 1
    assert "snapshots" in labels_within(48)[0]


def test_what_is_typed_while_a_restore_runs_is_for_the_next_shell() -> None:
    class Program:
        def __init__(self) -> None:
            self.typed = b""

        def fileno(self) -> int:
            return read_end

        def read_some(self) -> bytes | None:
            return None

        def write_some(self, data: bytes | memoryview) -> int:
            self.typed += bytes(data)
            return len(data)

        def resize(self, rows: int, cols: int) -> None:
            """Nobody is told."""

        def poll(self) -> int | None:
            return None

        def close(self) -> None:
            """Nothing is open."""

    read_end, write_end = os.pipe()
    pane, old, new, kept = TerminalPane(), Program(), Program(), Program()

    async def steps(pilot: Any) -> None:
        pane.focus()
        pane.attach(old)
        pane.hold()
        await pilot.press("l", "s", "enter")
        pane._end()
        await pilot.press("p", "w", "d")
        pane.attach(new)
        await pilot.press("enter")
        pane.attach(kept)
        pane.hold()
        await pilot.press("x")
        pane.release()  # the restore has failed

    try:
        shown_in_an_app(pane, steps)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert (old.typed, new.typed, kept.typed) == (b"", b"ls\rpwd\r", b"x")
