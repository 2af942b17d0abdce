"""The process of a fork server, until it is told its configuration.

Its interpreter and its modules take longer to start than a sandbox. `AHEAD` starts them for the first sandbox
of a program while that is prepared.
"""

from __future__ import annotations

import _socket
import os
import threading

from ..errors import LaunchFailed, resource_fix
from ..launch.contract import ENVIRONMENT, python
from ..linux import open_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    Started = tuple[_socket.socket, subprocess.Popen[bytes]]


def started(before: Sequence[str] = (), around: dict[str, str] | None = None) -> Started:
    """Return our end of the socket and the process of a fork server: the one that waits, or a new one.

    `before` is a prefix of its command line, `around` has further variables.
    """
    waiting = None if before or around else AHEAD.take()
    return waiting or _start(before, around or {})


def _start(before: Sequence[str], around: dict[str, str]) -> Started:
    import subprocess

    theirs = None
    try:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        process = subprocess.Popen(
            (*before, *python("forkserver/__main__.py", str(theirs.fileno()))),
            env={**ENVIRONMENT, **around},
            cwd="/",
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the user's terminal must not reach it
        )
        open_files.hand_down(process.pid)
        return ours, process
    except OSError as error:
        why = error.strerror or str(error)
        raise LaunchFailed(
            "the fork server could not be started",
            why=why,
            fix=resource_fix(why, "`staddle doctor` tries what this host can do"),
        ) from error
    finally:
        if theirs is not None:
            theirs.close()


class FirstForkServer:
    """The process of this program's first fork server, started ahead of need. Thread-safe.

    It ends with this program, by `close`, or when nobody can take it: after a fork, or with another user.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Whether it is too late: it was started already, or another one was.
        self.is_over = False
        #: Whether this program opens no second sandbox: then nothing is made for one while the first is used.
        self.is_only = False
        self.waiting: Started | None = None
        self._of: tuple[int, int] | None = None

    def begin(self) -> None:
        """Start it, the first time that this is called."""
        with self._lock:
            if not self.is_over:
                self.is_over, self._of = True, _who()
                try:
                    self.waiting = _start((), {})
                except LaunchFailed:
                    pass  # whoever needs it tries again

    def take(self) -> Started | None:
        """Return it, if it waits. No other one is started ahead."""
        with self._lock:
            self.is_over = True
            found, self.waiting = self.waiting, None
        if found is not None and self._of != _who():
            found[0].close()
            return None
        return found

    def close(self) -> None:
        """End the waiting fork server, if there is one."""
        if (found := self.take()) is not None:
            found[0].close()
            found[1].wait()


def _who() -> tuple[int, int]:
    return os.getpid(), os.geteuid()


AHEAD = FirstForkServer()
