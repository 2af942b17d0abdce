"""A non-blocking stub resolver for the gateway.

It asks the host's nameservers, and only about names that the policy allows. /etc/hosts comes first. Answers
are cached for their TTL, within bounds.
"""

from __future__ import annotations

import _socket
import os
import struct

from ..rules import dns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

    #: Called once with the addresses as text, the reason if there are none, and the aliases (CNAMEs).
    Found = Callable[[tuple[str, ...], str, tuple[str, ...]], None]

_PATIENCE = 2.0  # seconds for one server
_ROUNDS = 2
_AT_ONCE, _REMEMBERED, _WAITING = 64, 1024, 1024
_SHORTEST, _LONGEST, _FAILURE = 5.0, 300.0, 2.0
_MOST_ADDRESSES = 16
_LONGEST_STREAM = 65537
_STREAM, _DATAGRAM = _socket.SOCK_STREAM, _socket.SOCK_DGRAM


class DnsClient:
    """Resolves names to addresses. Asks about a name at most once at a time."""

    def __init__(
        self, loop: Loop, nameservers: tuple[tuple[str, int], ...], hosts: tuple[tuple[str, str], ...]
    ) -> None:
        self._loop, self._nameservers = loop, nameservers
        self._hosts: dict[str, list[str]] = {}
        for name, address in hosts:
            self._hosts.setdefault(name, []).append(address)
        self._known: dict[str, tuple[float, tuple[str, ...], str, tuple[str, ...]]] = {}
        self._asking: dict[str, _Lookup] = {}
        loop.sweep(self._sweep)

    def resolve(self, name: str, found: Found) -> None:
        """Find the addresses of `name` and pass them to `found`, at once if they are known."""
        if name in self._hosts:
            found(tuple(self._hosts[name]), "", ())
            return
        known = self._known.get(name)
        if known is not None and known[0] > self._loop.now:
            found(*known[1:])
            return
        lookup = self._asking.get(name)
        if lookup is not None:
            if len(lookup.waiting) >= _WAITING:
                found((), "too many wait for the same name", ())
            else:
                lookup.waiting.append(found)
            return
        if not self._nameservers or len(self._asking) >= _AT_ONCE:
            found((), "the host has no nameserver" if not self._nameservers else "too many names at once", ())
            return
        lookup = _Lookup(self._loop, name, self._nameservers, self._done)
        self._asking[name] = lookup
        lookup.waiting.append(found)
        lookup.ask()

    def _done(self, lookup: _Lookup, addresses: tuple[str, ...], why: str, ttl: float) -> None:
        del self._asking[lookup.name]
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        aliases = lookup.aliases()
        self._known[lookup.name] = (self._loop.now + ttl, addresses, why, aliases)
        for found in lookup.waiting:
            found(addresses, why, aliases)

    def _sweep(self, now: float) -> bool:
        for lookup in list(self._asking.values()):
            lookup.look_at_the_clock(now)
        return bool(self._asking)


class _Lookup:
    """The lookup of one name: a question for each address family, to one server after the other."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        servers: tuple[tuple[str, int], ...],
        done: Callable[[_Lookup, tuple[str, ...], str, float], None],
    ) -> None:
        self.name = name
        self.waiting: list[Found] = []
        self._loop, self._done = loop, done
        self._servers = list(servers) * _ROUNDS
        self._answers: dict[int, dns.DnsAnswer] = {}
        self._identities = {kind: struct.unpack("H", os.urandom(2))[0] for kind in (dns.A, dns.AAAA)}
        self._datagrams: _socket.socket | None = None
        self._streams: dict[int, _DnsClientStream] = {}
        self._deadline = 0.0
        self._server: tuple[str, int] = servers[0]

    def ask(self) -> None:
        """Ask the next server, or give up."""
        self._close()
        while self._servers:
            self._server = self._servers.pop(0)
            self._deadline = self._loop.now + _PATIENCE
            # A new socket for every name: its port is part of what a forger has to guess.
            try:
                self._datagrams = _open(_DATAGRAM, self._server)
                self._datagrams.connect(self._server)
                for kind in self._missing():
                    self._datagrams.send(self.question(kind))
            except OSError:
                self._close()
                continue
            self._loop.watch(self._datagrams.fileno(), self._received)
            return
        self._finish()

    def look_at_the_clock(self, now: float) -> None:
        """Try the next server when this one does not answer."""
        if now >= self._deadline:
            self.ask()

    def question(self, kind: int) -> bytes:
        """Return the DNS query for one address family."""
        return dns.query(self._identities[kind], self.name, kind)

    def aliases(self) -> tuple[str, ...]:
        """Return the aliases from all answers that lead from this name to its addresses."""
        return tuple(dict.fromkeys(alias for each in self._answers.values() for alias in each.aliases))

    def answered(self, kind: int, packet: bytes, over_tcp: bool) -> bool:
        """Process an answer. Returns True if the lookup is finished."""
        try:
            answer = dns.read_answer(packet, self._identities[kind], self.name, kind)
        except dns.DnsFormatError:
            return False  # another answer or a forged one: the real answer may still arrive
        if not answer.truncated or over_tcp:
            self._answers[kind] = answer
        elif kind not in self._streams:
            try:
                self._streams[kind] = _DnsClientStream(self._loop, self, kind, self._server)
            except OSError:
                pass  # no descriptor left: the next server is asked after the timeout
        if not self._is_complete():
            return False
        self._finish()
        return True

    def _missing(self) -> list[int]:
        return [kind for kind in (dns.A, dns.AAAA) if kind not in self._answers]

    def _received(self, _: int) -> None:
        """Read datagrams; on an error, ask the next server."""
        asking = self._datagrams
        while asking is not None and asking is self._datagrams:
            try:
                packet = asking.recv(65535)
            except BlockingIOError:
                return
            except OSError:
                self.ask()
                return
            for kind in self._missing():
                if self.answered(kind, packet, over_tcp=False):
                    return

    def _is_complete(self) -> bool:
        """Whether there are enough answers to connect. Does not wait for IPv6 once IPv4 has addresses."""
        first = self._answers.get(dns.A)
        return len(self._answers) == 2 or bool(first and first.addresses)

    def _finish(self) -> None:
        self._close()
        answers = [self._answers[kind] for kind in (dns.A, dns.AAAA) if kind in self._answers]
        addresses = tuple(
            _socket.inet_ntop(_socket.AF_INET if len(packed) == 4 else _socket.AF_INET6, packed)
            for answer in answers
            for packed in answer.addresses
        )[:_MOST_ADDRESSES]
        if addresses:
            ttl = min(answer.ttl for answer in answers if answer.addresses)
            self._done(self, addresses, "", max(_SHORTEST, min(float(ttl), _LONGEST)))
        elif not answers:
            self._done(self, (), "no nameserver of the host answered", _FAILURE)
        else:
            self._done(self, (), "the host's nameserver knows no address for it", _FAILURE)

    def _close(self) -> None:
        if self._datagrams is not None:
            self._loop.forget(self._datagrams.fileno())
            self._datagrams.close()
            self._datagrams = None
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


class _DnsClientStream:
    """One query over TCP, after an answer that was too long for a datagram."""

    def __init__(self, loop: Loop, lookup: _Lookup, kind: int, server: tuple[str, int]) -> None:
        self._loop, self._lookup, self._kind = loop, lookup, kind
        self._asked, self._held = False, b""
        self._socket = _open(_STREAM, server)
        loop.watch(self._socket.fileno(), self._told)
        try:
            self._socket.connect(server)
        except OSError:
            pass  # in progress; if it fails, the next server is asked after the timeout

    def close(self) -> None:
        """Stop watching the socket, and close it."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()

    def _told(self, _: int) -> None:
        try:
            if not self._asked:
                self._socket.send(dns.framed(self._lookup.question(self._kind)))
                self._asked = True
            while len(self._held) <= _LONGEST_STREAM:
                data = self._socket.recv(65536)
                if not data:
                    return
                self._held += data
                if len(self._held) >= 2 and len(self._held) >= 2 + struct.unpack_from(">H", self._held)[0]:
                    self._lookup.answered(self._kind, self._held[2:], over_tcp=True)
                    return
        except OSError:
            return  # no data yet, or a failure: the next server is asked after the timeout


def _open(kind: int, server: tuple[str, int]) -> _socket.socket:
    family = _socket.AF_INET6 if ":" in server[0] else _socket.AF_INET
    return _socket.socket(family, kind | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
