"""Names for the connections that are led to the proxy of a sandbox, of programs inside that know of no proxy.

Such a program asks a nameserver over TCP, and connects to the address that it is given. Its supervisor leads
both here (`inside.landlock.connections`): the question is answered with an address that stands for the name,
and a connection to that address is one to the name. See `ipc.led_connection` for how one begins.
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

#: Seconds without a question.
_IDLE = 10.0


class ProxyNames:
    """The names of one sandbox, and the addresses that stand for them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._addresses = synthetic.Addresses(exact_names(network))
        self._lock = threading.Lock()

    def meant(self, address: str) -> str | None:
        """The name that an address stands for; None for one of ours that stands for none."""
        packed = ipaddress.ip_address(address).packed
        if not synthetic.is_ours(packed):
            return address
        with self._lock:
            return self._addresses.name(packed)

    def serve(self, client: socket.socket, held: bytes) -> None:
        """Answer the questions on a connection until it is closed, or nothing is asked."""
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
        # No address of IPv6: whoever has such a socket maps one of IPv4.
        return dns.address_answer(question, synthetic.v4(slot), None)


def say(client: socket.socket, number: int) -> None:
    """Tell the supervisor how it went."""
    client.sendall(bytes([number if 0 <= number < 256 else errno.EACCES]))
