"""The gateway as a program. Descriptor 0 is its socket, and it inherits nothing else.

    python -I -S .../network/gateway/__main__.py STARTER

It writes to descriptor 1 when it has received its first sockets. It exits when its socket closes or when the
process STARTER exits, because a child of STARTER may still have a copy of the socket's other end.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # cheaper than `signal`
import os
import sys


def main() -> None:
    _signal.signal(17, 0)  # ignored SIGCHLD may be inherited from the starter
    # Appended, so that no file next to the package can replace a module of the standard library.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
    from staddle.linux.process import close_from, pidfd_open
    from staddle.network.gateway.gateway import serve

    socket = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    close_from(3, (socket,))
    starter = pidfd_open(int(sys.argv[1]))
    if os.getppid() != int(sys.argv[1]):
        return  # the starter has exited, and another process may have its pid
    serve(socket, starter, ready=1)


if __name__ == "__main__":
    main()
