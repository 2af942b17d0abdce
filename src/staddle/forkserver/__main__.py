"""The program of the fork server: `python -I -S .../forkserver/__main__.py SOCKET CONFIG`, two descriptors.

The host program runs it (see `connection`), with its rights.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # cheaper than what wraps it
import gc
import os
import sys


def main() -> None:
    _signal.signal(17, 0)  # a program that ignores SIGCHLD passes that on to its children
    gc.disable()  # a collection of freshly loaded code would take half a millisecond
    # Appended: no file next to the package can replace a module of the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from staddle.forkserver import server

    server.main(sys.argv[1:])


if __name__ == "__main__":
    main()
