"""The parts of a gateway that its connections, its DNS server and its UDP relay share."""

from __future__ import annotations

import ipaddress

from ...hostnames import embedded
from ...linux.netlink import Netlink
from ...policy.network import Network
from ..rules import synthetic
from ..rules.rules import resolved
from .host_channel import EventSender
from .loop import Loop
from .tcp_relay import Budget

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from ...hostnames import HostRule
    from ..rules.rules import Protocol, Verdict
    from .dns_client import DnsClient
    from .host_channel import Approvals
    from .inspector import InspectorSocket

#: Number of cached decisions.
MOST_DECISIONS = 1024


class GatewayContext:
    """Policy, event loop and services of one gateway. The settings add `approvals` and `dns_client`."""

    approvals: Approvals
    dns_client: DnsClient

    def __init__(self, socket: _socket.socket) -> None:
        self.loop = Loop()
        self.events = EventSender(self.loop, socket)
        self.network = Network.deny()
        self.addresses = synthetic.Addresses(())
        self.budget = Budget()
        #: Opened before the gateway confines itself, because it cannot create such a socket afterwards.
        self._routes = Netlink()
        #: Entries of hosts that the HTTP inspector serves, and the socket to it.
        self.inspected: tuple[HostRule, ...] = ()
        self.inspector: InspectorSocket | None = None
        self._answers: dict[tuple[str, str, int, Protocol, bool], Verdict] = {}

    def resolved(self, name: str, address: str, port: int, protocol: Protocol = "tcp") -> Verdict:
        """Return the verdict on connecting to `address` for `name`."""
        parsed = ipaddress.ip_address(address)
        own = any(self._routes.is_own(each.packed) for each in (parsed, *embedded(parsed)))
        key = (name, address, port, protocol, own)
        known = self._answers.get(key)
        if known is None:
            if len(self._answers) >= MOST_DECISIONS:
                self._answers.clear()
            known = self._answers[key] = resolved(name, address, port, self.network, protocol, own=own)
        return known

    def is_inspected(self, name: str | None, port: int) -> bool:
        """Whether connections to this name go to the HTTP inspector."""
        return name is not None and any(rule.matches(name, port) for rule in self.inspected)

    def ended(self, connection: object) -> None:
        """Called when a connection has closed, so that another one fits."""
