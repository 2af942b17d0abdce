"""The gateway as a program: its socket is descriptor 0, and it has nothing else.

    python -I -S .../network/gateway/__main__.py STARTER

It says on descriptor 1 that it has its first sockets. It ends when its socket does, and when the
process STARTER does: a child of that may still have a copy of the socket's other end.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # cheaper than what wraps it
import os
import sys


def main() -> None:
    _signal.signal(17, 0)  # a program that ignores SIGCHLD leaves that to what it starts
    # Appended: nothing that lies beside the package can stand in for the standard library.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
    from staddle.linux.process import close_from, pidfd_open
    from staddle.network.gateway.gateway import serve

    socket = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    close_from(3, (socket,))
    starter = pidfd_open(int(sys.argv[1]))
    if os.getppid() != int(sys.argv[1]):
        return  # it has ended already, and the number may be another process's
    serve(socket, starter, ready=1)


if __name__ == "__main__":
    main()
