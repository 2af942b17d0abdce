"""The modes of the user's terminal, given back however this process ends.

A command, or our own relay, may have the terminal raw and without echo. After SIGKILL nothing of ours could
give the modes back, so a child does: it waits for the other end of a pipe, which only we hold.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class TerminalGuard:
    """The modes of the terminal on descriptor 0, as they are now; nothing where it is no terminal.

    `last` is written to the terminal if this process is killed: what makes it leave a screen of ours.
    """

    def __init__(self, last: bytes = b"") -> None:
        self._modes: list[Any] | None = None
        self._child, self._held = 0, -1
        if not os.isatty(0):
            return
        import termios

        self._modes = termios.tcgetattr(0)
        if sys.platform == "linux":
            group = os.getpgrp()
            waits, self._held = os.pipe2(os.O_CLOEXEC)
            self._child = os.fork()
            if self._child == 0:
                _wait(waits, group, self._modes, last)
            os.close(waits)

    def close(self) -> None:
        """Give the modes back. A second time does nothing."""
        if self._modes is None:
            return
        import termios

        modes, self._modes = self._modes, None
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, modes)
        finally:
            if self._child:
                os.write(self._held, b".")
                os.close(self._held)
                try:
                    os.waitpid(self._child, 0)
                except ChildProcessError:
                    pass  # the program around us reaps every child itself


def _wait(pipe: int, group: int, modes: list[Any], last: bytes) -> NoReturn:
    """Be the child: nothing but the end of our parent ends us.

    Whoever has the terminal in the foreground then may have set modes of its own, as a shell that edits its
    line does: these are left alone.
    """
    try:
        import termios

        from ..linux import process

        process.block_signals(range(1, 65))  # a background process would be stopped for setting modes
        os.setpgid(0, 0)
        process.close_from(1, keep=(pipe,))
        if not os.read(pipe, 1) and os.tcgetpgrp(0) == group:
            termios.tcsetattr(0, termios.TCSANOW, modes)
            if last:
                os.write(0, last)
    finally:
        os._exit(0)
