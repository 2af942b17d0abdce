"""The resolver that programs inside ask, over UDP and TCP; see `rules.dns.answer` for what it says."""

from __future__ import annotations

import _socket

from ..rules import dns, synthetic
from ..rules.rules import may_ask
from .loop import INPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rules.rules import Verdict
    from .context import GatewayContext

#: Connections to the resolver at once, their idle time, and datagrams in one turn.
_STREAMS, _IDLE, _TURNS = 32, 10.0, 64
#: Names of which it is known whether they are allowed.
_REMEMBERED = 1024


class DnsServer:
    """Answers on the resolver's sockets."""

    def __init__(self, context: GatewayContext, v6: bool) -> None:
        self._context, self.v6 = context, v6
        self._streams: dict[int, _DnsServerStream] = {}
        self._known: dict[str, Verdict] = {}
        context.loop.sweep(self._sweep)

    def serve_datagrams(self, served: _socket.socket) -> None:
        """Answer what comes in here."""
        self._context.loop.watch(served.fileno(), lambda _: self._datagrams(served), INPUT)

    def serve_streams(self, listener: _socket.socket) -> None:
        """The same over TCP."""
        self._context.loop.watch(listener.fileno(), lambda _: self._accept(listener), INPUT)

    def answer(self, packet: bytes, over_tcp: bool = False) -> bytes | None:
        """The answer to one message; None when it deserves none."""
        return dns.answer(packet, self._context.addresses, self._named, over_tcp=over_tcp)

    def forget(self) -> None:
        """Forget what was decided about names: the rules are others now."""
        self._known.clear()

    def _named(self, question: dns.DnsQuestion, name: str) -> bytes:
        verdict = self._known.get(name)
        if verdict is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            verdict = self._known[name] = may_ask(name, self._context.network)
        # Where `on_connect` decides, it does so when the port is known.
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
                return  # no more for now; or a sender that does not take it

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
        """A stream has ended."""
        self._streams.pop(fd, None)

    def _sweep(self, now: float) -> bool:
        for stream in list(self._streams.values()):
            if now - stream.touched >= _IDLE:
                stream.close()
        return bool(self._streams)


class _DnsServerStream:
    """One TCP connection to the resolver: one message after the other, never more than one held."""

    def __init__(self, resolving: DnsServer, context: GatewayContext, stream: _socket.socket) -> None:
        self._resolving, self._loop, self._stream = resolving, context.loop, stream
        self._fd = stream.fileno()
        self._held = b""
        self.touched = context.loop.now
        context.loop.watch(self._fd, self._told, INPUT)

    def close(self) -> None:
        """End it."""
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
                # Answers are small: one that does not fit at once has a reader who does not read.
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
