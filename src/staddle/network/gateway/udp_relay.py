"""UDP, for addresses and names that are allowed with `udp://`.

Each pair of sender and destination address inside has its own flow. The flow has a socket outside that is
connected to the destination, so it receives datagrams from no other sender. It returns them as if the
destination itself had sent them.
"""

from __future__ import annotations

import _socket
import struct

from ..rules import synthetic
from ..rules.rules import decide, refused_alias
from .loop import INPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..rules.rules import Verdict
    from .context import GatewayContext

    Sender = tuple[Any, ...]

_FLOWS, _IDLE, _TURNS, _HELD = 256, 60.0, 64, 8
_LARGEST = 65536
_SOL_IPV6, _IP_PKTINFO, _IPV6_PKTINFO = 41, 8, 50
_V4_INFO = struct.Struct("i4s4s")  # struct in_pktinfo
_V6_INFO = struct.Struct("16si")  # struct in6_pktinfo


class UdpRelay:
    """All UDP flows of a sandbox."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._flows: dict[tuple[int, Sender, bytes], _UdpFlow] = {}
        context.loop.sweep(self._sweep)

    def serve(self, served: _socket.socket, port: int) -> None:
        """Relay datagrams that arrive on this socket, which is bound to `port` inside."""
        self._context.loop.watch(served.fileno(), lambda _: self._received(served, port), INPUT)

    def _received(self, served: _socket.socket, port: int) -> None:
        for _ in range(_TURNS):
            try:
                data, ancillary, _, sender = served.recvmsg(_LARGEST, 128)
            except OSError:
                return
            to = _destination(ancillary)
            if to is None:
                continue
            key = (served.fileno(), sender, to)
            flow = self._flows.get(key)
            if flow is None:
                flow = self._begin(served, sender, to, port)
                if flow is None:
                    continue
                self._flows[key] = flow
            flow.send(data)

    def _begin(self, served: _socket.socket, sender: Sender, to: bytes, port: int) -> _UdpFlow | None:
        context = self._context
        if len(self._flows) >= _FLOWS:
            return None
        name = context.addresses.name(to)
        if name is None and synthetic.is_ours(to):
            return None
        host = name or _socket.inet_ntop(_socket.AF_INET if len(to) == 4 else _socket.AF_INET6, to)
        verdict = decide(host, port, context.network, "udp")
        if context.is_inspected(name, port):  # HTTP/3
            verdict = verdict.replace(allowed=False, rule="its requests are inspected over TCP only")
        if not verdict.allowed:
            context.events.about("refused", verdict)
            return None
        flow = _UdpFlow(context, (served, sender, to), verdict, name)
        if name is None:
            flow.found((host,), "")
        else:
            context.dns_client.resolve(name, flow.found)
        return flow

    def close(self) -> None:
        """Close all flows. An allowed flow begins again with its next datagram."""
        for flow in self._flows.values():
            flow.close()
        self._flows.clear()

    def _sweep(self, now: float) -> bool:
        for key, flow in list(self._flows.items()):
            if now - flow.touched >= _IDLE or flow.failed:
                flow.close()
                del self._flows[key]
        return bool(self._flows)


class _UdpFlow:
    """The datagrams between one sender inside and one destination."""

    def __init__(
        self,
        context: GatewayContext,
        ends: tuple[_socket.socket, Sender, bytes],
        verdict: Verdict,
        name: str | None,
    ) -> None:
        self._context, self._verdict, self._name = context, verdict, name
        self._served, self._sender, self._to = ends
        self._outside: _socket.socket | None = None
        self._held: list[bytes] = []
        self.failed = False
        self.touched = context.loop.now

    def found(self, addresses: tuple[str, ...], why: str, aliases: tuple[str, ...] = ()) -> None:
        """Connect to the first allowed one of these addresses. `aliases` are the CNAMEs that led to them."""
        verdict = self._verdict
        refused = refused_alias(verdict.host, aliases, verdict.port, self._context.network, "udp")
        if refused is not None:
            self._context.events.about("refused", refused)
            addresses = ()
        for address in addresses:
            if self._name is not None:
                about = self._context.resolved(self._name, address, verdict.port, "udp")
                if not about.allowed:
                    self._context.events.about("refused", about)
                    continue
            family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
            try:
                outside = _socket.socket(
                    family, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
                )
                outside.connect((address, verdict.port))
            except OSError as error:
                why = error.strerror or ""
                continue
            self._outside = outside
            self._context.loop.watch(outside.fileno(), self._answered, INPUT)
            self._context.events.about("allowed", verdict)
            for data in self._held:
                self.send(data)
            self._held.clear()
            return
        self.failed = True
        if why:
            self._context.events.about("failed", verdict, why)

    def send(self, data: bytes) -> None:
        """Send a datagram, or keep it until the destination is resolved."""
        self.touched = self._context.loop.now
        budget = self._context.budget
        budget.moved += len(data)
        if budget.exhausted():
            return
        if self._outside is None:
            if len(self._held) < _HELD and not self.failed:
                self._held.append(data)
            return
        try:
            self._outside.send(data)
        except OSError:
            pass  # a datagram may be lost

    def close(self) -> None:
        """Close the outside socket."""
        if self._outside is not None:
            self._context.loop.forget(self._outside.fileno())
            self._outside.close()
            self._outside = None

    def _answered(self, _: int) -> None:
        for _turn in range(_TURNS):
            if self._outside is None:
                return
            try:
                data = self._outside.recv(_LARGEST)
                self.touched = self._context.loop.now
                self._context.budget.moved += len(data)
                self._served.sendmsg([data], [_source(self._to)], 0, self._sender)
            except OSError:
                return


def _destination(ancillary: list[tuple[int, int, bytes]]) -> bytes | None:
    """Return the address that a datagram was sent to."""
    for level, kind, data in ancillary:
        if level == 0 and kind == _IP_PKTINFO and len(data) >= _V4_INFO.size:
            found: bytes = _V4_INFO.unpack_from(data)[2]
            return found
        if level == _SOL_IPV6 and kind == _IPV6_PKTINFO and len(data) >= _V6_INFO.size:
            packed: bytes = _V6_INFO.unpack_from(data)[0]
            return packed
    return None


def _source(packed: bytes) -> tuple[int, int, bytes]:
    """Return the control message that sets the source address of an answer."""
    if len(packed) == 4:
        return 0, _IP_PKTINFO, _V4_INFO.pack(0, packed, bytes(4))
    return _SOL_IPV6, _IPV6_PKTINFO, _V6_INFO.pack(packed, 0)
