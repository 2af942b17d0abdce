"""The ways from the host into a sandbox's network: a connection to a server inside, a port of the host."""

from __future__ import annotations

from ..errors import InvalidCall, StaddleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from ..events import Event
    from .open.network import SandboxNetwork
    from .open_sandbox import OpenSandbox

#: Seconds that the host's own loopback may take.
_PATIENCE = 1.0


def is_hosts(inside: OpenSandbox) -> bool:
    """Whether the sandbox's network is the host's own."""
    return inside.decided.plan.network.mode == "open"


def connect(inside: OpenSandbox, port: int) -> socket:
    """A connection to a server in the sandbox, on its 127.0.0.1 or ::1."""
    from socket import create_connection, socket

    if is_hosts(inside):
        return create_connection(("localhost", port))
    return socket(fileno=_reach(inside).connect(inside.agent, port))


def expose(inside: OpenSandbox, port: int, host_port: int) -> int:
    """A port of the host's 127.0.0.1 that leads to `port` inside; `port` itself where it is the host's."""
    if is_hosts(inside):
        if host_port not in (0, port):
            raise InvalidCall(
                f"port {port} cannot be had at {host_port}",
                why="its network is the host's",
                fix=f"use {port}",
            )
        return port
    return _reach(inside).expose(inside.agent, port, host_port)


def has_port(inside: OpenSandbox, port: int) -> bool:
    """Whether a server inside listens at `port` of its loopback."""
    try:
        if not is_hosts(inside) and inside.network is not None:
            connect(inside, port).close()
            return True
    except (OSError, StaddleError):
        return False
    from socket import create_connection

    for address in ("127.0.0.1", "::1"):
        try:
            create_connection((address, port), _PATIENCE).close()
            return True
        except OSError:
            continue
    return False


def _reach(inside: OpenSandbox) -> SandboxNetwork:
    if inside.network is None:
        raise InvalidCall(
            "nothing leads into this sandbox",
            why=f"{inside.decided.enforced.backend} has no way into its network",
            fix="use the namespaces, bwrap or systemd backend",
        )
    return inside.network


class NetworkMethods:
    """The methods of a sandbox that lead into its network."""

    if TYPE_CHECKING:

        def _now(self) -> OpenSandbox: ...

    def connect(self, port: int) -> socket:
        """A connection to a server in the sandbox, at `port` of its 127.0.0.1 or ::1."""
        return connect(self._now(), port)

    def expose(self, port: int, host_port: int = 0) -> int:
        """A port of the host's 127.0.0.1 that leads to `port` inside; which one, if none was named."""
        return expose(self._now(), port, host_port)

    def events(self) -> tuple[Event, ...]:
        """Return the attempts on the network since the last call: allowed, refused, failed."""
        inside = self._now()
        return () if inside.network is None else inside.redacted(inside.network.events())
