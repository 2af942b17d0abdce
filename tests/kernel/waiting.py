"""Waiting for something to become so, never without end; and whom to wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def until(what: Callable[[], object], seconds: float = 10) -> bool:
    """Whether it came to be so in time."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


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
