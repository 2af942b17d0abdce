"""A process group that ends when this process does, however it does.

bwrap asks the kernel to end the sandbox with its parent only once the sandbox is set up. A
SIGKILL of ours in the milliseconds before would leave it running. So the launcher joins the
group of a small shell that does nothing but wait for the other end of a pipe, which only we
hold: when it closes, the group is killed.
"""

from __future__ import annotations

import os

_SHELL = "/bin/sh"
_WAIT = "read line; kill -9 0"


class Lifeline:
    """`group` is the process group to start things in; 0, a group of their own, where there is no shell."""

    def __init__(self) -> None:
        self.group = 0
        self._held = -1
        if not os.access(_SHELL, os.X_OK):
            return
        theirs, self._held = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, theirs, 0), *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (1, 2))]
        try:
            self.group = os.posix_spawn(_SHELL, ["sh", "-c", _WAIT], {}, file_actions=actions, setpgroup=0)
        finally:
            os.close(theirs)
            os.close(null)

    def close(self) -> None:
        """End what is left of the group after the launcher's end, the shell at least."""
        if self.group:
            os.close(self._held)
            try:
                os.waitpid(self.group, 0)
            except ChildProcessError:
                pass  # the program around us reaps every child itself
            self.group = 0
