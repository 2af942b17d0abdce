"""A command on a pseudo-terminal of its own."""

from __future__ import annotations

import time

from staddle import Policy, wrap
from staddle.jail.pty_launch import PtyLaunch, on_its_own


def test_its_terminal_has_its_size_before_anything_can_ask_for_it() -> None:
    command = wrap(on_its_own(["stty", "size"]), Policy.agent(), backend="namespaces")
    lent = PtyLaunch(command.launch(), size=(33, 111))
    try:
        said, end = b"", time.monotonic() + 120
        while b"\n" not in said and time.monotonic() < end:
            said += lent.read_some() or b""
            time.sleep(0.01)
        assert said.split() == [b"33", b"111"]
        assert lent.wait(60) == 0
    finally:
        lent.close()
