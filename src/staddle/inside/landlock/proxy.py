"""The HTTP proxy of a sandbox under Landlock: a child of the launcher, outside the sandbox's domain.

It has the rights of the sandbox's user, who can neither signal nor trace it, and ends with the launcher. It
sees the host's files, not the sandbox's view, so names are resolved as on the host.
"""

from __future__ import annotations

import os

from ...linux import process
from ..child import live, release_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ipc.exec_spec import ExecSpec


def start(spec: ExecSpec, others: tuple[int, ...], become: Callable[[], None]) -> None:
    """Fork the proxy, if the specification has one, before the sandbox has its own files.

    `others` are our descriptors that the proxy must close; `become` makes it the sandbox's user.
    """
    if not spec.proxy:
        return
    listener, settings = spec.proxy
    launcher = os.getpid()
    if os.fork() == 0:
        live(lambda: _serve(listener, settings, launcher, others, become), lambda _: 1)
    for fd in spec.proxy:
        os.close(fd)


def _serve(
    listener: int, settings: int, launcher: int, others: tuple[int, ...], become: Callable[[], None]
) -> int:
    for fd in others:  # at once, so that no reader of them waits for us
        if fd >= 0:
            os.close(fd)
    release_streams()
    # Import all of it now: the user that we become may not be able to read this package.
    import encodings.idna  # noqa: F401 - getaddrinfo encodes names with it

    from ... import hostnames  # noqa: F401
    from ...ipc import led_connection  # noqa: F401
    from ...network.gateway import http_proxy, proxy_names, tcp_relay  # noqa: F401
    from ...network.rules import rules, sniff  # noqa: F401
    from ...policy import network  # noqa: F401

    become()
    process.death_signal(process.SIGKILL)  # afterwards, because a change of identity clears it
    if os.getppid() != launcher:
        return 1
    http_proxy.serve(listener, settings)
    return 0
