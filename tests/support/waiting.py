"""Waiting for something to become so, never without end; and whom to wait for."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Longer than anything takes, however busy the machine is; only what never comes is waited for so long.
PATIENCE = 60.0


def until(what: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether it came to be so in time."""
    end, pause = time.monotonic() + seconds, 0.01
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 1.3, 0.2)  # who waits for long lets others work
    return True


def unique_seconds() -> str:
    """A long time as an argument of `sleep`, by which nobody else's process is found."""
    return f"{1000 + int.from_bytes(os.urandom(1))}.{int.from_bytes(os.urandom(7)):017d}"


def with_argument(mark: str) -> list[int]:
    """The living processes of this machine that have `mark` among their arguments."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            found.append(int(name))
    return found


def command_line(pid: int) -> bytes:
    """Empty for one that has ended, whether or not somebody has waited for it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def as_soon_as(ready: Callable[[], object], then: Callable[[], object]) -> threading.Thread:
    """Do it, in a thread, when it is so; never, when that does not come to be."""

    def watch() -> None:
        if until(ready):
            then()

    watching = threading.Thread(target=watch)
    watching.start()
    return watching


def run_together(threads: list[threading.Thread]) -> None:
    """Start all of them, and wait until each has ended."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)


def next_line(process: subprocess.Popen[Any]) -> Any:
    """The next line that a program prints, whose standard output is a pipe."""
    assert process.stdout is not None
    return process.stdout.readline()


class JumpingClock:
    """Stands for the module `time`: far in the future from the moment that `ready` is true.

    A command gets all the time that it needs to come so far, and then none.
    """

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready, self._is_ready = ready, False

    def monotonic(self) -> float:
        self._is_ready = self._is_ready or self._ready()
        return time.monotonic() + (1000.0 if self._is_ready else 0.0)

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)
