"""With the network open, keep the host's abstract UNIX sockets out of reach.

They belong to the network namespace, which is then the host's. Landlock can tell who made a
socket (ABI 6, Linux 6.12): a process of the sandbox reaches its own and no other. A rule set
that says only this leaves mounting alone, so it can be put on before bwrap starts:

    python -I -S .../abstract_sockets.py -- nsenter ... bwrap ...
"""

from __future__ import annotations

import os
import sys


def prefix() -> tuple[str, ...]:
    """The words to put before the launcher's command line; none when this host cannot hold it."""
    from ..description import scopes_sockets

    if not sys.executable or not scopes_sockets():
        return ()
    return os.path.realpath(sys.executable), "-I", "-S", os.path.abspath(__file__), "--"


def main() -> None:
    """Restrict this process, then become the command after `--`. Whatever fails, it does not start."""
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
    from staddle.linux import landlock, process

    process.no_new_privs()
    with landlock.Ruleset(0, 0, landlock.bits({"abstract_unix_socket"}, "scope")) as rules:
        rules.restrict()
    os.execve(sys.argv[2], sys.argv[2:], dict(os.environ))  # noqa: S606 - never a shell


if __name__ == "__main__":
    main()
