"""One inspected connection: read the offer, shake hands with the server, then with the client, then relay."""

from __future__ import annotations

import _socket
from functools import partial

from ..gateway.loop import ENDING
from .endpoint import MOST_UNSENT, ClientTls, Endpoint, Offer, ServerTls, TlsFailed
from .http1 import Http1Relay
from .http2 import Http2Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .context import InspectionContext

#: Seconds for handshakes, for a head, without a byte, and for a client to read the last answer.
_HANDSHAKES, _HEAD, _IDLE, _LAST = 20.0, 10.0, 300.0, 5.0
_LONGEST_OPENING = 64 << 10
#: Reads of one connection before others get their turn.
_TURNS = 8
_HANDSHAKE_RECORD = 0x16
_HTTP = frozenset(("h2", "http/1.1", "http/1.0"))


class InspectedConnection:
    """A connection from the gateway's message to its close. `place` is (name, port, encrypted)."""

    def __init__(
        self,
        inspector: InspectionContext,
        sockets: list[_socket.socket],
        name: str,
        port: int,
        opening: bytes,
    ) -> None:
        self.inspector = inspector
        encrypted = opening[:1] == bytes([_HANDSHAKE_RECORD])
        self.place = (name, port, encrypted)
        self.client = Endpoint(sockets[0], b"" if encrypted else opening)
        self.server: Endpoint | None = Endpoint(sockets[1])
        #: Why there is no server to ask, if so.
        self.failure = ""
        self._opening, self._offer = opening, Offer()
        self._relay: Http1Relay | Http2Relay | None = None
        self._state = "offer" if encrypted else "relay"
        self._closed = self._queued = self._ending = False
        self._deadline = inspector.loop.now + _HANDSHAKES
        self._touched = inspector.loop.now
        self._head_since = 0.0

    def begin(self) -> None:
        """Watch both sockets."""
        for endpoint in (self.client, self.server):
            if endpoint is not None:
                self.inspector.loop.watch(endpoint.socket.fileno(), partial(self._woken, endpoint))
        if self._state == "relay":
            if self._opening.startswith(b"PRI * HTTP/2"):
                self._fail("HTTP/2 without TLS is not inspected; use HTTP/1.1 or https")
                self.close()
                return
            self._relay = Http1Relay(self)
        self.resume()

    def resume(self) -> None:
        """Continue with both sides soon."""
        if not self._queued and not self._closed:
            self._queued = True
            self.inspector.loop.soon(self._run)

    def _woken(self, endpoint: Endpoint, events: int) -> None:
        endpoint.readable = True
        endpoint.ending = endpoint.ending or bool(events & ENDING)
        self._touched = self.inspector.loop.now
        self._run()

    def _run(self) -> None:
        self._queued = False
        if self._closed:
            return
        try:
            if self._state in ("offer", "server", "client"):
                self._shake_hands()
            if self._state == "relay":
                self._move()
            if self._state == "last":
                self._read_out()
        except (OSError, TlsFailed) as error:
            self._cut(str(error) if isinstance(error, TlsFailed) else error.strerror or "closed")
        except Exception as error:  # one hostile message ends its own connection only
            self._fail(f"a bug of the inspector, please report it: {type(error).__name__} {_where(error)}")
            self._cut("a bug of the inspector")

    # Handshakes.

    def _shake_hands(self) -> None:
        name = self.place[0]
        if self._state == "offer":
            if not self._read_offer():
                return
            protocols: list[str] = [each for each in ("h2", "http/1.1") if each in self._offer.protocols]
            assert self.server is not None  # noqa: S101 - nothing has closed it yet
            self.server.tls = self.inspector.servers.start(name, protocols)
            self._state = "server"
        if self._state == "server":
            if not self._shake(self.server):
                return
            offered = self._offer.protocols
            tls = self.server.tls if self.server is not None else None
            chosen = tls.protocol() if isinstance(tls, ServerTls) else ""
            if not chosen:  # the client is to read why
                chosen = "h2" if "h2" in offered and "http/1.1" not in offered else "http/1.1"
            # A client of HTTP/1.0 may offer its own name. The relay answers it in its version.
            names = [each for each in (chosen, "http/1.0") if each in offered]
            self._offer.chosen = names[0] if names else ""
            self.client.tls = self.inspector.clients.start(name, self._offer)
            self.client.tls.feed(self._opening)
            self._opening = b""
            self._state = "client"
        if self._state == "client" and self._shake(self.client):
            is_h2 = self._offer.chosen == "h2"
            self._relay = Http2Relay(self) if is_h2 else Http1Relay(self)
            self._state = "relay"

    def _read_offer(self) -> bool:
        """Whether the ClientHello is complete. A handshake that is thrown away reads it."""
        while True:
            self._offer = Offer()
            probe = self.inspector.clients.start(self.place[0], self._offer)
            probe.feed(self._opening)
            try:
                probe.handshake()
            except TlsFailed as error:
                if not self._offer.is_read:
                    self.client.put(probe.take())
                    raise TlsFailed(f"the client's handshake failed: {error}") from None
            if self._offer.is_read or probe.take():
                break
            if len(self._opening) > _LONGEST_OPENING:
                raise TlsFailed("the client's handshake does not begin")
            data = self.client.raw()
            if data is None:
                return False
            if not data:
                raise TlsFailed("the client ended before its handshake")
            self._opening += data
        self._offer.is_read = True
        asked = probe.name()
        if asked is not None and asked.lower().removesuffix(".") != self.place[0]:
            raise TlsFailed(f"the client asks for {asked[:253]!r}, not for {self.place[0]}")
        if self._offer.protocols and not _HTTP & set(self._offer.protocols):
            raise TlsFailed("the client speaks no HTTP")
        return True

    def _shake(self, endpoint: Endpoint | None) -> bool:
        """Whether the handshake is done, or the server's has failed."""
        if endpoint is None:
            return True
        tls = endpoint.tls
        assert tls is not None  # noqa: S101 - the caller has begun it
        try:
            while True:
                done = tls.handshake()
                endpoint.push()
                if done:
                    endpoint.fresh = True
                    return True
                data = endpoint.raw()
                if data is None:
                    return False
                if not data:
                    raise TlsFailed("it closed the connection")
                tls.feed(data)
        except (TlsFailed, OSError) as error:
            if isinstance(tls, ClientTls):
                try:
                    endpoint.push()
                except OSError:
                    pass
                raise TlsFailed(_about_client(str(error))) from None
            self.failure = f"TLS with {self.place[0]} failed: {error}"
            self._drop_server()
            return True

    # Relaying.

    def _move(self) -> None:
        relay = self._relay
        assert relay is not None  # noqa: S101 - this state has one
        self._flush()
        client = self.client
        for _ in range(_TURNS):
            moved = False
            if (client.readable or client.fresh) and relay.wants_client() and not self._is_full():
                data = client.receive()
                if data is not None:
                    moved = True
                    relay.from_client(data)
            server = self.server  # none after a close
            if server is None or not (server.readable or server.fresh):
                pass
            elif relay.wants_server() and not self._is_full():
                data = server.receive()
                moved = moved or data is not None
                if data:
                    relay.from_server(data)
                elif data is not None and not server.orderly:
                    self._truncated()
                elif data is not None:
                    relay.from_server(data)
                    self._drop_server()
                    if relay.is_idle():
                        self.finish()
            self._flush()
            if self._state != "relay" or self._closed:
                return
            server = self.server
            if not moved or not (client.readable or (server is not None and server.readable)):
                break
        else:
            self.resume()
        if self._ending and not self.client.unsent:
            self._last()

    def _flush(self) -> None:
        if self._closed:
            return
        for endpoint in (self.client, self.server):
            if endpoint is not None and endpoint.unsent:
                endpoint.flush()

    def _is_full(self) -> bool:
        return self.client.unsent > MOST_UNSENT or (
            self.server is not None and self.server.unsent > MOST_UNSENT
        )

    def _truncated(self) -> None:
        """The server ended without TLS's end: an answer without a length may be cut."""
        relay = self._relay
        if relay is not None and not relay.is_idle():
            self._cut("the server cut the connection")
        else:
            self.finish()
            self._drop_server()

    def finish(self) -> None:
        """Close once the client has everything that was sent."""
        if not self._ending:
            self._deadline = self.inspector.loop.now + _IDLE
        self._ending = True
        if not self.client.unsent:
            self._last()

    def _last(self) -> None:
        """Say that no more comes. A close with unread input would take the last answer back."""
        self._drop_server()
        self.client.finish()
        self._state = "last"
        self._deadline = self.inspector.loop.now + _LAST
        self.resume()

    def _read_out(self) -> None:
        for _ in range(_TURNS):
            data = self.client.raw()
            if data is None:
                return
            if not data:
                self.close()
                return
        self.resume()

    def abort(self) -> None:
        """Close so that the client sees that the answer is not complete."""
        self._cut("")

    def _cut(self, why: str) -> None:
        if self._relay is not None:
            self._relay.end(why)
        elif why:
            self._fail(why)
        try:
            self.client.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _NO_LINGER)
        except OSError:
            pass
        self.close()

    def _fail(self, why: str) -> None:
        self.inspector.connection_failed(self.place, why)

    def _drop_server(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            self.inspector.loop.forget(server.socket.fileno())
            server.socket.close()

    def close(self) -> None:
        """Close both sides."""
        if self._closed:
            return
        self._closed = True
        if self._relay is not None:
            self._relay.end("the connection was closed")
        self._drop_server()
        self.inspector.loop.forget(self.client.socket.fileno())
        self.client.socket.close()
        self.inspector.ended(self)

    def look_at_the_clock(self, now: float) -> None:
        """Close a connection that takes too long."""
        relay = self._relay
        if self._state != "relay" or relay is None:
            if now > self._deadline:
                self._cut("" if self._state == "last" else "the handshakes took too long")
            return
        self._head_since = (self._head_since or now) if relay.is_reading_head() else 0.0
        if self._head_since and now - self._head_since > _HEAD:
            self._fail("the head of a request took too long")
            self._cut("")
        elif now - self._touched > _IDLE or (self._ending and now > self._deadline):
            self._cut("nothing came for too long")


#: SO_LINGER with no time: close() resets.
_NO_LINGER = b"\1\0\0\0\0\0\0\0"


def _where(error: BaseException) -> str:
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return f"at {where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""


def _about_client(why: str) -> str:
    lowered = why.lower()
    if any(word in lowered for word in ("unknown ca", "certificate", "it closed", "unexpected end", "reset")):
        return f"the client does not trust the certificate of this sandbox; it may pin its own ({why})"
    return f"the client's handshake failed: {why}"
