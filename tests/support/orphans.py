"""Processes that outlive the one that started them, found by descent: no other test's are among them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.sandboxes import children

_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def adopted() -> Iterator[Callable[[], set[int]]]:
    """Until its end a process that loses its parent becomes our child; the function says which live."""
    prctl, before = ctypes.CDLL(None, use_errno=True).prctl, children()

    def living() -> set[int]:
        return {pid for pid in children() - before if os.waitpid(pid, os.WNOHANG) == (0, 0)}

    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield living
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
