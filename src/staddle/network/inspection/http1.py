"""HTTP/1.1 between a client and a server. Each head is read, and what is sent is written anew from its parts.

A body with a length is passed on by counting its bytes. h11 reads unusual heads, and bodies in chunks.
"""

from __future__ import annotations

from functools import partial

import h11

from .heads import RequestHead, ResponseHead, read_request, read_response, write_request
from .request import MOST_HELD, InspectedRequest, RequestRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .context import RelayContext
    from .substitution import Headers

#: The longest head. The answer of a slow head is a timeout of the connection.
_LONGEST_HEAD = 64 << 10
#: Bytes of later requests that are read while one is in progress. Reading shows when the client has gone.
_MOST_EARLY = 64 << 10
_REASONS = {400: b"Bad Request", 403: b"Forbidden", 421: b"Misdirected Request"}
_UPGRADE = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
#: A body is in chunks, or ends with the connection. Else the number of bytes that are still to come.
_CHUNKED, _UNTIL_END = -1, -2


class Http1Relay:
    """The requests of one connection, one after the other."""

    def __init__(self, connection: RelayContext) -> None:
        self._connection = connection
        self._down = h11.Connection(h11.SERVER, _LONGEST_HEAD)  # reads one request
        self._up: h11.Connection | None = None  # reads an unusual answer
        self._early = self._late = b""  # bytes of the client and of the server that nobody has read
        self._has_ended = False  # the server
        self._raw = self._closing = False
        self._clear()

    def _clear(self) -> None:
        self._request: InspectedRequest | None = None
        self._to_come = 0  # of the request's body
        self._answer: int | None = None  # the same of the answer; None until its head is there
        self._is_read = False  # the whole request
        self._is_sent = self._is_answered = False  # the head of the request, and of the answer
        self._persists = True  # both sides, after this request
        self._is_old = False  # the client speaks HTTP/1.0
        self._chunks = False  # whether the client gets chunks
        self._waiting = False  # for a person or a newer secret
        self._held: list[Callable[[], None]] | None = None  # the answer to a request that may be sent again
        self._held_bytes = 0

    def _current(self) -> InspectedRequest:
        assert self._request is not None  # noqa: S101 - its answer is handled
        return self._request

    # What the connection asks.

    def wants_client(self) -> bool:
        """Whether to read more from the client."""
        return self._raw or (not self._closing and len(self._early) < _MOST_EARLY)

    def wants_server(self) -> bool:
        """Whether to read more from the server."""
        return not self._waiting and not self._closing

    def is_idle(self) -> bool:
        """Whether no request is in progress, and no head has begun."""
        return self._request is None and not self._has_head()

    def is_reading_head(self) -> bool:
        """Whether a head has begun and is not complete."""
        return self._request is None and self._has_head()

    def _has_head(self) -> bool:
        return bool(self._early or self._down.trailing_data[0])

    def from_client(self, data: bytes) -> None:
        """Take bytes of the client; none: it has ended, and with it the request in progress."""
        if self._raw:
            self._relay_raw(data, to_server=True)
        elif not data:
            self.end("the client closed the connection")
            self._connection.close()
        else:
            self._early += data
            self.advance()

    def from_server(self, data: bytes) -> None:
        """Take bytes of the server; none: it has ended."""
        if self._raw:
            self._relay_raw(data, to_server=False)
        elif data and not self._is_sent:  # without a request, such as 408 before it closes
            self._close()
        else:
            self._late += data
            self._has_ended = self._has_ended or not data
            self.advance()

    def end(self, why: str) -> None:
        """Report the request that is cut off."""
        if self._request is not None:
            self._request.report("allowed" if self._raw else "failed", "" if self._raw else why)
            self._request = None

    def advance(self) -> None:
        """Handle all that both sides have sent."""
        while not self._closing and not self._raw:
            try:
                if not self._client_event() and not self._server_event():
                    return
            except RequestRefused as error:
                self._refuse(error.status, str(error))

    def _close(self) -> None:
        self._closing = True
        self._connection.finish()

    # The client's side.

    def _client_event(self) -> bool:
        request = self._request
        if self._waiting or self._is_read or not (self._early or self._to_come == _CHUNKED):
            return False
        data, self._early = self._early, b""
        if request is not None and self._to_come != _CHUNKED:
            piece, self._early = data[: self._to_come], data[self._to_come :]
            self._to_come -= len(piece)
            self._is_read = not self._to_come
            self._to_server(request.request_data(piece))
            return True
        usual = read_request(data) if request is None and not self._down.trailing_data[0] else None
        if usual is not None:
            head, self._early = usual
            self._begin(head)
            return True
        if data:
            self._down.receive_data(data)
        try:
            event = self._down.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestRefused(error.error_status_hint, f"the request is not valid HTTP: {error}") from None
        if isinstance(event, h11.Request):
            headers = [(bytes(name), bytes(value)) for name, value in event.headers]
            if _length(headers, otherwise=0) != _CHUNKED:
                self._renew()
            method, target = event.method.decode("latin-1"), event.target.decode("latin-1")
            self._begin(RequestHead(method, target, headers, event.http_version))
        elif isinstance(event, h11.Data) and request is not None:
            self._to_server(*_chunk(request.request_data(bytes(event.data))))
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            self._to_server(_last_chunk(request.request_trailers(list(event.headers))))
            self._is_read = True
            self._renew()
        else:
            return False
        return True

    def _renew(self) -> None:
        """h11 has read what it is to read. Another reader, which knows nothing of it, gets what follows."""
        self._early = self._down.trailing_data[0]
        self._down = h11.Connection(h11.SERVER, _LONGEST_HEAD)

    def _begin(self, head: RequestHead) -> None:
        connection = self._connection
        method, target, headers, version = head
        upgrades = self._is_websocket(method, headers)
        protocol = "websocket" if upgrades else "HTTP/1.1"
        request = self._request = InspectedRequest(
            connection.inspector, connection.place, protocol, method, target
        )
        self._is_old = version < b"1.1"
        self._persists = not _closes(head)
        # The framing is read: it is one of these, and never both.
        self._to_come = _length(headers, otherwise=0)
        self._is_read = not self._to_come
        # h11 bounds a head that comes in several reads only.
        if len(target) + sum([len(name) + len(value) + 4 for name, value in headers]) > _LONGEST_HEAD:
            raise RequestRefused(431, f"the head of the request is longer than {_LONGEST_HEAD >> 10} KiB")
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        verdict = request.decide(hosts if len(hosts) == 1 else [], headers, upgrades=upgrades)
        if verdict.allowed:
            self._forward()
        elif verdict.undecided and request.ask(lambda allowed: self._answered(allowed, verdict.why)):
            self._waiting = True
        else:
            raise RequestRefused(403, verdict.why)

    @staticmethod
    def _is_websocket(method: str, headers: Headers) -> bool:
        names = {name for name, _ in headers}
        upgrades = b"upgrade" in names and [value.lower() for name, value in headers if name == b"upgrade"]
        return (
            method == "GET"
            and upgrades == [b"websocket"]
            and b"sec-websocket-key" in names
            and not names & {b"content-length", b"transfer-encoding"}
        )

    def _answered(self, allowed: bool, why: str) -> None:
        if self._request is None:
            return
        self._waiting = False
        try:
            self._request.answered(allowed, why)
            self._forward()
        except RequestRefused as error:
            self._refuse(error.status, str(error))
        self._connection.resume()

    def _forward(self) -> None:
        """Send the head of the request to the server."""
        request = self._current()
        if self._connection.failure:
            raise RequestRefused(502, self._connection.failure)
        target, headers = request.outgoing()
        if self._to_come == _CHUNKED:
            headers.append((b"transfer-encoding", b"chunked"))
        if request.protocol == "websocket":
            headers += _UPGRADE
        self._up = None
        try:
            head = write_request(request.method, target, headers)
        except ValueError as error:
            raise RequestRefused(400, f"the request is not valid HTTP: {error}") from None
        self._is_sent = True
        self._to_server(head)

    def _to_server(self, *parts: bytes) -> None:
        server = self._connection.server
        if server is None:
            raise RequestRefused(502, self._connection.failure or "the server has closed the connection")
        for part in parts:
            server.send(part)

    # The server's side.

    def _server_event(self) -> bool:
        request = self._request
        if self._waiting or request is None or not self._is_sent:
            return False
        if self._answer is not None and self._answer != _CHUNKED:
            return self._counted()
        reader = self._up
        if reader is None:
            if not self._late and not self._has_ended:
                return False
            usual = read_response(self._late)
            if usual is not None:
                self._begin_answer(*usual)
                return True
            reader = self._up = _answer_reader(request)
        if self._late:
            data, self._late = self._late, b""
            reader.receive_data(data)
        elif self._has_ended:
            reader.receive_data(b"")
        try:
            event = reader.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestRefused(502, f"the answer is not valid HTTP: {error}") from None
        if isinstance(event, h11.Response | h11.InformationalResponse):
            headers = [(bytes(name), bytes(value)) for name, value in event.headers]
            answer = ResponseHead(event.status_code, bytes(event.reason), headers, event.http_version)
            self._begin_answer(answer, reader.trailing_data[0])
        elif isinstance(event, h11.Data):
            self._hold(self._answer_data, bytes(event.data), len(event.data))
        elif isinstance(event, h11.EndOfMessage):
            self._late = reader.trailing_data[0]
            self._finish(list(event.headers))
        elif isinstance(event, h11.ConnectionClosed):
            raise RequestRefused(502, "the server closed the connection without an answer")
        else:
            return False
        return True

    def _begin_answer(self, head: ResponseHead, rest: bytes) -> None:
        """Find out how the answer ends. Its lengths and codings are checked."""
        request, status = self._current(), head.status
        if status >= 200:
            bodiless = request.is_bodiless(status)
            self._answer = 0 if bodiless else _length(head.headers, otherwise=_UNTIL_END)
            self._persists = self._persists and not _closes(head) and self._answer != _UNTIL_END
            if request.is_stale(status):
                self._held, self._held_bytes = [], 0
        if status == 101 or (self._answer is not None and self._answer != _CHUNKED):
            self._late = rest
        self._hold(self._answer_head, head)

    def _counted(self) -> bool:
        """Pass on what is there of an answer with a length, or of one until the end of the connection."""
        left = self._answer
        assert left is not None  # noqa: S101 - the caller has checked
        data = self._late
        if left == 0 or (left == _UNTIL_END and self._has_ended and not data):
            self._finish([])
            return True
        if not data:
            if self._has_ended:
                raise RequestRefused(502, "the server closed the connection in the middle of an answer")
            return False
        if left == _UNTIL_END:
            self._late = b""
        else:
            data, self._late = data[:left], data[left:]
            self._answer = left - len(data)
        self._hold(self._answer_data, data, len(data))
        if self._answer == 0:
            self._finish([])
        return True

    def _hold(self, step: Callable[[Any], None], part: object, size: int = 0) -> None:
        """Pass a part of the answer on, or keep it as long as the request may be sent again."""
        if self._held is None:
            step(part)
            return
        self._held.append(partial(step, part))
        self._held_bytes += size
        if self._held_bytes > MOST_HELD:
            self._release()

    def _finish(self, trailers: Headers) -> None:
        """The server has answered. Something after an answer is the answer to no request."""
        self._persists = self._persists and not self._late and not self._has_ended
        self._hold(self._answer_end, trailers)
        if self._held is not None:
            if self._is_read and self._persists:
                self._waiting = True
                self._current().refresh(self._refreshed)
            else:
                self._release()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        if self._request is not None:
            self._request.kept = None
        for step in held:
            step()

    def _refreshed(self, newer: bool) -> None:
        request = self._request
        if request is None:
            return
        self._waiting = False
        try:
            if newer and request.kept is not None:
                kept, request.kept, self._held, self._answer = request.kept, None, None, None
                self._forward()
                request.kept = None  # once
                for piece in kept:
                    self._to_server(*(_chunk(piece) if self._to_come == _CHUNKED else (piece,)))
                if self._to_come == _CHUNKED:
                    self._to_server(_last_chunk([]))
            else:
                self._release()
        except RequestRefused as error:
            self._refuse(error.status, str(error))
        self._connection.resume()

    def _answer_head(self, head: ResponseHead) -> None:
        request, status = self._current(), head.status
        headers = request.response_head(status, head.headers)
        if status == 101:
            headers += _UPGRADE
        elif status < 200:
            if self._is_old:
                return
        else:
            if self._answer == _CHUNKED:  # it outweighs a length, and both would be ambiguous
                headers = [(name, value) for name, value in headers if name != b"content-length"]
            self._persists = self._persists and self._is_read
            names = [name for name, _ in headers]
            if b"content-length" not in names and not request.is_bodiless(status):
                self._chunks = not self._is_old
                self._persists = self._persists and self._chunks
                headers += [(b"transfer-encoding", b"chunked")] if self._chunks else []
            if not self._persists:
                headers.append((b"connection", b"close"))
            self._is_answered = True
        client = self._connection.client
        client.send(_head(status, head.reason, headers))
        if status == 101:
            self._raw = True
            early, late, self._early, self._late = self._early, self._late, b"", b""
            for data, to_server in ((early, True), (late, False)):
                if data:
                    self._relay_raw(data, to_server=to_server)

    def _answer_data(self, data: bytes) -> None:
        data = self._current().response_data(data)
        for part in _chunk(data) if self._chunks else (data,):
            self._connection.client.send(part)

    def _answer_end(self, trailers: Headers) -> None:
        request, client = self._current(), self._connection.client
        rest, trailers = request.response_end(), request.response_trailers(trailers)
        for part in (*_chunk(rest), _last_chunk(trailers)) if self._chunks else (rest,):
            client.send(part)
        client.flush()  # the client goes on while this is reported
        request.report("allowed")
        self._next(self._persists and self._is_read)

    def _next(self, goes_on: bool) -> None:
        """Begin with the next request if both sides can."""
        self._clear()
        if not goes_on:
            self._close()

    # Refusals.

    def _refuse(self, status: int, why: str) -> None:
        """Answer instead of the server, or cut an answer that has begun."""
        connection, request = self._connection, self._request
        if request is None:  # not even a head
            request = InspectedRequest(connection.inspector, connection.place, "HTTP/1.1", "", "/")
        request.status = request.status if self._is_answered else status
        request.report("failed" if status == 502 else "refused", why)
        if self._is_answered:
            self._closing = True
            connection.abort()
            return
        usable = self._is_read and self._persists and not self._is_sent and not connection.failure
        text, headers = request.refusal(why)
        headers += [] if usable else [(b"connection", b"close")]
        connection.client.send(_head(status, _REASONS.get(status, b"Refused"), headers))
        connection.client.send(text)
        self._next(usable)

    # After an upgrade.

    def _relay_raw(self, data: bytes, *, to_server: bool) -> None:
        connection, request = self._connection, self._request
        if request is None or connection.server is None or not data:
            connection.finish()
            return
        try:
            request.raw(len(data))
        except RequestRefused as error:
            request.report("refused", str(error))
            connection.abort()
            return
        if to_server:
            request.sent += len(data)
            connection.server.send(data)
        else:
            request.received += len(data)
            connection.client.send(data)


def _length(headers: Iterable[tuple[bytes, bytes]], *, otherwise: int) -> int:
    found = otherwise
    for name, value in headers:
        if name == b"transfer-encoding":
            return _CHUNKED
        if name == b"content-length":
            found = int(value)
    return found


def _closes(head: RequestHead | ResponseHead) -> bool:
    listed = [value.lower() for name, value in head.headers if name == b"connection"]
    return head.version < b"1.1" or b"close" in b",".join(listed)


def _answer_reader(request: InspectedRequest) -> h11.Connection:
    """A reader that knows as much of the request as it needs to find the end of the answer."""
    headers = [(b"host", b"-"), *(_UPGRADE if request.protocol == "websocket" else ())]
    reader = h11.Connection(h11.CLIENT, _LONGEST_HEAD)
    reader.send(h11.Request(method=request.method, target="/", headers=headers))
    return reader


def _head(status: int, reason: bytes, headers: Headers) -> bytes:
    lines = [name + b": " + value for name, value in headers]
    return b"\r\n".join([b"HTTP/1.1 %d %b" % (status, reason), *lines, b"", b""])


def _chunk(data: bytes) -> tuple[bytes, ...]:
    return (b"%x\r\n" % len(data), data, b"\r\n") if data else ()


def _last_chunk(trailers: Headers) -> bytes:
    return b"\r\n".join([b"0", *(name + b": " + value for name, value in trailers), b"", b""])
