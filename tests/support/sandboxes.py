"""Sandboxes for the tests of sessions: the same promises on every backend that can be had here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.background import wait_for_jobs
from staddle.sandbox.open.next_sandbox import NEXT

#: Its own launcher, somebody else's, and none at all.
BACKENDS = ["namespaces", "bwrap", "native"]

every_backend = pytest.mark.parametrize("backend", BACKENDS)
confining = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "native"])


def open_none_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """None while this test runs: the one that waits is closed, with its limits and descriptors."""
    monkeypatch.setattr(NEXT, "_is_over", True)
    wait_for_jobs()  # one may be in the making
    NEXT.close()


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
