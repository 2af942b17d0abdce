"""The widget of a terminal: output is taken in slices, in order, and keys are handled in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from textual.app import App, ComposeResult

from staddle.tui import terminal_pane
from staddle.tui.terminal_pane import TerminalPane


class Program:
    """A program on a terminal that prints `output`, and remembers what is typed."""

    def __init__(self, output: bytes) -> None:
        self._end, other = os.pipe()
        os.close(other)  # there is always something to read
        self.left, self.reads, self.typed = output, 0, b""

    def fileno(self) -> int:
        return self._end

    def read_some(self) -> bytes | None:
        self.reads += 1
        data, self.left = self.left[:4096], self.left[4096:]
        return data

    def write_some(self, data: bytes | memoryview) -> int:
        self.typed += bytes(data)
        return len(data)

    def resize(self, rows: int, cols: int) -> None:
        """Nobody is told."""

    def poll(self) -> int | None:
        return 0

    def close(self) -> None:
        os.close(self._end)


class OnePane(App[None]):
    def compose(self) -> ComposeResult:
        yield TerminalPane()


def shown(program: Program, meanwhile: Callable[[TerminalPane], None]) -> TerminalPane:
    """The pane after the program has ended; `meanwhile` is called once in each turn of the loop."""

    async def run() -> TerminalPane:
        app = OnePane()
        async with app.run_test(size=(40, 10)):
            pane = app.query_one(TerminalPane)
            pane.attach(program)
            while not pane.is_over:
                meanwhile(pane)
                await asyncio.sleep(0)
            return pane

    try:
        return asyncio.run(run())
    finally:
        program.close()


def test_keys_are_handled_while_output_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_pane, "_SLICE", 0)  # one piece at a time
    lines = [f"\x1b[32m{number}\x1b[m and \x1b[1mmore\x1b[m\r\n" for number in range(2000)]
    program = Program("".join(lines).encode())
    places: list[int] = []
    reads: set[int] = set()

    def meanwhile(pane: TerminalPane) -> None:
        if pane._unfed and pane._fed != (places[-1] if places else -1):
            places.append(pane._fed)
            reads.add(program.reads)
            pane.type(b"k")

    pane = shown(program, meanwhile)
    assert len(places) > 100  # the loop had its turn in between
    assert places == sorted(places)
    assert program.typed == b"k" * len(places)
    assert len(reads) == 1  # nothing is read ahead of what is taken
    assert len(pane.emulator.history) + 10 >= 2000
    numbers = [int("".join(text for text, _ in runs).split()[0]) for runs in pane.emulator.history if runs]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 1990


def test_a_flood_that_cannot_be_skipped_is_not_read_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_pane, "_SLICE", 0)
    monkeypatch.setattr(terminal_pane, "_PAUSE", 0)
    monkeypatch.setattr(terminal_pane, "_COLLECT", 60)
    monkeypatch.setattr(terminal_pane, "_MOST", 1 << 17)
    program = Program(b"\x1b[2J" * (3 << 15))
    sizes: list[int] = []

    def meanwhile(pane: TerminalPane) -> None:
        if pane._unfed and (not sizes or sizes[-1] != len(pane._unfed)):
            sizes.append(len(pane._unfed))

    shown(program, meanwhile)
    assert sizes == [1 << 17, 1 << 15]
