"""Sandboxes for the tests of sessions: the same promises on every backend that can be had here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: Its own launcher, somebody else's, and none at all.
BACKENDS = ["namespaces", "bwrap", "native"]

every_backend = pytest.mark.parametrize("backend", BACKENDS)
confining = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "native"])


def within(seconds: float, what: Callable[[], object]) -> bool:
    """Whether `what` becomes true in time."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def with_argument(mark: str) -> list[int]:
    """The living processes of this machine that have `mark` among their arguments."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                found.append(int(name))
    return found


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    """The processes that this one has started and not waited for."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            words = Path(f"/proc/self/task/{task}/children").read_text().split()
        except OSError:
            continue  # a thread that has just ended; its children are another one's now
        found |= {int(pid) for pid in words}
    return found
