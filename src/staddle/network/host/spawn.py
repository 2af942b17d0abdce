"""Start the gateway as a child of this process on one end of a socket pair, and wait for its exit.

A launcher needs only this module. It knows no policy: the creator of the socket has sent the settings.
"""

from __future__ import annotations

import os
import select
import sys

from ...linux.process import SIGKILL, pidfd_open, pidfd_send_signal
from ...linux.userns import reap

_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
#: Milliseconds for a gateway to exit by itself.
_PATIENCE = 2000


def spawn(
    socket: int, ready: int = -1, program: str = "gateway/__main__.py", words: tuple[str, ...] = ()
) -> int:
    """Start a gateway with `socket` as its end of the pair. Returns its pid; OSError if it cannot start.

    It exits with this process. It writes to `ready` when it is confined and has its first sockets. `program`
    is another one of this package that is started in the same way, with `words`.
    """
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), program)
    argv = [os.path.realpath(sys.executable), "-I", "-S", path, str(os.getpid()), *words]
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [(os.POSIX_SPAWN_DUP2, socket, 0)]
    if ready >= 0:
        actions.append((os.POSIX_SPAWN_DUP2, ready, 1))
    else:
        actions.append((os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0))
    actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
    # A new process group, so that Ctrl-C reaches the command but not its gateway. Not a new session, because
    # the scheduler would delay its first run. A launcher blocks signals to read them one by one; the gateway
    # must not inherit that.
    return os.posix_spawn(argv[0], argv, _ENVIRONMENT, file_actions=actions, setpgroup=0, setsigmask=())


def end(pid: int, patience: int = _PATIENCE) -> None:
    """Wait `patience` milliseconds for a gateway whose socket is closed, then kill it."""
    try:
        pidfd = pidfd_open(pid)
    except OSError:
        pidfd = -1  # the program around us has reaped it already
    else:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        if not waiting.poll(patience):
            try:
                pidfd_send_signal(pidfd, SIGKILL)
            except PermissionError:
                os.close(pidfd)
                return  # a launcher that has dropped its rights; the gateway exits with it
        os.close(pidfd)
    reap(pid)
