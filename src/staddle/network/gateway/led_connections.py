"""Names for redirected connections: those of programs inside that do not know the proxy of their sandbox.

The supervisor (`inside.landlock.connections`) redirects both their DNS queries over TCP and their connections
here. Queries are answered with a synthetic address, and a connection to that address goes to the name. See
`ipc.led_connection` for the first bytes of such a connection.
"""

from __future__ import annotations

import errno
import ipaddress
import threading
import time

from staddle.network.namespace.from_policy import exact_names
from staddle.network.rules import dns, synthetic
from staddle.network.rules.rules import may_ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from staddle.policy.network import Network

#: Idle timeout of a DNS connection in seconds.
_IDLE = 10.0


class ProxyNames:
    """The names of one sandbox and their synthetic addresses."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._addresses = synthetic.Addresses(exact_names(network))
        self._lock = threading.Lock()

    def meant(self, address: str) -> str | None:
        """Return the name for a synthetic address, or None. Other addresses are returned unchanged."""
        packed = ipaddress.ip_address(address).packed
        if not synthetic.is_ours(packed):
            return address
        with self._lock:
            return self._addresses.name(packed)

    def serve(self, client: socket.socket, held: bytes) -> None:
        """Answer the queries on a connection until it closes or is idle for too long."""
        client.settimeout(_IDLE)
        while True:
            while (message := dns.unframed(held)) is not None:
                packet, held = message
                with self._lock:
                    reply = dns.answer(packet, self._addresses, self._named, over_tcp=True)
                if reply is not None:
                    client.sendall(dns.framed(reply))
            data = client.recv(dns.LONGEST_QUERY)
            if not data:
                return
            held += data

    def _named(self, question: dns.DnsQuestion, name: str) -> bytes:
        verdict = may_ask(name, self._network)
        if not verdict.allowed:
            return dns.error_answer(question, dns.NO_SUCH_NAME)
        slot = self._addresses.slot(verdict.host, time.monotonic())
        if slot is None:
            return dns.error_answer(question, dns.SERVER_FAILURE)
        # No IPv6 address: programs with an IPv6 socket can map the IPv4 address.
        return dns.address_answer(question, synthetic.v4(slot), None)


def say(client: socket.socket, number: int) -> None:
    """Send the supervisor the errno of the connection, or 0."""
    client.sendall(bytes([number if 0 <= number < 256 else errno.EACCES]))
