"""The master of a terminal whose open file somebody else has, too."""

from __future__ import annotations

import os
import pty as os_pty

from staddle.launch import pty


def test_a_master_that_was_made_blocking_does_not_block() -> None:
    master, slave = os_pty.openpty()
    os.set_blocking(master, True)
    assert pty.read_available(master) is None
    os.set_blocking(master, True)
    for _ in range(10_000):
        if not pty.write_available(master, b"x" * 4096):
            break
        os.set_blocking(master, True)
    else:
        raise AssertionError("it takes everything")
    os.close(master)
    os.close(slave)
