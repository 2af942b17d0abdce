"""What a sandbox offers for its network: ways in, and what was tried on the way out."""

from __future__ import annotations

from ..errors import InvalidCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Protocol

    from ..events import Event
    from .open.network import SandboxNetwork
    from .open.open import SandboxHandle

    class _Inside(Protocol):
        opened: SandboxHandle


class Reachable:
    """The part of a sandbox that knows about its network."""

    if TYPE_CHECKING:

        def _now(self) -> _Inside: ...

    def connect(self, port: int) -> socket:
        """A connection to a server in the sandbox, at `port` of its 127.0.0.1."""
        from socket import socket

        opened = self._now().opened
        return socket(fileno=_reach(opened).connect(opened.link, port))

    def expose(self, port: int, host_port: int = 0) -> int:
        """A port of the host's 127.0.0.1 that leads to `port` inside; which one, if none was named."""
        opened = self._now().opened
        return _reach(opened).expose(opened.link, port, host_port)

    def events(self) -> tuple[Event, ...]:
        """What was tried on the network since the last call: allowed, refused, failed."""
        reach = self._now().opened.network
        return () if reach is None else reach.events()


def _reach(opened: SandboxHandle) -> SandboxNetwork:
    backend = opened.decided.enforced.backend
    if opened.decided.plan.network.mode == "open":
        raise InvalidCall(
            "nothing has to lead into this sandbox",
            why="its network is the host's",
            fix="connect to the port itself",
        )
    if opened.network is None:
        raise InvalidCall(
            "nothing leads into this sandbox",
            why=f"{backend} has no way into its network",
            fix="use the namespaces, bwrap or systemd backend",
        )
    return opened.network
