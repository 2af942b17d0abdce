"""HTTP/2 between a client and a server. Frames are read by h2 and written anew by h2.

A stream of the client has a stream of its own at the server, made once the request is allowed. Windows pass
the pace of a reader on: bytes are acknowledged to their sender when the other side has accepted them.
"""

from __future__ import annotations

from collections import deque

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from .request import MOST_HELD, InspectedRequest, RequestRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .context import RelayContext
    from .substitution import Headers

STREAMS = 100
_WINDOW, _STREAM_WINDOW = 1 << 20, 256 << 10
#: Streams that a client may reset before it has an answer, in the life of a connection with N finished ones.
_RESETS = 200
#: Frames with settings in the life of a connection. h2 keeps what each changes until the next head.
_SETTINGS = 1000
#: Smaller pieces of a body are joined: each costs more memory than the window counts.
_SMALL = 1024
_PSEUDO = (b":method", b":scheme", b":authority", b":path")
_CODES = h2.errors.ErrorCodes


class _Body:
    """Bytes on their way to one side, and how its stream ends."""

    def __init__(self) -> None:
        #: Pieces, and the bytes to acknowledge to their sender with each.
        self.pieces: deque[tuple[bytes, int]] = deque()
        self.is_ended = self.is_sent = False
        self.trailers: Headers = []

    def add(self, piece: bytes, length: int) -> None:
        """Keep a piece until it is sent."""
        if self.pieces and len(self.pieces[-1][0]) < _SMALL:
            last, counted = self.pieces.pop()
            piece, length = last + piece, counted + length
        self.pieces.append((piece, length))


class _RequestStream:
    """One request with its numbers on both sides (server: 0 until it is sent)."""

    def __init__(self, number: int, request: InspectedRequest) -> None:
        self.down, self.up = number, 0
        self.request = request
        self.to_server, self.to_client = _Body(), _Body()
        self.answered = self.ended = self.waiting = False
        self.held: list[h2.events.Event] | None = None
        self.held_bytes = 0


class Http2Relay:
    """All requests of one connection."""

    def __init__(self, connection: RelayContext) -> None:
        self._connection = connection
        self._down = _connection(client=False)
        self._up = _connection(client=True)
        self._streams: dict[int, _RequestStream] = {}
        self._by_up: dict[int, _RequestStream] = {}
        self._queue: deque[_RequestStream] = deque()  # for a free stream of the server
        self._resets = self._finished = self._changes = 0
        self._going = False  # the server takes no new streams
        self._closing = False
        self._flush()

    # What the connection asks.

    def wants_client(self) -> bool:
        """Whether to read more from the client."""
        return not self._closing

    def wants_server(self) -> bool:
        """Whether to read more from the server."""
        return not self._closing

    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return not self._streams

    def is_reading_head(self) -> bool:
        """Whether a head has begun: h2 bounds these by itself, and the idle time ends them."""
        return False

    def from_client(self, data: bytes) -> None:
        """Take bytes of the client; none: it has ended."""
        if not data:
            self._connection.close()
            return
        self._receive(self._down, data, self._client_event, "client")

    def _receive(
        self, side: h2.connection.H2Connection, data: bytes, take: Callable[[h2.events.Event], None], who: str
    ) -> None:
        if self._closing:
            return
        try:
            events = side.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._give_up(f"the {who}'s HTTP/2 is not valid: {error}")
            return
        for event in events:
            self._changes += isinstance(event, h2.events.RemoteSettingsChanged)
            if self._changes > _SETTINGS:
                self._give_up(f"the {who} changes its settings too often")
            if self._closing:
                return
            take(event)
        self._pump()

    def from_server(self, data: bytes) -> None:
        """Take bytes of the server; none: it has ended."""
        if not data:
            self._going = True
            for stream in list(self._streams.values()):
                if stream.up or stream in self._queue:
                    self._fail(stream, "the server closed the connection")
            self._pump()
            return
        self._receive(self._up, data, self._server_event, "server")

    def end(self, why: str) -> None:
        """Report the requests that are cut off."""
        for stream in self._streams.values():
            stream.request.report("failed", why)
            stream.ended = True
        self._streams.clear()
        self._by_up.clear()

    # Events.

    def _client_event(self, event: h2.events.Event) -> None:
        number = getattr(event, "stream_id", None) or 0
        stream = self._streams.get(number)
        if isinstance(event, h2.events.RequestReceived):
            self._begin(number, list(event.headers or ()))
        elif isinstance(event, h2.events.DataReceived):
            length = event.flow_controlled_length or 0
            if stream is None or (stream.answered and not stream.up):
                self._acknowledge(self._down, length, number)
            else:
                self._guard(stream, lambda: self._request_data(stream, bytes(event.data or b""), length))
        elif isinstance(event, h2.events.TrailersReceived) and stream is not None:
            trailers = [(bytes(n), bytes(v)) for n, v in event.headers or ()]
            self._guard(stream, lambda: self._request_trailers(stream, trailers))
        elif isinstance(event, h2.events.StreamEnded) and stream is not None:
            stream.to_server.is_ended = True
        elif isinstance(event, h2.events.StreamReset) and stream is not None:
            self._resets += 1
            stream.request.report("failed", "the client gave up")
            self._reset(self._up, stream.up, _CODES.CANCEL)
            self._forget(stream)
            if self._resets > _RESETS + self._finished:
                self._give_up("the client resets too many requests")
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.end("the client ended the connection")  # h2 sends nothing after it
            self._close()

    def _server_event(self, event: h2.events.Event) -> None:
        number = getattr(event, "stream_id", None) or 0
        stream = self._by_up.get(number)
        if isinstance(event, h2.events.ConnectionTerminated):
            self._going = True
            last = event.last_stream_id or 0
            for other in list(self._by_up.values()):
                if other.up > last:
                    self._fail(other, "the server does not answer this request any more")
            return
        if stream is None:
            if isinstance(event, h2.events.DataReceived):
                self._acknowledge(self._up, event.flow_controlled_length or 0, number)
            return
        if isinstance(event, h2.events.ResponseReceived) and stream.request.is_stale(_status(event)):
            stream.held, stream.held_bytes = [], 0
        if stream.held is not None and not isinstance(event, h2.events.WindowUpdated):
            self._hold(stream, event)
        else:
            self._guard(stream, lambda: self._to_client(stream, event))

    def _guard(self, stream: _RequestStream, work: Any) -> None:
        try:
            work()
        except RequestRefused as error:
            self._refuse(stream, error.status, str(error))

    # Requests.

    def _begin(self, number: int, fields: list[tuple[bytes, bytes]]) -> None:
        connection = self._connection
        headers = [(bytes(name), bytes(value)) for name, value in fields]
        pseudo = dict(header for header in headers if header[0] in _PSEUDO)
        method, target, authority, scheme = (
            pseudo.get(name, b"").decode("latin-1")
            for name in (b":method", b":path", b":authority", b":scheme")
        )
        request = InspectedRequest(connection.inspector, connection.place, "HTTP/2", method, target)
        stream = self._streams[number] = _RequestStream(number, request)
        self._guard(stream, lambda: self._judge(stream, headers, authority, scheme))

    def _judge(self, stream: _RequestStream, headers: Headers, authority: str, scheme: str) -> None:
        request = stream.request
        names = [name for name, _ in headers if name[:1] == b":"]
        if sorted(names) != sorted({*names}) or set(names) - set(_PSEUDO) or scheme != "https":
            raise RequestRefused(400, "its pseudo-headers are not those of a request to a web server")
        rest = [(name, value) for name, value in headers if name[:1] != b":"]
        if any(name in (b"connection", b"transfer-encoding", b"upgrade") for name, _ in rest):
            raise RequestRefused(400, "it has a header of HTTP/1.1's connections")
        hosts = [value.decode("latin-1") for name, value in rest if name == b"host"]
        hosts += [authority] if authority else []
        verdict = request.decide(hosts, [each for each in rest if each[0] != b"host"])
        if verdict.allowed:
            self._forward(stream)
        elif verdict.undecided and request.ask(lambda allowed: self._answered(stream, allowed, verdict.why)):
            stream.waiting = True
        else:
            raise RequestRefused(403, verdict.why)

    def _answered(self, stream: _RequestStream, allowed: bool, why: str) -> None:
        stream.waiting = False
        if stream.ended:
            return

        def go_on() -> None:
            stream.request.answered(allowed, why)
            self._forward(stream)

        self._guard(stream, go_on)
        self._pump()
        self._connection.resume()

    def _forward(self, stream: _RequestStream) -> None:
        """Send the head to the server, or wait until it takes another stream."""
        if self._connection.failure or self._going or self._connection.server is None:
            raise RequestRefused(
                502, self._connection.failure or "the server takes no more requests on this connection"
            )
        if self._up.open_outbound_streams >= self._up.remote_settings.max_concurrent_streams:
            self._queue.append(stream)
            return
        target, headers = stream.request.outgoing()
        place = stream.request
        authority = place.host if place.port == 443 else f"{place.host}:{place.port}"
        if (b"te", b"trailers") in stream.request.headers:
            headers.append((b"te", b"trailers"))
        pseudo = [b":method", place.method.encode(), b":scheme", b"https"]
        pseudo += [b":authority", authority.encode(), b":path", target.encode()]
        stream.up = self._up.get_next_available_stream_id()
        self._by_up[stream.up] = stream
        body = stream.to_server
        ends = body.is_ended and not body.pieces and not body.trailers
        try:
            self._up.send_headers(stream.up, [*zip(pseudo[::2], pseudo[1::2], strict=True), *headers], ends)
        except h2.exceptions.ProtocolError as error:
            raise RequestRefused(400, f"the request is not valid HTTP/2: {error}") from None
        body.is_sent = ends

    def _request_data(self, stream: _RequestStream, data: bytes, length: int) -> None:
        try:
            stream.to_server.add(stream.request.request_data(data), length)
        except RequestRefused:
            self._acknowledge(self._down, length, stream.down)
            raise

    def _request_trailers(self, stream: _RequestStream, trailers: Headers) -> None:
        stream.to_server.trailers = stream.request.request_trailers(trailers)

    # Answers.

    def _to_client(self, stream: _RequestStream, event: h2.events.Event) -> None:
        request, body = stream.request, stream.to_client
        if isinstance(event, h2.events.ResponseReceived | h2.events.InformationalResponseReceived):
            status = _status(event)
            headers = [(bytes(n), bytes(v)) for n, v in event.headers or () if n[:1] != b":"]
            headers = request.response_head(status, headers)
            stream.answered = isinstance(event, h2.events.ResponseReceived)
            try:
                self._down.send_headers(stream.down, [(b":status", str(status).encode()), *headers])
            except h2.exceptions.ProtocolError as error:
                raise RequestRefused(502, f"the answer cannot be passed on: {error}") from None
        elif isinstance(event, h2.events.DataReceived):
            length = event.flow_controlled_length or 0
            try:
                body.add(request.response_data(bytes(event.data or b"")), length)
            except RequestRefused:
                self._acknowledge(self._up, length, stream.up)
                raise
        elif isinstance(event, h2.events.TrailersReceived):
            trailers = [(bytes(n), bytes(v)) for n, v in event.headers or ()]
            body.trailers = request.response_trailers(trailers)
        elif isinstance(event, h2.events.StreamEnded):
            body.add(request.response_end(), 0)
            body.is_ended = True
        elif isinstance(event, h2.events.StreamReset):
            request.report("failed", "the server reset the request")
            self._reset(self._down, stream.down, event.error_code or _CODES.CANCEL)
            self._forget(stream)

    def _hold(self, stream: _RequestStream, event: h2.events.Event) -> None:
        held = stream.held
        assert held is not None  # noqa: S101 - the caller has checked
        held.append(event)
        if isinstance(event, h2.events.DataReceived):
            stream.held_bytes += 1 + (event.flow_controlled_length or 0)
        if isinstance(event, h2.events.StreamReset) or stream.held_bytes > MOST_HELD:
            self._release(stream)
        elif isinstance(event, h2.events.StreamEnded):
            if not stream.to_server.is_sent:
                self._release(stream)
                return
            stream.waiting = True
            stream.request.refresh(lambda newer: self._refreshed(stream, newer))

    def _release(self, stream: _RequestStream) -> None:
        held, stream.held = stream.held or [], None
        stream.request.kept = None
        for event in held:
            if not stream.ended:
                self._guard(stream, lambda event=event: self._to_client(stream, event))

    def _refreshed(self, stream: _RequestStream, newer: bool) -> None:
        stream.waiting = False
        if stream.ended:
            return
        request = stream.request
        if newer and request.kept is not None:
            for event in stream.held or ():
                if isinstance(event, h2.events.DataReceived):
                    self._acknowledge(self._up, event.flow_controlled_length or 0, stream.up)
            self._by_up.pop(stream.up, None)
            kept, request.kept, stream.held, stream.up = request.kept, None, None, 0
            stream.to_server = _Body()
            stream.to_server.pieces.extend((piece, 0) for piece in kept)
            stream.to_server.is_ended = True
            self._guard(stream, lambda: self._forward(stream))
            request.kept = None  # once
        else:
            self._release(stream)
        self._pump()
        self._connection.resume()

    # Ends.

    def _refuse(self, stream: _RequestStream, status: int, why: str) -> None:
        """Answer instead of the server, or reset an answer that has begun. Other streams go on."""
        request = stream.request
        if not stream.answered:
            request.status = status
        request.report("failed" if status == 502 else "refused", why)
        self._reset(self._up, stream.up, _CODES.CANCEL)
        if stream.answered:
            self._reset(self._down, stream.down, _CODES.INTERNAL_ERROR)
        else:
            text, headers = request.refusal(why)
            try:
                self._down.send_headers(stream.down, [(b":status", str(status).encode()), *headers])
                self._down.send_data(stream.down, text, end_stream=True)
                if not stream.to_server.is_ended and self._down.streams[stream.down].open:
                    self._down.reset_stream(stream.down, _CODES.NO_ERROR)
            except (h2.exceptions.ProtocolError, KeyError):
                self._reset(self._down, stream.down, _CODES.CANCEL)
        self._forget(stream)

    def _fail(self, stream: _RequestStream, why: str) -> None:
        self._refuse(stream, 502, why)

    def _forget(self, stream: _RequestStream) -> None:
        """Forget a stream, and acknowledge what was not passed on."""
        stream.ended = True
        for body, source, number in (
            (stream.to_server, self._down, stream.down),
            (stream.to_client, self._up, stream.up),
        ):
            for _, length in body.pieces:
                self._acknowledge(source, length, number)
            body.pieces.clear()
        for event in stream.held or ():
            if isinstance(event, h2.events.DataReceived):
                self._acknowledge(self._up, event.flow_controlled_length or 0, stream.up)
        stream.held = None
        self._streams.pop(stream.down, None)
        self._by_up.pop(stream.up, None)
        if stream in self._queue:
            self._queue.remove(stream)

    def _give_up(self, why: str) -> None:
        if not self._streams:
            self._connection.inspector.connection_failed(self._connection.place, why)
        self.end(why)
        self._flush()
        self._close()

    def _close(self) -> None:
        self._closing = True
        self._connection.finish()

    @staticmethod
    def _reset(side: h2.connection.H2Connection, number: int, code: int) -> None:
        if number:
            try:
                side.reset_stream(number, code)
            except (h2.exceptions.ProtocolError, KeyError):
                pass  # it has ended

    @staticmethod
    def _acknowledge(side: h2.connection.H2Connection, length: int, number: int) -> None:
        if length and number:
            try:
                side.acknowledge_received_data(length, number)
            except (h2.exceptions.ProtocolError, KeyError, ValueError):
                pass  # the stream or connection has ended

    # Sending.

    def _pump(self) -> None:
        """Send what the windows allow, and what the connections have to say."""
        while (
            self._queue and self._up.open_outbound_streams < self._up.remote_settings.max_concurrent_streams
        ):
            stream = self._queue.popleft()
            self._guard(stream, lambda stream=stream: self._forward(stream))
        for stream in list(self._streams.values()):
            if stream.up:
                self._send(self._up, stream.up, stream.to_server, self._down, stream.down)
            if stream.answered:
                self._send(self._down, stream.down, stream.to_client, self._up, stream.up)
                if stream.to_client.is_sent:
                    stream.request.report("allowed")
                    self._finished += 1
                    if not stream.to_server.is_ended:
                        self._reset(self._up, stream.up, _CODES.CANCEL)
                        self._reset(self._down, stream.down, _CODES.NO_ERROR)
                    self._forget(stream)
        self._flush()

    def _send(
        self, side: h2.connection.H2Connection, number: int, body: _Body, source: Any, source_number: int
    ) -> None:
        try:
            while body.pieces and not body.is_sent:
                piece, length = body.pieces[0]
                if piece:  # what is empty needs no room, and there can be less than none
                    room = min(side.local_flow_control_window(number), side.max_outbound_frame_size)
                    if room <= 0:
                        return
                    side.send_data(number, piece[:room])
                    if len(piece) > room:
                        body.pieces[0] = piece[room:], length
                        continue
                body.pieces.popleft()
                self._acknowledge(source, length, source_number)
            if body.is_ended and not body.pieces and not body.is_sent:
                body.is_sent = True
                if body.trailers:
                    side.send_headers(number, body.trailers, end_stream=True)
                else:
                    side.end_stream(number)
        except (h2.exceptions.ProtocolError, KeyError):
            body.is_sent = True  # the stream has ended; its event says why

    def _flush(self) -> None:
        self._connection.client.send(self._down.data_to_send())
        data = self._up.data_to_send()
        if self._connection.server is not None:
            self._connection.server.send(data)


def _connection(*, client: bool) -> h2.connection.H2Connection:
    found = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client, header_encoding=None))
    codes = h2.settings.SettingCodes
    values: dict[h2.settings.SettingCodes, int] = {
        codes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
        codes.MAX_HEADER_LIST_SIZE: 64 << 10,
    }
    if client:
        values[codes.ENABLE_PUSH] = 0
    else:
        values[codes.MAX_CONCURRENT_STREAMS] = STREAMS
    # `update` would promise values that the first frame does not contain.
    found.local_settings = h2.settings.Settings(client=client, initial_values=values)
    found.initiate_connection()
    found.increment_flow_control_window(_WINDOW)
    return found


def _status(event: Any) -> int:
    found = dict(event.headers or ()).get(b":status", b"")
    return int(found) if found.isdigit() else 0
