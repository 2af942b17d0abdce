"""The program of the fork server: `python -I -S .../forkserver/__main__.py SOCKET CONFIG`, two descriptors.

Run by the host program (see `connection`), with its rights.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # cheaper than what wraps it
import gc
import os
import sys


def main() -> None:
    _signal.signal(17, 0)  # a program that ignores SIGCHLD leaves that to what it starts
    gc.disable()  # half a millisecond of looking for garbage in freshly loaded code
    # Appended: nothing that lies beside the package can stand in for the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from staddle.forkserver import server

    server.main(sys.argv[1:])


if __name__ == "__main__":
    main()
