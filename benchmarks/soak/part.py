"""A part of the soak: a name, how many steps, and a function that does them."""

from __future__ import annotations

import contextlib
import faulthandler
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ledger import Reading

#: A step that takes longer than this hangs. The part ends, with the stacks of all threads on stderr.
_HANG = 180
#: After so many errors the rest would say nothing new.
MOST_ERRORS = 20
_READINGS = 40


@dataclass
class Run:
    """One run of a part: its steps, what went wrong in them, and what was used."""

    name: str
    count: int
    place: Path
    errors: list[str] = field(default_factory=list)
    #: One series for each time that `steps` was called.
    readings: list[list[Reading]] = field(default_factory=list)
    done: int = 0
    notes: list[str] = field(default_factory=list)
    random: random.Random = field(default_factory=random.Random)

    def steps(self, count: int | None = None) -> Iterator[int]:
        """The numbers of the steps. Takes readings between them, tells how far it is, notices hangs."""
        count = self.count if count is None else count
        every = max(1, count // _READINGS)
        series: list[Reading] = []
        self.readings.append(series)
        told = began = time.monotonic()
        for number in range(count):
            if len(self.errors) >= MOST_ERRORS:
                self.notes.append("given up after that many errors")
                break
            faulthandler.dump_traceback_later(_HANG, exit=True)
            if number % every == 0:
                series.append(Reading.now())
            yield number
            self.done += 1
            if time.monotonic() - told > 5:
                told = time.monotonic()
                rate = (number + 1) / (told - began)
                self.tell(f"{number + 1} of {count}, {rate:.0f} a second, {len(self.errors)} errors")
        series.append(Reading.now())
        faulthandler.dump_traceback_later(_HANG, exit=True)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Count an exception as an error of this step, and go on."""
        try:
            yield
        except Exception as error:  # whatever it is, it should not have been
            self.fail(f"{type(error).__name__}: {error}")
            if len(self.errors) <= 3:
                traceback.print_exc()

    def fail(self, what: str) -> None:
        """Count one error."""
        self.errors.append(what)
        self.tell(f"ERROR {what}")

    def expect(self, found: object, expected: object, what: str) -> None:
        """Count an error unless both are equal."""
        if found != expected:
            self.fail(f"{what}: {found!r} instead of {expected!r}")

    def tell(self, text: str) -> None:
        print(f"  {self.name}: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Part:
    """`work` does `count` steps, or as many as `SOAK` scales that to; `least` at the least."""

    name: str
    count: int
    what: str
    work: Callable[[Run], None]
    least: int = 1
    #: The readings do not apply: it opens ever more on purpose, or its victims are other processes.
    is_flat: bool = True
    #: By how many descriptors two readings may differ: those of sandboxes that are opened in the background.
    descriptors: int = 8

    def scaled(self, scale: float) -> int:
        return max(self.least, round(self.count * scale))
