"""Keep a command with an open network from the host's abstract UNIX sockets.

Abstract sockets belong to the network namespace, which the sandbox then shares with the host. Landlock knows
who made a socket (ABI 6, Linux 6.12): a process of the sandbox reaches only the sandbox's own. A ruleset with
this scope alone does not restrict mounting, so it can be applied before bwrap starts:

  python -I -S .../abstract_sockets.py -- nsenter ... bwrap ...
"""

from __future__ import annotations

import os
import sys


def prefix() -> tuple[str, ...]:
    """The words to put before the launcher's command line; empty if this host cannot enforce it."""
    from ..description import scopes_sockets

    if not sys.executable or not scopes_sockets():
        return ()
    return os.path.realpath(sys.executable), "-I", "-S", os.path.abspath(__file__), "--"


def main() -> None:
    """Restrict this process, then exec the command after `--`. On any failure the command does not start."""
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
    from staddle.linux import landlock, process

    process.no_new_privs()
    with landlock.Ruleset(0, 0, landlock.bits({"abstract_unix_socket"}, "scope")) as rules:
        rules.restrict()
    os.execve(sys.argv[2], sys.argv[2:], dict(os.environ))  # noqa: S606 - never a shell


if __name__ == "__main__":
    main()
