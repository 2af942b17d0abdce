"""`jail-exec`: confine this process as instructed, then become the command.

    python -I -S .../inside/__main__.py jail-exec WHERE

WHERE is the number of a descriptor, or the path of a file, with the instructions. If the command did not
start, the exit status is 2 (arguments), 3 (the confinement failed) or 4 (exec failed). Otherwise it is the
command's status.

Backends start this program in other roles too:

    namespaces DESCRIPTOR         build the sandbox itself
    bwrap DESCRIPTOR COMMAND…     give bubblewrap a network
    launch-server PARENT          clone the sandboxes of a program that runs several commands
    forwarder                     make sockets in a command's network for the host program

It is started for every confined command, so it imports only what it needs.
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
    if sys.argv[1:2] == ["namespaces"]:
        from staddle.inside import namespace_launcher

        namespace_launcher.main(sys.argv[2:])
    elif sys.argv[1:2] == ["launch-server"]:
        from staddle.inside import launch_server

        launch_server.main(sys.argv[2:])
    elif sys.argv[1:2] == ["bwrap"]:
        from staddle.inside import bwrap_prelude

        bwrap_prelude.main(sys.argv[2:])
    elif sys.argv[1:2] == ["forwarder"]:
        from staddle.inside import forwarder

        forwarder.main()
    else:
        from staddle.inside.jail_exec import jail_exec

        jail_exec(sys.argv[1:])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)  # Ctrl-C before anything was started
