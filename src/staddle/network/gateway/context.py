"""The parts of a gateway that its connections, its DNS server and its UDP relay share."""

from __future__ import annotations

from ...policy.network import Network
from ..rules import synthetic
from ..rules.rules import resolved
from .event_sender import EventSender
from .loop import Loop
from .tcp_relay import Budget

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from ..rules.rules import Verdict
    from .approvals import Approvals
    from .dns_client import DnsClient

#: Decisions that are remembered.
MOST_DECISIONS = 1024


class GatewayContext:
    """Policy, event loop and services of one gateway. Those without a value here come with the settings."""

    approvals: Approvals
    dns_client: DnsClient

    def __init__(self, socket: _socket.socket) -> None:
        self.loop = Loop()
        self.events = EventSender(self.loop, socket)
        self.network = Network.deny()
        self.addresses = synthetic.Addresses(())
        self.budget = Budget()
        self._answers: dict[tuple[str, str, int], Verdict] = {}

    def resolved(self, name: str, address: str, port: int) -> Verdict:
        """Whether this address may be dialled over TCP for a name."""
        known = self._answers.get((name, address, port))
        if known is None:
            if len(self._answers) >= MOST_DECISIONS:
                self._answers.clear()
            known = self._answers[name, address, port] = resolved(name, address, port, self.network)
        return known

    def ended(self, connection: object) -> None:
        """A connection has ended: there is room for another one."""
