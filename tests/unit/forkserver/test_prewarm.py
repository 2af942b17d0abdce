"""What is done ahead to no end leaves nothing behind."""

from __future__ import annotations

import os

from staddle.forkserver.prewarm import prewarm_request


def test_no_descriptor_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    prewarm_request()
    assert {*os.listdir("/proc/self/fd")} <= {*before}
