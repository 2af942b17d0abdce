"""Progress of a `map`: a bar on a terminal, or calls of a function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_WIDTH = 30
#: Seconds between two drawings.
_EVERY = 0.1


class Progress:
    """Shows how many tasks are done. `how` is True for a bar on a terminal, or a function."""

    def __init__(self, how: bool | Callable[[int, int, int | None], object], total: int | None) -> None:
        self._call = how if callable(how) else None
        self._bar = how is True and sys.stderr.isatty()
        self._total, self._drawn, self._began = total, 0.0, time.monotonic()
        self._last: tuple[int, int] | None = None

    def show(self, done: int, failed: int) -> None:
        """So many are done, so many of them failed."""
        if self._call is not None:
            self._call(done, failed, self._total)
        self._last = (done, failed)
        if self._bar and time.monotonic() - self._drawn > _EVERY:
            self._draw()

    def close(self) -> None:
        """End the line."""
        if self._bar and self._last is not None:
            self._draw()
            print(file=sys.stderr)

    def _draw(self) -> None:
        if self._last is None:
            return
        self._drawn = time.monotonic()
        print(
            f"\r{line(*self._last, self._total, self._drawn - self._began)}",
            end="",
            file=sys.stderr,
            flush=True,
        )


def line(done: int, failed: int, total: int | None, seconds: float) -> str:
    """One line of text: a bar, counts, tasks per second."""
    speed = f"{done / seconds:.1f}/s" if seconds > 0 else ""
    counts = f"{done}" if total is None else f"{done}/{total}"
    filled = 0 if not total else min(_WIDTH, _WIDTH * done // total)
    bar = "" if total is None else f"[{'#' * filled}{'.' * (_WIDTH - filled)}] "
    return f"{bar}{counts} done, {failed} failed, {speed}"
