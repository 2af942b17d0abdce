"""The inspector as a program. Descriptor 0 is its socket to the host program.

    python -I -S .../network/inspection/__main__.py STARTER DIRECTORY...

h11, h2, cryptography and pyOpenSSL are imported from the DIRECTORYs. The starter passes no directory that a
sandbox can write to. It exits when its socket closes or when the process STARTER exits.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    # Appended, so that no file in them can replace a module of the standard library.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
    sys.path += [path for path in map(os.path.abspath, sys.argv[2:]) if path not in sys.path]
    sys.dont_write_bytecode = True
    from staddle.linux.process import close_from, dumpable, pidfd_open
    from staddle.network.inspection.inspector import serve

    dumpable(False)
    socket = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    close_from(3, (socket,))
    starter = pidfd_open(int(sys.argv[1]))
    if os.getppid() != int(sys.argv[1]):
        return  # the starter has exited, and another process may have its pid
    serve(socket, starter)


if __name__ == "__main__":
    main()
