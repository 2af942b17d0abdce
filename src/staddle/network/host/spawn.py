"""The gateway as a child of this process: started at one end of a socket pair, and waited for when it ends.

All that a launcher needs. It knows nothing of policies: who made the socket has sent the settings.
"""

from __future__ import annotations

import os
import select
import sys

from ...linux.process import SIGKILL, pidfd_open, pidfd_send_signal
from ...linux.userns import reap

_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
#: Milliseconds for a gateway to end by itself.
_PATIENCE = 2000


def spawn(socket: int, ready: int = -1) -> int:
    """Start a gateway with `socket` as its end of the pair; its pid. OSError when it cannot be started.

    It ends with this process. On `ready` it says that it is confined and has its first sockets.
    """
    program = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gateway/__main__.py")
    argv = [os.path.realpath(sys.executable), "-I", "-S", program, str(os.getpid())]
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [(os.POSIX_SPAWN_DUP2, socket, 0)]
    if ready >= 0:
        actions.append((os.POSIX_SPAWN_DUP2, ready, 1))
    else:
        actions.append((os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0))
    actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
    # A process group of its own: Ctrl-C is for the command, not for its network. Not a session: the
    # scheduler would have a new one wait for its turn, and us for it. A launcher holds signals
    # back to read them one by one; the gateway does not.
    return os.posix_spawn(argv[0], argv, _ENVIRONMENT, file_actions=actions, setpgroup=0, setsigmask=())


def end(pid: int, patience: int = _PATIENCE) -> None:
    """Wait so many milliseconds for a gateway whose socket is closed, and kill it if it has not ended."""
    try:
        pidfd = pidfd_open(pid)
    except OSError:
        pidfd = -1  # reaped by the program around us already
    else:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        if not waiting.poll(patience):
            try:
                pidfd_send_signal(pidfd, SIGKILL)
            except PermissionError:
                os.close(pidfd)
                return  # a launcher that has given up its rights; it ends with us, a moment later
        os.close(pidfd)
    reap(pid)
