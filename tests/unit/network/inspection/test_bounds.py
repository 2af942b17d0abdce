"""Connections, streams and times are bounded, and a client that goes away is noticed."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest

from staddle.network.inspection.inspector import Inspector
from tests.containment.switches.base import Edit
from tests.support.inspection import (
    NAME,
    Inspected,
    authority,
    dialled,
    exchanged,
    http2_server,
    reply,
    web_server,
)
from tests.support.waiting import until
from tests.unit.network.inspection.test_removed_protections import HERE, copied

RULES = [f"GET {NAME}/**", f"POST {NAME}/up/**"]
HEAD = f"GET /a HTTP/1.1\r\nHost: {NAME}\r\n".encode()


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return authority(tmp_path_factory.mktemp("outside"), NAME)


@pytest.fixture(scope="module")
def hasty(outside: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspected]:
    """An inspector whose times are a second."""
    times = "_HANDSHAKES, _HEAD, _IDLE, _LAST = "
    edit = Edit(HERE + "connection.py", times + "20.0, 10.0, 300.0, 5.0", times + "1.0, 1.0, 2.5, 1.0")
    main = copied(tmp_path_factory.mktemp("hasty"), edit) / "staddle" / HERE / "__main__.py"
    with Inspected(RULES, outside[0], main=main) as inspected:
        inspected.wait("ready")
        yield inspected


def why(inspected: Inspected) -> str:
    """The reason in the newest report."""
    inspected.flush()
    return str((inspected.of("request") or [{"why": ""}])[-1]["why"])


def ends(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side ends the connection within this time."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_at_most_256_connections(outside: tuple[Path, Path]) -> None:
    with Inspected(RULES, outside[0]) as inspected, ExitStack() as stack:
        inspected.wait("ready")

        def connect() -> socket.socket:
            client, theirs = socket.socketpair()
            server, up = socket.socketpair()
            with theirs, up:
                inspected.hand(theirs, up, NAME, 80, b"GET /")
            stack.enter_context(server)
            return stack.enter_context(client)

        first = [connect() for _ in range(256)]
        inspected.flush()
        assert not inspected.of("request")
        assert ends(connect(), 5)
        assert "more than 256 connections" in why(inspected)
        first[0].close()
        time.sleep(0.2)
        assert not ends(connect(), 0.5)  # the control: there is room for one again


@pytest.mark.parametrize("count", [100, 101])
def test_at_most_100_streams(outside: tuple[Path, Path], tmp_path: Path, count: int) -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    head = [(":method", "POST"), (":scheme", "https"), (":authority", NAME), (":path", "/up/a")]
    numbers = range(1, 2 * count, 2)
    for number in numbers:
        client.send_headers(number, head)
    begun, answers = client.data_to_send(), 0
    for number in numbers:
        client.end_stream(number)
    with http2_server(outside[1]) as port, Inspected(RULES, outside[0]) as inspected:
        ca, door = inspected.ca(tmp_path), inspected.door(port)
        with dialled(door, ca, alpn=("h2",)) as connection, suppress(OSError):
            connection.settimeout(10)
            connection.sendall(begun)
            time.sleep(0.3)
            connection.sendall(client.data_to_send())
            while answers < count and (data := connection.recv(65536)):
                events = client.receive_data(data)
                answers += sum(isinstance(event, h2.events.ResponseReceived) for event in events)
        assert answers == (100 if count == 100 else 0)
        if count > 100:
            assert "not valid" in why(inspected)


def test_a_slow_head_is_cut(hasty: Inspected) -> None:
    with web_server(None) as (port, seen):
        door = hasty.door(port, NAME, 80)
        with dialled(door, None) as connection:  # the control: a head in two pieces
            connection.sendall(HEAD)
            assert b" 200 " in exchanged(connection, b"\r\n", 0.5)
        with dialled(door, None) as connection:
            connection.sendall(HEAD)
            began = time.monotonic()
            for _ in range(20):
                time.sleep(0.2)
                with suppress(OSError):
                    connection.sendall(b"X: y\r\n")
            assert ends(connection, 5)
            assert time.monotonic() - began < 8
        assert why(hasty) == "the head of a request took too long"
        assert len(seen.requests) == 1


@pytest.mark.parametrize("size", [60 << 10, 70 << 10])
def test_a_long_head_in_one_read_is_refused(outside: tuple[Path, Path], size: int) -> None:
    client, theirs = socket.socketpair()
    server, up = socket.socketpair()
    with client, server, Inspected(RULES, outside[0]) as inspected:
        inspected.wait("ready")
        head = HEAD + b"".join(b"X-%d: %b\r\n" % (at, b"a" * 1000) for at in range(size // 1000)) + b"\r\n"
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        client.setblocking(False)
        assert client.send(head[1:]) == len(head) - 1  # all of it is there before the inspector reads
        with theirs, up:
            inspected.hand(theirs, up, NAME, 80, head[:1])
        found = exchanged(client, b"", 1.0)
        assert found.startswith(b"HTTP/1.1 431 ") == (size > 64 << 10), found
        assert bool(exchanged(server, b"", 0.5)) == (size < 64 << 10)


@pytest.mark.parametrize("sent", [b"\x16\x03", b"\x16\x03\x01\x02\x00\x01"])
def test_a_slow_handshake_is_cut(hasty: Inspected, sent: bytes) -> None:
    with web_server(None) as (port, _), dialled(hasty.door(port), None) as connection:
        connection.sendall(sent)
        assert ends(connection, 5)
        assert why(hasty) == "the handshakes took too long"


def test_a_silent_server_is_cut(hasty: Inspected) -> None:
    def silent(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        select.select([handler.connection], [], [], 10)

    with web_server(None, silent) as (port, _), dialled(hasty.door(port, NAME, 80), None) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert ends(connection, 6)
        assert why(hasty) == "nothing came for too long"


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("goes", [True, False])
def test_a_client_that_goes_away_is_noticed_while_the_server_is_silent(
    outside: tuple[Path, Path], tmp_path: Path, encrypted: bool, goes: bool
) -> None:
    asked, gone = threading.Event(), threading.Event()

    def silent(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        asked.set()
        if select.select([handler.connection], [], [], 1.5)[0]:
            gone.set()
        reply(handler, 200, b"late")

    with (
        web_server(outside[1] if encrypted else None, silent) as (port, _),
        Inspected(RULES, outside[0]) as inspected,
    ):
        ca, door = inspected.ca(tmp_path), inspected.door(port, NAME, 443 if encrypted else 80)
        with dialled(door, ca if encrypted else None) as connection:
            connection.sendall(HEAD + b"\r\n")
            assert asked.wait(10)
            if not goes:  # the control
                assert exchanged(connection, b"", 4).endswith(b"late")
        assert until(lambda: gone.is_set() == goes, 5)
        # A client that closes with unread bytes, such as a TLS ticket, resets the connection.
        reasons = ("the client closed the connection", "Connection reset by peer") if goes else ("",)
        assert until(lambda: why(inspected) in reasons, 5)


def test_requests_that_wait_for_their_turn_are_bounded(outside: tuple[Path, Path]) -> None:
    """A client that sends requests without reading is not read any more, and memory does not grow."""
    with web_server(None) as (port, _), Inspected(RULES, outside[0]) as inspected:
        door = inspected.door(port, NAME, 80)
        with dialled(door, None) as connection:
            connection.settimeout(1.0)
            sent = 0
            with suppress(OSError):
                for _ in range(400):
                    connection.sendall((HEAD + b"\r\n") * 2000)
                    sent += 1
            pages = Path(f"/proc/{inspected.process.pid}/statm").read_text().split()[1]
            assert int(pages) * os.sysconf("SC_PAGESIZE") < 160 << 20
            assert sent < 400  # 35 MB


def test_the_last_answer_waits_no_longer_than_a_silent_connection(hasty: Inspected) -> None:
    client, theirs = socket.socketpair()
    server, up = socket.socketpair()
    with client, server:
        with theirs, up:
            hasty.hand(theirs, up, NAME, 80, HEAD + b"Connection: close\r\n\r\n")
        server.recv(65536)
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n" + b"x" * 600_000)

        def is_cut() -> bool:
            time.sleep(0.2)
            with suppress(OSError):  # the client reads nothing, and is never silent
                return not client.send(b"x")
            return True

        assert until(is_cut, 8)


def test_pings_without_end_do_not_fill_the_memory(outside: tuple[Path, Path], tmp_path: Path) -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    begun = client.data_to_send()
    client.ping(b"12345678")
    pings, sent = client.data_to_send() * 20_000, 0
    with http2_server(outside[1]) as port, Inspected(RULES, outside[0]) as inspected:
        ca, door = inspected.ca(tmp_path), inspected.door(port)
        with dialled(door, ca, alpn=("h2",)) as connection, suppress(OSError):
            connection.settimeout(2.0)
            connection.sendall(begun)
            for _ in range(100):
                connection.sendall(pings)  # and no answer is read
                sent += 1
        pages = Path(f"/proc/{inspected.process.pid}/statm").read_text().split()[1]
        assert int(pages) * os.sysconf("SC_PAGESIZE") < 160 << 20
        assert sent < 100  # 34 MB


def test_no_file_is_left(outside: tuple[Path, Path], tmp_path: Path) -> None:
    temp = tmp_path / "temp"
    temp.mkdir()
    temp.chmod(0o777)  # the inspector may be nobody
    with (
        web_server(None) as (port, _),
        Inspected(RULES, outside[0], temp=temp) as inspected,
        dialled(inspected.door(port, NAME, 80), None) as connection,
    ):
        assert b" 200 " in exchanged(connection, HEAD + b"\r\n", 0.5)
    assert inspected.process.returncode == 0
    assert not list(temp.iterdir())


@pytest.mark.parametrize(
    "head", ["Content-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked"]
)
def test_an_answer_with_a_length_and_chunks_has_chunks_only(outside: tuple[Path, Path], head: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nhello\r\n0\r\n\r\n".encode())
            ends(connection, 5)

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, Inspected(RULES, outside[0]) as inspected:
        door = inspected.door(listener.getsockname()[1], NAME, 80)
        with dialled(door, None) as connection:
            found = exchanged(connection, HEAD + b"\r\n", 1.0)
        assert found.endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        assert b"content-length" not in found
        thread.join(10)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_answer_to_no_request_ends_the_connection(outside: tuple[Path, Path], moment: str) -> None:
    """It would be the answer to a later request otherwise."""
    listener = socket.create_server(("127.0.0.1", 0))
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
    own = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown"

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            if moment == "after":
                connection.recv(65536)
                connection.sendall(own + stray)
            else:
                connection.sendall(stray)
            ends(connection, 5)

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, Inspected(RULES, outside[0]) as inspected:
        door = inspected.door(listener.getsockname()[1], NAME, 80)
        with dialled(door, None) as connection:
            first, rest = (HEAD, b"\r\n") if moment == "before" else (HEAD + b"\r\n", HEAD + b"\r\n")
            found = exchanged(connection, first, 0.5)
            with suppress(OSError):
                found += exchanged(connection, rest, 2.0)
        assert b"stray" not in found
        assert (b"own" in found) == (moment == "after")
        thread.join(10)


def test_a_loop_that_is_never_idle_reports_twice_a_second() -> None:
    host, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inspector = Inspector(socket.socket(fileno=ours.detach()))
    host.setblocking(False)
    inspector.report(method="GET", host=NAME, port=443, outcome="allowed", rule="", why="", secrets=[])
    inspector.loop.sweep(inspector._sweep)
    until_then = time.monotonic() + 5

    def busy() -> None:
        if not select.select([host], [], [], 0)[0] and time.monotonic() < until_then:
            inspector.loop.soon(busy)
        else:
            inspector.loop.stop()

    inspector.loop.soon(busy)
    inspector.loop.run()
    assert b'"outcome": "allowed"' in host.recv(65536)
    host.close()
    inspector._socket.close()
