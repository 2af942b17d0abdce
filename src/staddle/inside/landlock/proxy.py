"""The HTTP proxy of a sandbox under Landlock: a child of the launcher, outside the sandbox's domain.

It has the rights of the sandbox's user, who can neither signal nor trace it, and ends with the launcher.
"""

from __future__ import annotations

import os

from ...linux import process
from ..child import live, release_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.exec_spec import ExecSpec


def load() -> None:
    """Import all that it needs: who we become may not be able to read this package."""
    import encodings.idna  # noqa: F401 - getaddrinfo encodes names with it

    from ...network.gateway import dns_lookup, http_proxy  # noqa: F401
    from ...network.rules import rules, sniff  # noqa: F401
    from ...policy import hosts, network  # noqa: F401


def start(spec: ExecSpec, keep: tuple[int, ...] = ()) -> None:
    """Fork it, if there is to be one. `keep`: descriptors of ours that are not for it."""
    if not spec.proxy:
        return
    listener, settings = spec.proxy
    launcher = os.getpid()
    if os.fork() == 0:
        live(lambda: _serve(listener, settings, launcher, keep), lambda _: 1)
    for fd in spec.proxy:
        os.close(fd)


def _serve(listener: int, settings: int, launcher: int, others: tuple[int, ...]) -> int:
    process.death_signal(process.SIGKILL)
    if os.getppid() != launcher:
        return 1
    load()
    for fd in others:
        if fd >= 0:
            os.close(fd)
    release_streams()
    from ...network.gateway.http_proxy import serve

    serve(listener, settings)
    return 0
