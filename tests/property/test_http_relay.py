"""However a client sends its bytes, the server gets requests that were decided, and no others."""

from __future__ import annotations

from typing import Any

import h11
from hypothesis import example, given, settings
from hypothesis import strategies as st

from staddle.network.inspection.decisions import RequestVerdict, compile_rules, decide
from staddle.network.inspection.http1 import Http1Relay
from staddle.policy.http_rules import HttpRule

NAME = "api.example"
RULES = compile_rules([HttpRule.parse(f"GET,POST {NAME}/**"), HttpRule.parse(f"!* {NAME}/**/no")])
SMUGGLED = b"GET /x/no HTTP/1.1\r\nHost: api.example\r\n\r\n"
HEADERS = (
    b"Content-Length: 4",
    b"Content-Length: 40",
    b"content-length:\t0",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Connection: keep-alive, content-length",
    b"Connection: close",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Key: a",
    b"Expect: 100-continue",
    b"Host: evil.example",
    b"Host: api.example",
    b"X: a\r\n b",
    b"X:\x85b",
    b"Destination: /x/no",
)
BODIES = (
    b"",
    b"abcd",
    SMUGGLED,
    b"0\r\n\r\n",
    b"4;a=b\r\nabcd\r\n0\r\n\r\n",
    b"28\r\n" + SMUGGLED,
    b"0\r\nHost: e\r\n\r\n",
)
SPLICES = (
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b"\0",
    b"\x0b",
    b"\xa0",
    b"+",
    b",",
    b"0",
    b"9" * 20,
    SMUGGLED,
)
SPLICE = st.tuples(st.integers(0, 200), st.integers(0, 3), st.sampled_from(SPLICES) | st.binary(max_size=2))
FIRSTS = (
    b"GET /a",
    b"POST /a",
    b"GET /x/no",
    b"GET http://api.example/a",
    b"get /a",
    b"CONNECT api.example:443",
)


class Inspector:
    """Decides by the rules, and nothing else."""

    secrets, all_values = (), None

    def decide(self, method: str, host: str, port: int, target: str) -> RequestVerdict:
        return decide(RULES, method, host, port, target)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Side:
    """What one side gets."""

    unsent = 0

    def __init__(self) -> None:
        self.got = b""

    def send(self, data: bytes) -> None:
        self.got += data

    def flush(self) -> None:
        pass


class Connection:
    """A connection until the relay ends it."""

    def __init__(self) -> None:
        self.inspector, self.place, self.failure = Inspector(), (NAME, 443, True), ""
        self.client, self.server = Side(), Side()
        self.is_open = True

    def finish(self) -> None:
        self.is_open = False

    abort = close = finish

    def resume(self) -> None:
        pass


def served(pieces: list[bytes]) -> list[tuple[bytes, bytes, list[bytes], bytes]]:
    """The method, path, hosts and body of each request that a server answers."""
    connection, server, found = Connection(), h11.Connection(h11.SERVER), []
    relay, head, body, heard = Http1Relay(connection), None, b"", 0  # type: ignore[arg-type]
    for piece in pieces:
        if not connection.is_open:
            break
        relay.from_client(piece)
        while True:
            if heard < len(connection.server.got):
                server.receive_data(connection.server.got[heard:])
                heard = len(connection.server.got)
            event = server.next_event()
            if isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                hosts = [value for name, value in head.headers if name == b"host"]
                found.append((head.method, head.target, hosts, body))
                server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                server.send(h11.EndOfMessage())
                if server.our_state is not h11.DONE:
                    return found
                server.start_next_cycle()
                if connection.is_open:
                    relay.from_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                break
    return found


def message(first: bytes, headers: list[bytes], body: bytes, splices: list[tuple[int, int, bytes]]) -> bytes:
    text = b"\r\n".join([first + b" HTTP/1.1", b"Host: api.example", *headers, b"", b""]) + body
    for at, removed, added in splices:
        text = text[: at % (len(text) + 1)] + added + text[at % (len(text) + 1) + removed :]
    return text


MESSAGES = st.builds(
    message,
    st.sampled_from(FIRSTS[:2]) | st.sampled_from(FIRSTS),
    st.lists(st.sampled_from(HEADERS), max_size=2),
    st.sampled_from(BODIES),
    st.lists(SPLICE, max_size=2),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=3), st.lists(st.integers(1, 60), max_size=30))
@example([message(b"POST /a", [b"Content-Length: 4"], b"abcd", [])] * 2, [1] * 30)
def test_the_server_gets_decided_requests_only(messages: list[bytes], sizes: list[int]) -> None:
    sent = b"".join(messages)
    whole = served([sent])
    for _, target, hosts, _ in whole:
        assert hosts == [NAME.encode()]
        assert not target.endswith(b"/no")
    pieces, rest = [], sent
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert served([piece for piece in (*pieces, rest) if piece]) == whole


def test_the_benign_request_is_served() -> None:
    assert [each[:2] for each in served([message(b"GET /a", [], b"", [])] * 2)] == [(b"GET", b"/a")] * 2
