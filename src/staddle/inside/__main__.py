"""`jail-exec`: confine this process as instructed, then become the command.

    python -I -S .../inside/__main__.py jail-exec WHERE

WHERE is the number of a descriptor, or the path of a file, with the instructions. Ends with
2 (arguments), 3 (the confinement failed) or 4 (the command could not be exec'd) when the
command did not start, and otherwise as the command does.

Other backends start the same program in other roles: `namespaces DESCRIPTOR`, which makes the
sandbox itself; `systemd-client DESCRIPTOR`, which stands for a unit, and `systemd-unit`, the
process in it; `bwrap DESCRIPTOR COMMAND…`, which gives bubblewrap a network; `forwarder`, which makes
sockets in a command's network for the host program.

Started for every confined command, so nothing is imported but what is needed.
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
    if sys.argv[1:2] == ["namespaces"]:
        from staddle.inside import namespace_launcher

        namespace_launcher.main(sys.argv[2:])
    elif sys.argv[1:2] == ["bwrap"]:
        from staddle.inside import bwrap_prelude

        bwrap_prelude.main(sys.argv[2:])
    elif sys.argv[1:2] == ["systemd-client"]:
        from staddle.inside import systemd_client

        systemd_client.main(sys.argv[2:])
    elif sys.argv[1:2] == ["systemd-unit"]:
        from staddle.inside import systemd_unit

        systemd_unit.main()
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
