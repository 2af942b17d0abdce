"""The network of a sandbox, as its agent has it: made beforehand, handed out on request."""

from __future__ import annotations

from ...ipc.network_spec import decoded
from ...linux import loopback
from ...network.namespace import setup, socket_handoff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.network_spec import NetworkRow


class AgentNetwork:
    """Sockets of the sandbox's network namespace. Needs CAP_NET_ADMIN over it."""

    def __init__(self, rows: tuple[NetworkRow, ...]) -> None:
        """Bring loopback up, and make what the policy needs besides."""
        self._ready: socket_handoff.PreparedSockets | None = None
        if rows:
            self._ready = setup.prepare(decoded(rows))
        else:  # the usual case, with as little of us as possible: every sandbox has this in memory
            loopback.up()

    def hand_over(self, socket: int) -> None:
        """Send the sockets that were made, once, to the other end."""
        ready, self._ready = self._ready, None
        if ready is not None:
            socket_handoff.hand_over(socket, ready)

    def answer(self, socket: int, wish: bytes) -> None:
        """Serve a request of the host program: a connection to a server inside, more sockets."""
        if socket_handoff.is_forward_request(wish):
            socket_handoff.answer(socket, wish)
