"""What is done ahead to no end leaves nothing behind."""

from __future__ import annotations

import os

from staddle.forkserver.prewarm import rehearse


def test_no_descriptor_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    rehearse()
    assert {*os.listdir("/proc/self/fd")} <= {*before}
