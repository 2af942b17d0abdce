"""Names for the HTTP proxy: it answers queries from inside, and looks names up outside.

Programs inside that do not know the proxy of their sandbox ask for names. The supervisor
(`inside.landlock.connections`) redirects both their DNS queries over TCP and their connections to the proxy.
Queries are answered with a synthetic address, and a connection to that address goes to the name. See
`ipc.led_connection` for the first bytes of such a connection.

A lookup is blocking, and asks the policy's nameservers. The gateway uses the non-blocking `dns_client`. Both
build queries and parse answers with the same code, because answers from a nameserver are untrusted.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import threading
import time

from staddle.network.namespace.from_policy import exact_names
from staddle.network.rules import dns, synthetic
from staddle.network.rules.rules import may_ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from staddle.policy.network import Network

#: Idle timeout of a DNS connection in seconds.
_IDLE = 10.0
#: The port of a nameserver.
PORT = 53
_PATIENCE = 2.0  # seconds for one server
_ROUNDS = 2
_MOST_ADDRESSES = 16


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


def lookup(name: str, nameservers: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Return the addresses of `name`, and the aliases that lead to them.

    They come from /etc/hosts, else from the first server that answers.
    """
    known = in_hosts_file(name)
    if known:
        return known, ()
    for server in nameservers * _ROUNDS:
        try:
            answers = [_ask(server, name, kind) for kind in (dns.A, dns.AAAA)]
        except OSError:
            continue
        families = zip((socket.AF_INET, socket.AF_INET6), answers, strict=True)
        found = [socket.inet_ntop(family, each) for family, answer in families for each in answer.addresses]
        return found[:_MOST_ADDRESSES], tuple(alias for answer in answers for alias in answer.aliases)
    return [], ()


def in_hosts_file(name: str) -> list[str]:
    """Return the addresses of `name` in /etc/hosts."""
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError:
        return []
    return [words[0] for words in lines if name in (word.lower() for word in words[1:])]


def _ask(server: str, name: str, kind: int) -> dns.DnsAnswer:
    """Ask one server for one address family. Raises OSError if it does not answer in time."""
    identity = int.from_bytes(os.urandom(2))
    question = dns.query(identity, name, kind)
    answer = _by_datagram(server, question, identity, name, kind)
    return _by_stream(server, question, identity, name, kind) if answer.truncated else answer


def _by_datagram(server: str, question: bytes, identity: int, name: str, kind: int) -> dns.DnsAnswer:
    deadline = time.monotonic() + _PATIENCE
    # A new socket for every query: an attacker who forges answers has to guess its port.
    with socket.socket(_family(server), socket.SOCK_DGRAM) as asking:
        asking.connect((server, PORT))
        asking.send(question)
        while (left := deadline - time.monotonic()) > 0:
            asking.settimeout(left)
            try:
                return dns.read_answer(asking.recv(65535), identity, name, kind)
            except dns.DnsFormatError:
                continue  # another answer or a forged one: the real answer may still arrive
    raise TimeoutError


def _by_stream(server: str, question: bytes, identity: int, name: str, kind: int) -> dns.DnsAnswer:
    with socket.create_connection((server, PORT), _PATIENCE) as asking:
        asking.sendall(dns.framed(question))
        with asking.makefile("rb") as file:
            head = file.read(2)
            if len(head) == 2:
                try:
                    return dns.read_answer(file.read(struct.unpack(">H", head)[0]), identity, name, kind)
                except dns.DnsFormatError as error:
                    raise OSError(None, str(error)) from error
    raise ConnectionResetError


def _family(server: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in server else socket.AF_INET
