"""HTTP/1.1 between a client and a server. Each message is read by h11 and written anew by h11."""

from __future__ import annotations

import h11

from .request import InspectedRequest, RequestRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .context import RelayContext
    from .substitution import Headers

#: The longest head. The answer of a slow head is a timeout of the connection.
_LONGEST_HEAD = 64 << 10
#: The largest refused answer of a stale secret that is kept while the newer value is waited for.
_MOST_HELD = 64 << 10
_REASONS = {400: b"Bad Request", 403: b"Forbidden", 421: b"Misdirected Request"}


class Http1Relay:
    """The requests of one connection, one after the other."""

    def __init__(self, connection: RelayContext) -> None:
        self._connection = connection
        self._down = h11.Connection(h11.SERVER, _LONGEST_HEAD)
        self._up = h11.Connection(h11.CLIENT, _LONGEST_HEAD)
        self._request: InspectedRequest | None = None
        self._is_sent = False  # whether the server has the head of the request
        self._waiting = False  # for a person or a newer secret
        self._held: list[h11.Event] | None = None  # the answer to a request that may be sent again
        self._held_bytes = 0
        self._raw = False
        self._closing = False

    # What the connection asks.

    def wants_client(self) -> bool:
        """Whether to read more from the client."""
        if self._raw:
            return True
        return not self._waiting and not self._closing and self._down.their_state in (h11.IDLE, h11.SEND_BODY)

    def wants_server(self) -> bool:
        """Whether to read more from the server."""
        return not self._waiting and not self._closing

    def is_idle(self) -> bool:
        """Whether no request is in progress, and no head has begun."""
        return self._request is None and not self._down.trailing_data[0]

    def is_reading_head(self) -> bool:
        """Whether a head has begun and is not complete."""
        return self._request is None and bool(self._down.trailing_data[0])

    def from_client(self, data: bytes) -> None:
        """Take bytes of the client; none: it has ended."""
        if self._raw:
            self._relay_raw(data, to_server=True)
            return
        if not data and self._request is None:
            self._connection.close()
            return
        self._down.receive_data(data)
        self.advance()

    def from_server(self, data: bytes) -> None:
        """Take bytes of the server; none: it has ended."""
        if self._raw:
            self._relay_raw(data, to_server=False)
            return
        try:
            self._up.receive_data(data)
        except RuntimeError:  # after its end
            return
        self.advance()

    def end(self, why: str) -> None:
        """Report the request that is cut off."""
        if self._request is not None:
            self._request.report("allowed" if self._raw else "failed", "" if self._raw else why)
            self._request = None

    def advance(self) -> None:
        """Handle all complete events of both sides."""
        while not self._closing and not self._raw:
            try:
                if not self._client_event() and not self._server_event():
                    return
            except RequestRefused as error:
                self._refuse(error.status, str(error))

    # The client's side.

    def _client_event(self) -> bool:
        if self._waiting:
            return False
        try:
            event = self._down.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestRefused(error.error_status_hint, f"the request is not valid HTTP: {error}") from None
        if not isinstance(event, h11.Event):
            return False
        if isinstance(event, h11.Request):
            self._begin(event)
        elif isinstance(event, h11.Data):
            if self._request is not None:
                self._to_server(h11.Data(self._request.request_data(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            if self._request is not None:
                self._to_server(h11.EndOfMessage(headers=self._request.request_trailers(list(event.headers))))
        else:  # ConnectionClosed
            if self._request is None:
                self._connection.close()
            return False
        return True

    def _begin(self, event: h11.Request) -> None:
        connection = self._connection
        headers = [(bytes(name), bytes(value)) for name, value in event.headers]
        method, target = event.method.decode("latin-1"), event.target.decode("latin-1")
        upgrades = self._is_websocket(method, headers)
        protocol = "websocket" if upgrades else "HTTP/1.1"
        request = self._request = InspectedRequest(
            connection.inspector, connection.place, protocol, method, target
        )
        self._is_sent = False
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
        upgrades = [value.lower() for name, value in headers if name == b"upgrade"]
        names = {name for name, _ in headers}
        return (
            method == "GET"
            and upgrades == [b"websocket"]
            and b"sec-websocket-key" in names
            and not names & {b"content-length", b"transfer-encoding"}
        )

    def _answered(self, allowed: bool, why: str) -> None:
        self._waiting = False
        if self._request is None:
            return
        try:
            if not allowed:
                raise RequestRefused(403, f"{why}, and it was not allowed when asked")
            self._request.rule = "allowed when asked"
            self._forward()
        except RequestRefused as error:
            self._refuse(error.status, str(error))
        self._connection.resume()

    def _forward(self) -> None:
        """Send the head of the request to the server."""
        request = self._request
        assert request is not None  # noqa: S101 - the callers have one
        if self._connection.failure:
            raise RequestRefused(502, self._connection.failure)
        target, headers = request.outgoing()
        # h11 has read the framing: it is one of these, and never both.
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            headers.append((b"transfer-encoding", b"chunked"))
        if request.protocol == "websocket":
            headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        self._is_sent = True
        self._to_server(h11.Request(method=request.method, target=target, headers=headers))

    def _to_server(self, event: h11.Event) -> None:
        server = self._connection.server
        if server is None:
            raise RequestRefused(502, self._connection.failure or "the server has closed the connection")
        try:
            parts = self._up.send_with_data_passthrough(event)
        except h11.LocalProtocolError as error:
            if self._up.our_state in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
                raise RequestRefused(502, "the server has closed the connection") from None
            raise RequestRefused(400, f"the request is not valid HTTP: {error}") from None
        server.send(b"".join(parts or ()))

    # The server's side.

    def _server_event(self) -> bool:
        if self._waiting or self._request is None or not self._is_sent:
            return False
        try:
            event = self._up.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestRefused(502, f"the answer is not valid HTTP: {error}") from None
        if not isinstance(event, h11.Event):
            return False
        if isinstance(event, h11.ConnectionClosed):
            raise RequestRefused(502, "the server closed the connection without an answer")
        if isinstance(event, h11.Response) and self._request.is_stale(event.status_code):
            self._held, self._held_bytes = [], 0
        if self._held is not None:
            self._hold(event)
        else:
            self._to_client(event)
        return True

    def _hold(self, event: h11.Event) -> None:
        held = self._held
        assert held is not None  # noqa: S101 - the caller has checked
        held.append(event)
        if isinstance(event, h11.Data):
            self._held_bytes += len(event.data)
        can_repeat = self._up.our_state is h11.DONE and self._up.their_state is h11.DONE
        if self._held_bytes > _MOST_HELD or (isinstance(event, h11.EndOfMessage) and not can_repeat):
            self._release()
        elif isinstance(event, h11.EndOfMessage):
            self._waiting = True
            assert self._request is not None  # noqa: S101 - it is being answered
            self._request.refresh(self._refreshed)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        if self._request is not None:
            self._request.kept = None
        for event in held:
            self._to_client(event)

    def _refreshed(self, newer: bool) -> None:
        self._waiting = False
        request = self._request
        if request is None:
            return
        try:
            if newer and request.kept is not None:
                kept, request.kept, self._held = request.kept, None, None
                self._up.start_next_cycle()
                self._forward()
                request.kept = None  # once
                for piece in kept:
                    self._to_server(h11.Data(piece))
                self._to_server(h11.EndOfMessage())
            else:
                self._release()
        except RequestRefused as error:
            self._refuse(error.status, str(error))
        self._connection.resume()

    def _to_client(self, event: h11.Event) -> None:
        request = self._request
        assert request is not None  # noqa: S101 - the callers have one
        out: list[h11.Event]
        if isinstance(event, h11.InformationalResponse | h11.Response):
            final = isinstance(event, h11.Response)
            closes = final and (self._up.their_state in (h11.MUST_CLOSE, h11.CLOSED) or _closes(event))
            headers = request.response_head(
                event.status_code, [(bytes(n), bytes(v)) for n, v in event.headers]
            )
            if closes:
                headers.append((b"connection", b"close"))
            if event.status_code == 101:
                headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
            if final and any(name == b"transfer-encoding" for name, _ in event.headers):
                headers.append((b"transfer-encoding", b"chunked"))
            out = [type(event)(status_code=event.status_code, headers=headers, reason=_reason(event))]
        elif isinstance(event, h11.Data):
            data = request.response_data(event.data)
            out = [h11.Data(data)] if data else []
        else:
            assert isinstance(event, h11.EndOfMessage)  # noqa: S101 - there is no other kind
            rest = request.response_end()
            out = [h11.Data(rest)] if rest else []
            out.append(h11.EndOfMessage(headers=request.response_trailers(list(event.headers))))
        for each in out:
            try:
                parts = self._down.send_with_data_passthrough(each)
            except h11.LocalProtocolError as error:
                raise RequestRefused(502, f"the answer cannot be passed on: {error}") from None
            self._connection.client.send(b"".join(parts or ()))
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            self._switch()
        elif isinstance(event, h11.EndOfMessage):
            request.report("allowed")
            self._next()

    def _next(self) -> None:
        """Begin with the next request if both sides can."""
        self._request, self._held = None, None
        states = [self._down.our_state, self._down.their_state]
        if self._is_sent:
            states += [self._up.our_state, self._up.their_state]
        if all(state is h11.DONE for state in states):
            self._down.start_next_cycle()
            if self._is_sent:
                self._up.start_next_cycle()
            return
        self._closing = True
        self._connection.finish()

    # Refusals.

    def _refuse(self, status: int, why: str) -> None:
        """Answer instead of the server, or cut an answer that has begun."""
        request = self._request
        outcome = "failed" if status == 502 else "refused"
        if request is None:  # not even a head
            connection = self._connection
            request = InspectedRequest(connection.inspector, connection.place, "HTTP/1.1", "", "/")
        request.status = status if self._down.our_state in (h11.IDLE, h11.SEND_RESPONSE) else request.status
        request.report(outcome, why)
        self._held = None
        if self._down.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._closing = True
            self._connection.abort()
            return
        try:
            while self._down.their_state is h11.SEND_BODY and isinstance(
                self._down.next_event(), h11.EndOfMessage
            ):
                pass  # a request without a body: the connection can be used again
        except h11.RemoteProtocolError:
            pass
        usable = self._down.their_state is h11.DONE and not self._is_sent and not self._connection.failure
        text = f"staddle: {why}\n".encode("utf-8", "replace")
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
        ]
        if not usable:
            headers.append((b"connection", b"close"))
        for event in (
            h11.Response(status_code=status, headers=headers, reason=_REASONS.get(status, b"Refused")),
            h11.Data(b"" if request.method == "HEAD" else text),
            h11.EndOfMessage(),
        ):
            parts = self._down.send_with_data_passthrough(event)
            self._connection.client.send(b"".join(parts or ()))
        self._is_sent = False if usable else self._is_sent
        self._next()

    # After an upgrade.

    def _switch(self) -> None:
        self._raw = True
        early, later = self._down.trailing_data[0], self._up.trailing_data[0]
        if early:
            self._relay_raw(early, to_server=True)
        if later:
            self._relay_raw(later, to_server=False)

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


def _closes(event: h11.Event) -> bool:
    assert isinstance(event, h11.Response)  # noqa: S101 - the caller has checked
    listed = b",".join(value.lower() for name, value in event.headers if name == b"connection")
    return b"close" in listed or (event.http_version == b"1.0" and b"keep-alive" not in listed)


def _reason(event: h11.Event) -> bytes:
    assert isinstance(event, h11.InformationalResponse | h11.Response)  # noqa: S101
    return bytes(event.reason)
