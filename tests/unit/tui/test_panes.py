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
