"""Parts of the server that need no sandbox: HTTP, output, answers, routes, WebSocket messages, values."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import (
    AsyncSandbox,
    Change,
    Event,
    Network,
    Policy,
    Reason,
    Result,
    Sandbox,
    Secret,
    errors,
)
from staddle.errors import CommitRefused, InvalidCall, StaddleError
from staddle.json_values import (
    OF_CLIENTS,
    decode,
    decode_error,
    encode,
    encode_error,
    read_result,
    write_json,
    write_result,
)
from staddle.limits.usage import Usage
from staddle.sandbox.files import Files
from staddle.sandbox.session import Session
from staddle.server import api, http
from staddle.server.access import TokenAccess
from staddle.server.api import _KINDS
from staddle.server.async_client import AsyncClient, AsyncServerFiles, AsyncServerSandbox, AsyncServerSession
from staddle.server.client import Client, ServerFiles, ServerSandbox, ServerSession
from staddle.server.commands import KEPT_IDS, ServedCommand, UsedIds
from staddle.server.events import EventLog
from staddle.server.http import Disconnected, HttpConnection, Refused, Response
from staddle.server.openapi import description
from staddle.server.operations import routes, types_of
from staddle.server.output import DROPPED, FRAMES, STDERR, STDOUT, OutputLog, frames
from staddle.server.process import ServeSettings
from staddle.server.routes import RouteTable
from staddle.server.server import Answers
from staddle.server.transport import HttpChannel
from staddle.server.websocket import BINARY, MOST_MESSAGE, TEXT, WebSocket, WebSocketError, accept_key

HOST = b"Host: x\r\n"


def parsed(data: bytes) -> http.HttpRequest:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return HttpConnection(ours).request(1.0)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n" + HOST + b"\r\n", 505),
        (b"GET http://x/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b" folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Name : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: \x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\nC: d\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * http.MOST_HEADERS + b"\r\n", 431),
        (b"GET /" + b"a" * http.MOST_HEAD + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
        (b"GET /?a=1&a=2 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ],
)
def test_a_request_that_could_be_read_in_two_ways_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(Refused) as refused:
        parsed(data)
    assert refused.value.status == status


def test_an_ordinary_request_is_read() -> None:
    found = parsed(b"GET /a%20b/c?x=%2F+1 HTTP/1.1\r\nHost: x\r\nA:  b \r\n\r\n")
    assert found.segments == ("a b", "c")
    assert (found.query, found.headers["a"]) == ({"x": "/ 1"}, "b")


def each_parsed(*requests: bytes) -> list[tuple[str, tuple[str, ...], dict[str, str], dict[str, str], bytes]]:
    """The facts of requests that come on one connection, each as soon as it is read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(requests))
        connection = HttpConnection(ours)
        found = []
        for _ in requests:
            each = connection.request(1.0)
            headers = {name: value for name, value in each.headers.items() if name != "content-length"}
            found.append((each.method, each.segments, dict(each.query), headers, each.read()))
        return found


SENT = [
    b"POST /%b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\n%b\r\n%b"
    % (path, HOST, one, two, len(body), last, body)
    for path in (b"a?x=1", b"a?x=2", b"b")
    for one in (b"", b"A: 1\r\n", b"A: 2\r\n")
    for two in (b"", b"Authorization: t\r\n")
    for last in (b"", b"Authorization: u\r\n")
    if not (two and last)
    for body in (b"", b"one", b"three")
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(SENT), min_size=1, max_size=6), st.data())
def test_a_head_that_repeats_is_read_as_if_it_were_alone(sent: list[bytes], data: st.DataObject) -> None:
    sent += data.draw(st.lists(st.sampled_from(sent), max_size=3))
    assert each_parsed(*sent) == [each_parsed(each)[0] for each in sent]


@pytest.mark.parametrize("length", [b"+3", b"3, 3", b"0x3", b"", b"9" * 16, b"3\r\nContent-Length: 3"])
def test_the_length_of_a_head_that_repeats_is_checked(length: bytes) -> None:
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: "
    with pytest.raises(Refused) as refused:
        each_parsed(head + b"3\r\n\r\nabc", head + length + b"\r\n\r\nabc")
    assert refused.value.status == 400


def test_each_response_has_its_own_head() -> None:
    responses = [
        Response(body=b"one"),
        Response(body=b"three"),
        Response(404, b"no", kind="text/plain"),
        Response(body=b"x", more={"Staddle-Next": "1"}),
        Response(body=b"x", more={"Staddle-Next": "2"}),
        Response(body=iter([b"parts"])),
        Response(body=b"one"),
    ]
    alone = []
    together, other_end = socket.socketpair()
    with together, other_end:
        connection = HttpConnection(together)
        for each in responses:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                if not isinstance(each.body, bytes):
                    each.body = [b"parts"]
                HttpConnection(ours).respond(each, keep=True)
                alone.append(theirs.recv(65536))
            connection.respond(each, keep=True)
        assert other_end.recv(1 << 20) == b"".join(alone)
        channel = HttpChannel(other_end)
        for each in (responses[0], responses[1], responses[3], responses[4], responses[2]):
            connection.respond(each, keep=True)
            reply = channel.reply()
            assert (reply.status, bytes(reply.body)) == (each.status, each.body)
            assert reply.headers.get("staddle-next") == each.headers.get("Staddle-Next")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_hostile_bytes_raise_nothing_else(data: bytes) -> None:
    for prefix in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n"):
        try:
            parsed(prefix + data + b"\r\n\r\n")
        except (Refused, Disconnected):
            pass


def test_a_body_has_a_limit_and_a_slow_head_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused) as refused:
        parsed(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999\r\n\r\n").read()
    assert refused.value.status == 413
    monkeypatch.setattr(http, "HEAD_TIME", 0.2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n")
        began = time.monotonic()
        with pytest.raises(Disconnected):
            HttpConnection(ours).request(None)
        assert time.monotonic() - began < 5


def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PIECE_TIME", 0.2)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Disconnected):
        HttpConnection(ours).respond(Response(body=bytes(64 << 20)), keep=True)


@pytest.mark.parametrize("sizes", [(0, 3, 0), (1,) * 200, (70_000, 0, 1 << 20, 5), (1 << 21,)])
def test_parts_arrive_whole_and_in_order_however_little_the_socket_takes(sizes: tuple[int, ...]) -> None:
    parts = [bytes((65 + at % 26,)) * size for at, size in enumerate(sizes)]
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    found: list[bytes] = []

    def read() -> None:
        while data := theirs.recv(3000):
            found.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    with theirs:
        with ours:
            HttpConnection(ours).respond(Response(body=parts, length=sum(sizes)), keep=True)
        reader.join()
    assert b"".join(found).partition(b"\r\n\r\n")[2] == b"".join(parts)


# ------------------------------------------------------------ output


def test_output_is_read_from_any_offset() -> None:
    log = OutputLog(1 << 20)
    log.add(STDOUT, b"abc")
    log.add(STDERR, b"def")
    log.add(STDOUT, b"ghi")
    for offset in range(10):
        for limit in range(1, 10):
            begin, pieces = log.read(offset, limit)
            assert begin == offset
            assert b"".join(data for _, data in pieces) == b"abcdefghi"[offset : offset + limit]
    assert log.read(2, 3)[1] == [(STDOUT, b"c"), (STDERR, b"de")]


def test_output_is_bounded_and_says_what_is_gone() -> None:
    """Bytes and pieces: alternating single bytes take no more memory than one long text."""
    log = OutputLog(100_000)
    for _ in range(10):
        log.add(STDOUT, b"x" * 50_000)
    begin, pieces = log.read(0, 1 << 20)
    assert begin == log.start > 0
    assert begin + sum(len(data) for _, data in pieces) == log.end == 500_000
    for _ in range(5000):
        log.add(STDOUT, b"1")
        log.add(STDERR, b"2")
    assert log.size < 200_000
    assert b"".join(frames(5, 2, [(STDOUT, b"a"), (STDERR, b"")])) == bytes(
        (DROPPED, *(0,) * 6, 8, *(0,) * 7, 3, STDOUT, *(0,) * 6, 1, ord("a"), STDERR, *(0,) * 7)
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from((STDOUT, STDERR)), st.sampled_from((1, 7, 20_000, 100_000))), max_size=9
    ),
    st.booleans(),
)
def test_frames_arrive_whole_and_the_next_reply_after_them(shape: list[tuple[int, int]], lost: bool) -> None:
    """Whether their bytes come with the head or later, and whether some were dropped before."""
    pieces = [(stream, bytes((number,)) * size) for number, (stream, size) in enumerate(shape)]
    body = frames(9 * lost, 0, pieces)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = [Response(body=body, length=sum(map(len, body)), kind=FRAMES), Response(body=b"next")]

        def answer() -> None:
            for each in sent:
                HttpConnection(theirs).respond(each, keep=True)

        sender = threading.Thread(target=answer)
        sender.start()
        channel = HttpChannel(ours)
        found = channel.reply().pieces
        for stream in (STDOUT, STDERR):
            assert b"".join(data for other, data in found if other == stream) == b"".join(
                data for other, data in pieces if other == stream
            )
        order = [stream for stream, _ in found]
        assert [each for each, _ in groupby(order)] == [
            each for each, _ in groupby(each for each, _ in pieces)
        ]
        assert channel.reply().body == b"next"
        sender.join()


def test_held_output_waits_for_its_reader() -> None:
    log = OutputLog(100_000, hold=True)
    writer = threading.Thread(target=lambda: [log.add(STDOUT, bytes([n]) * 50_000) for n in range(20)])
    writer.start()
    seen = b""
    while len(seen) < 1_000_000:
        log.taken(len(seen))
        assert log.wait(len(seen), 10)
        begin, pieces = log.read(len(seen), 30_000)
        assert begin == len(seen)
        assert log.size < 300_000
        seen += b"".join(data for _, data in pieces)
    writer.join()
    assert seen == b"".join(bytes([n]) * 50_000 for n in range(20))


def test_events_that_a_thread_holds_back_come_later_and_of_no_other_thread() -> None:
    log = EventLog(10)
    log.hold_back()
    log.add("kind", "a", n=1)
    other = threading.Thread(target=lambda: log.add("kind", "b", n=2))
    other.start()
    other.join()
    assert [each["n"] for each in log.after(0, 0)["events"]] == [2]
    log.catch_up()
    log.catch_up()
    log.add("kind", "a", n=3)
    assert [(each["number"], each["n"]) for each in log.after(0, 0)["events"]] == [(1, 2), (2, 1), (3, 3)]


def test_the_output_of_a_command_is_whole_whoever_asks_when() -> None:
    made = ServedCommand("one", {"command": "true"})
    early = made.output
    assert not early.closed
    made._run = lambda *_: early.add(STDOUT, b"x")  # type: ignore[method-assign]
    made.work(None, EventLog())  # type: ignore[arg-type]
    assert (made.output.closed, made.output.end, made.size > 0) == (True, 1, True)
    late = ServedCommand("two", {"command": "true"})
    late._run = lambda *_: None  # type: ignore[method-assign]
    late.work(None, EventLog())  # type: ignore[arg-type]
    assert late.output.closed


def test_events_say_how_many_were_missed() -> None:
    log = EventLog(10)
    for n in range(15):
        log.add("kind", "a" if n % 2 else "b", n=n)
    assert log.after(0, 0)["missed"] == 5
    assert [each["n"] for each in log.after(12, 0)["events"]] == [12, 13, 14]
    assert [each["n"] for each in log.after(5, 0, "a")["events"]] == [5, 7, 9, 11, 13]
    assert log.after(15, 0.01) == {"events": [], "last": 15, "missed": 0}


# ------------------------------------------------------------ repeated requests


def test_a_repeated_request_gets_the_first_answer() -> None:
    """Also while that is being made; if nothing was done, the repeated one does it."""
    answers = Answers()
    assert answers.begin("k") is None
    seen: list[Response | None] = []
    other = threading.Thread(target=lambda: seen.append(answers.begin("k")))
    other.start()
    first = Response(body=b"once")
    answers.end("k", first)
    other.join()
    assert seen == [first]
    assert answers.begin("k2") is None
    answers.end("k2", None)
    assert answers.begin("k2") is None


def test_answers_are_bounded_and_never_given_to_a_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staddle.server.server.KEPT_ANSWERS", 3)
    answers = Answers()
    for n in range(10):
        assert answers.begin(str(n)) is None
        answers.end(str(n), Response(body=b"x"))
    assert answers.begin("9") is not None
    with pytest.raises(Refused, match="made before"):
        answers.begin("0")


def test_answers_in_pieces_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staddle.server.server.KEPT_ANSWER_BYTES", 100)
    answers = Answers()
    for n in range(3):
        assert answers.begin(str(n)) is None
        answers.end(str(n), Response(body=[b"x" * 30, b"y" * 30], length=60))
    assert answers.begin("2") is not None
    with pytest.raises(Refused, match="made before"):
        answers.begin("1")


# ------------------------------------------------------------ routes and their description


def test_every_route_is_found_and_described() -> None:
    table, described = RouteTable(routes().values()), description()["paths"]
    for row in routes().values():
        given = tuple("x" if part[:1] == "{" else part for part in row.segments)
        assert table.find(row.method, given)[0] is row
        assert row.method.lower() in described[row.path]
        assert row.text.endswith(".")
        assert callable(getattr(api, row.name))
    names = [operation["operationId"] for path in described.values() for operation in path.values()]
    assert len(names) == len(set(names)) == len(routes())
    with pytest.raises(Refused) as refused:
        table.find("PATCH", ("v1",))
    assert refused.value.status == 405
    with pytest.raises(Refused) as refused:
        table.find("GET", ("nope",))
    assert refused.value.status == 404


def test_the_page_lists_every_route() -> None:
    page = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    rows = [f"| `{row.method} {row.path}` | {row.text} |" for row in routes().values()]
    missing = [row for row in rows if row not in page]
    assert not missing


def test_fields_accept_their_types_only() -> None:
    assert types_of("integer") == {int}  # and not bool, which Python takes for one
    assert type(None) in types_of("number|null")
    assert type(None) not in types_of("string")
    assert types_of("boolean") == {bool}
    assert set(_KINDS) == {"run", "exec", "start"}


# ------------------------------------------------------------ access


def test_a_token_is_long_and_tls_needed() -> None:
    with pytest.raises(InvalidCall, match="token"):
        TokenAccess({"x"}, "short", is_tls=False)
    with pytest.raises(InvalidCall, match="TLS"):
        ServeSettings("/s", address=("192.0.2.1", 1))
    with pytest.raises(InvalidCall, match="TLS"):
        ServeSettings("/s", address=("example.com", 1))
    assert ServeSettings("/s", address=("127.0.0.1", 1)).token != ServeSettings("/s").token


# ------------------------------------------------------------ WebSocket


def ends() -> tuple[WebSocket, WebSocket, socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    server = WebSocket(ours.recv, ours.sendall, is_client=False)
    return server, WebSocket(theirs.recv, theirs.sendall, is_client=True), ours, theirs


def test_messages_arrive_whole() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # of the RFC
    server, client, ours, theirs = ends()
    with ours, theirs:
        for size in (0, 1, 125, 126, 65535, 65536):
            data = bytes(n % 251 for n in range(size))
            sender = threading.Thread(target=client.send, args=(BINARY, data))
            sender.start()
            assert server.message() == (BINARY, data)
            sender.join()
            server_sender = threading.Thread(target=server.send, args=(TEXT, data))
            server_sender.start()
            assert client.message() == (TEXT, data)
            server_sender.join()


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x01a",  # not masked
        b"\xc2\x81\0\0\0\0a",  # a reserved flag
        b"\x83\x80\0\0\0\0",  # an unknown code
        b"\x09\x80\0\0\0\0",  # a ping in parts
        b"\x89\xfe\x00\x7e\0\0\0\0",  # a ping that is too long
        b"\x80\x80\0\0\0\0",  # a continuation of nothing
        b"\x82\xff" + (MOST_MESSAGE + 1).to_bytes(8, "big") + b"\0\0\0\0",
        b"\x82\xff" + b"\xff" * 8 + b"\0\0\0\0",
        b"\x82",
    ],
)
def test_a_broken_message_ends_the_connection(data: bytes) -> None:
    server, _, ours, theirs = ends()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(WebSocketError):
            server.message()


# ------------------------------------------------------------ values and errors


def test_values_travel_as_their_types() -> None:
    network = Network.allow("a.example:443", "10.1.0.0/16")
    policy = Policy.agent().with_network(network).with_env(A=Secret("hidden-value"))
    found = decode(json.loads(json.dumps(encode(policy))), only=OF_CLIENTS)
    assert found == policy
    assert type(found.env["A"]) is Secret
    for value in (b"\xff\0", (1, (2,)), {1: "a"}, "\udcff", [None, 1.5], {"$": 1}, frozenset(("a",))):
        assert decode(json.loads(json.dumps(encode(value)))) == value


RESULT = Result("true", 0, b"", b"", 0.1, Reason.exited, None, False, "/", Usage(0.1))
OTHERWISE: dict[str, list[object]] = {
    "changes": [None, (Change("added", "/workspace/a"),)],
    "violations": [(Event("refused", "a.example:443", "deny"),)],
    "stdout_bytes_dropped": [1],
    "stdout_spill": ["", "/spilled"],
    "why": ["x"],
    "errno": [0, 2],
    "stderr_cut": [7],
    "usage": [Usage(1.0, 0.0, memory=0, memory_is_estimate=True)],
}


@given(
    st.fixed_dictionaries({}, optional={name: st.sampled_from(each) for name, each in OTHERWISE.items()}),
    st.binary(),
    st.binary(),
)
def test_what_a_short_result_leaves_out_comes_back(fields: dict[str, object], out: bytes, err: bytes) -> None:
    result = RESULT.replace(stdout_bytes=out, stderr_bytes=err, **fields)
    row = json.loads(write_result(result))
    assert row[-1].keys() == fields.keys() - {"usage"}
    for found in (
        read_result(row, out + err),
        decode(json.loads(write_json(encode(result)))),
    ):
        assert found == result
        assert {name: type(value) for name, value in vars(found).items()} == {
            name: type(value) for name, value in vars(result).items()
        }


@pytest.mark.parametrize("row", [[], {}, [1] * 9, ["true", 0, 0, 0, 0.1, "unknown", "/", [0.1], {}]])
def test_a_row_of_another_version_is_an_error(row: object) -> None:
    with pytest.raises(InvalidCall):
        read_result(row, b"")


def test_devices_of_a_policy_travel() -> None:
    policy = Policy.agent().with_gpu("nvidia:0").with_devices("/dev/kvm")
    assert decode(json.loads(json.dumps(encode(policy))), only=OF_CLIENTS) == policy


@pytest.mark.parametrize(
    ("own", "served"),
    [
        (Sandbox, ServerSandbox),
        (Session, ServerSession),
        (Files, ServerFiles),
        (AsyncSandbox, AsyncServerSandbox),
        (ServerSandbox, AsyncServerSandbox),
        (ServerSession, AsyncServerSession),
        (ServerFiles, AsyncServerFiles),
        (Client, AsyncClient),
    ],
)
def test_a_client_has_every_name(own: type, served: type) -> None:
    """Or a refusal with a sentence that says what to do."""
    missing = {name for name in dir(own) if name[0] != "_" and not hasattr(served, name)}
    assert missing <= {"id", "name", "keeps_properties"}  # set when it is made


@pytest.mark.parametrize(
    "data",
    [
        {"$": "Popen"},
        {"$": "Result"},
        {"$": "Plan"},
        {"$": "Policy", "reed": []},
        {"$": "bytes"},
        {"$": ["Policy"]},
        {"$": "Network", "mode": "open", "rules": [1]},
    ],
)
def test_a_client_sends_no_other_types(data: object) -> None:
    with pytest.raises((InvalidCall, errors.PolicyError)):
        decode(data, only=OF_CLIENTS)


def test_deep_data_is_refused() -> None:
    data: object = 1
    for _ in range(100):
        data = [data]
    with pytest.raises(InvalidCall, match="deep"):
        decode(data)


def test_errors_travel_as_their_types() -> None:
    """Every error of ours, and those of Python; an unknown one is described."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, StaddleError):
            found = decode_error(json.loads(json.dumps(encode_error(kind("a", why="b", fix="c")))))
            assert type(found) is kind, name
            assert str(found) == "a: b; c"
    refused = CommitRefused("a", conflicts=())
    assert decode_error(encode_error(refused)).conflicts == ()  # type: ignore[attr-defined]
    assert type(decode_error(encode_error(FileNotFoundError(2, "no", "/x")))) is FileNotFoundError
    assert type(decode_error(encode_error(ValueError("x")))) is ValueError
    assert "ZeroDivisionError" in str(decode_error(encode_error(ZeroDivisionError("x"))))
    assert isinstance(decode_error({"type": "SystemExit", "what": "x"}), StaddleError)


def test_the_newest_ids_are_remembered() -> None:
    used = UsedIds(KEPT_IDS)  # the parts of a smaller number differ so much that one may be too short
    for number in range(20_000):
        used.add(f"c{number}")
        assert f"c{number}" in used
        assert f"c{max(0, number - KEPT_IDS + 1)}" in used
    assert "c0" not in used
    assert "c20000" not in used
    assert sum(map(len, used._digests)) <= 24 * KEPT_IDS


STOPPED = """
import random, signal
from staddle.server import server
server._LOOK_EVERY = 0  # so that a signal may come at any line of the loop
for _ in range(500):
    found = server.SandboxServer()
    signal.signal(signal.SIGALRM, lambda *_: found.stop())
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
    found.wait()
"""


def test_a_signal_stops_a_server_at_any_moment() -> None:
    subprocess.run([sys.executable, "-c", STOPPED], check=True, timeout=60)
