"""The resolver for programs inside, over UDP and TCP. `rules.dns.answer` composes the answers."""

from __future__ import annotations

import _socket

from ..rules import dns, synthetic
from ..rules.rules import may_ask
from .loop import INPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rules.rules import Verdict
    from .context import GatewayContext

#: Simultaneous TCP connections, their idle timeout in seconds, and datagrams in one turn.
_STREAMS, _IDLE, _TURNS = 32, 10.0, 64
#: Number of names with a cached verdict.
_REMEMBERED = 1024


class DnsServer:
    """Answers queries on the resolver's sockets."""

    def __init__(self, context: GatewayContext, v6: bool) -> None:
        self._context, self.v6 = context, v6
        self._streams: dict[int, _DnsServerStream] = {}
        self._known: dict[str, Verdict] = {}
        context.loop.sweep(self._sweep)

    def serve_datagrams(self, served: _socket.socket) -> None:
        """Answer queries on this UDP socket."""
        self._context.loop.watch(served.fileno(), lambda _: self._datagrams(served), INPUT)

    def serve_streams(self, listener: _socket.socket) -> None:
        """Answer queries on connections to this TCP listener."""
        self._context.loop.watch(listener.fileno(), lambda _: self._accept(listener), INPUT)

    def answer(self, packet: bytes, over_tcp: bool = False) -> bytes | None:
        """Return the answer to one query, or None if it gets no answer."""
        return dns.answer(packet, self._context.addresses, self._named, over_tcp=over_tcp)

    def forget(self) -> None:
        """Forget all cached verdicts, because the rules have changed."""
        self._known.clear()

    def _named(self, question: dns.DnsQuestion, name: str) -> bytes:
        verdict = self._known.get(name)
        if verdict is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            verdict = self._known[name] = may_ask(name, self._context.network)
        # `on_connect` decides later, when the port is known.
        if not verdict.allowed and not self._context.approvals.can(verdict):
            self._context.events.about("refused", verdict)
            return dns.error_answer(question, dns.NO_SUCH_NAME)
        slot = self._context.addresses.slot(verdict.host, self._context.loop.now)
        if slot is None:
            self._context.events.about("failed", verdict, "too many names have an address already")
            return dns.error_answer(question, dns.SERVER_FAILURE)
        return dns.address_answer(question, synthetic.v4(slot), synthetic.v6(slot) if self.v6 else None)

    def _datagrams(self, served: _socket.socket) -> None:
        for _ in range(_TURNS):
            try:
                packet, sender = served.recvfrom(dns.LONGEST_QUERY + 1)
                answer = self.answer(packet)
                if answer is not None:
                    served.sendto(answer, sender)
            except OSError:
                return  # no more datagrams, or the sender does not receive

    def _accept(self, listener: _socket.socket) -> None:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        accepted = _socket.socket(fileno=fd)
        if len(self._streams) >= _STREAMS:
            accepted.close()
            return
        accepted.setblocking(False)
        self._streams[fd] = _DnsServerStream(self, self._context, accepted)

    def closed(self, fd: int) -> None:
        """Called when a stream has closed."""
        self._streams.pop(fd, None)

    def _sweep(self, now: float) -> bool:
        for stream in list(self._streams.values()):
            if now - stream.touched >= _IDLE:
                stream.close()
        return bool(self._streams)


class _DnsServerStream:
    """One TCP connection to the resolver. It processes one query at a time."""

    def __init__(self, resolving: DnsServer, context: GatewayContext, stream: _socket.socket) -> None:
        self._resolving, self._loop, self._stream = resolving, context.loop, stream
        self._fd = stream.fileno()
        self._held = b""
        self.touched = context.loop.now
        context.loop.watch(self._fd, self._told, INPUT)

    def close(self) -> None:
        """Close the connection."""
        self._loop.forget(self._fd)
        self._stream.close()
        self._resolving.closed(self._fd)

    def _told(self, _: int) -> None:
        try:
            data = self._stream.recv(dns.LONGEST_QUERY)
            self._held += data
            while True:
                message = dns.unframed(self._held)
                if message is None:
                    break
                self._held = message[1]
                answer = self._resolving.answer(message[0], over_tcp=True)
                # Answers are small. If one does not fit into the send buffer, the client does not read.
                if answer is not None and self._stream.send(dns.framed(answer)) != len(answer) + 2:
                    raise OSError("it does not read")
            if data:
                self.touched = self._loop.now
                return
        except BlockingIOError:
            pass
        except (OSError, dns.DnsFormatError):
            pass
        self.close()
