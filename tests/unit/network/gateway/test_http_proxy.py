"""The proxy for macOS decides as the gateway does, and takes nothing that two could read differently."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from staddle import Network
from staddle.network.gateway import dns_lookup
from staddle.network.gateway.http_proxy import HttpProxy
from staddle.network.rules import dns
from tests.unit.network.rules.hellos import hello, server_name

WORD = "the word"
KNOWN = b"Proxy-Authorization: Basic " + base64.b64encode(f"staddle:{WORD}".encode())


def client_hello(name: str) -> bytes:
    return hello(server_name(name.encode()))


class Echo:
    """A server on the loopback that sends back what it is sent."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                threading.Thread(target=self._echo, args=(self._listener.accept()[0],), daemon=True).start()
        except OSError:
            return

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Served:
    """A proxy that listens, and what it answers."""

    def __init__(self, *entries: str, nameservers: tuple[str, ...] = ()) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.where = self._listener.getsockname()
        proxy = HttpProxy(Network.allow(*entries, dns=nameservers), WORD)
        threading.Thread(target=proxy.serve, args=(self._listener,), daemon=True).start()

    def ask(self, request: bytes, then: bytes = b"") -> bytes:
        with socket.create_connection(self.where, 10) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(request)
            if then:
                assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
                client.sendall(then)
            with contextlib.suppress(OSError):  # it has been refused and closed already
                client.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while data := client.recv(65536):
                    answer += data
            except ConnectionResetError:
                pass
            return answer

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Served]:
    made = Served(f"127.0.0.1:{echo.port}", f"localhost:{echo.port}", "allowed.example:443", "!bad.example")
    yield made
    made.close()


def connect(target: str, *fields: bytes) -> bytes:
    return b"\r\n".join([f"CONNECT {target} HTTP/1.1".encode(), KNOWN, *fields, b"", b""])


def test_a_tunnel_carries_whatever_is_said(proxy: Served, echo: Echo) -> None:
    assert proxy.ask(connect(f"127.0.0.1:{echo.port}"), b"SSH-2.0-x\r\n" * 1000) == b"SSH-2.0-x\r\n" * 1000
    assert proxy.ask(connect(f"LOCALHOST:{echo.port}"), b"\0\1\2") == b"\0\1\2"


def test_what_is_said_to_a_name_is_for_that_name(proxy: Served, echo: Echo) -> None:
    target = connect(f"localhost:{echo.port}")
    assert proxy.ask(target, client_hello("localhost")) == client_hello("localhost")
    assert proxy.ask(target, client_hello("other.example")) == b""
    assert proxy.ask(target, b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n") == b""


def test_a_plain_request_is_passed_on_without_what_was_for_us(proxy: Served, echo: Echo) -> None:
    head = f"GET http://localhost:{echo.port}/a?b HTTP/1.1\r\nHost: localhost:{echo.port}\r\n".encode()
    said = proxy.ask(head + KNOWN + b"\r\nConnection: keep-alive\r\nProxy-X: y\r\nA: b\r\n\r\n")
    assert said == (
        f"GET /a?b HTTP/1.1\r\nHost: localhost:{echo.port}\r\nA: b\r\nConnection: close\r\n\r\n".encode()
    )


@pytest.mark.parametrize(
    ("target", "status", "why"),
    [
        ("evil.example:443", 403, "no entry allows it; evil.example:443 would allow it"),
        ("bad.example:443", 403, "refused by !bad.example"),
        ("allowed.example:80", 403, "allowed, but not at tcp port 80"),
        ("127.0.0.1:1", 403, "allowed, but not at tcp port 1"),
        ("2130706433:80", 400, ""),
        ("allowed.example", 400, "needs a port"),
        ("allowed.example:0", 400, "malformed"),
        ("allowed.example:443443", 400, ""),
        ("user@allowed.example:443", 400, ""),
        ("allowed.example\0.evil.example:443", 400, ""),
        ("[::1]", 400, "needs a port"),
        ("[::1]:80", 403, "no entry allows it"),
    ],
)
def test_what_is_not_allowed_or_not_understood_is_said(
    proxy: Served, target: str, status: int, why: str
) -> None:
    answer = proxy.ask(connect(target))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert why.encode() in answer


def test_a_name_does_not_allow_what_is_behind_it(echo: Echo) -> None:
    proxy = Served(f"localhost:{echo.port}")
    answer = proxy.ask(connect(f"localhost:{echo.port}"))
    assert b"it resolves to " in answer
    assert b"a loopback address" in answer
    proxy.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\n",
        b"hello\n",
        b"CONNECT allowed.example:443 HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.example\r\n" + KNOWN + b"\r\n\r\n",
        b"GET ftp://allowed.example/ HTTP/1.1\r\n" + KNOWN + b"\r\n\r\n",
        b"GET http://allowed.example/ HTTP/1.1\r\nHost: evil.example\r\n" + KNOWN + b"\r\n\r\n",
        connect("allowed.example:443", b"Host: evil.example"),
        connect("allowed.example:443", b"Host: a", b"Host: b"),
        b"GET http://allowed.example/" + b"x" * 100_000,
        client_hello("allowed.example"),
    ],
)
def test_anything_else_is_refused(proxy: Served, request_: bytes) -> None:
    answer = proxy.ask(request_)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("field", [b"A: b", b"Proxy-Authorization: Basic eDp5", b"Proxy-Authorization:"])
def test_who_does_not_know_the_word_is_not_served(proxy: Served, echo: Echo, field: bytes) -> None:
    request = f"CONNECT 127.0.0.1:{echo.port} HTTP/1.1\r\n".encode() + field + b"\r\n\r\n"
    assert proxy.ask(request).startswith(b"HTTP/1.1 407 ")


def _at_one_port() -> tuple[socket.socket, socket.socket]:
    """A server for streams and a socket for datagrams with the same port of 127.0.0.1."""
    while True:
        streams = socket.create_server(("127.0.0.1", 0))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagrams.bind(streams.getsockname())
            return streams, datagrams
        except OSError:  # another program has that one
            streams.close()
            datagrams.close()


class Nameserver:
    """Answers every question about an IPv4 address with `address`; a truncated answer first, then by TCP."""

    def __init__(self, address: str, *, truncates: bool = False) -> None:
        self._packed = socket.inet_aton(address)
        self._truncates = truncates
        self.asked: list[str] = []
        self._streams, self._datagrams = _at_one_port()
        self.port: int = self._streams.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        threading.Thread(target=self._serve_streams, daemon=True).start()

    def _answer(self, query: bytes) -> bytes:
        question = dns.parse(query)
        self.asked.append(str(question.name))
        return dns.address_answer(question, self._packed, None)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                query, sender = self._datagrams.recvfrom(65535)
                answer = self._answer(query)
                self._datagrams.sendto(b"forged", sender)
                if self._truncates:
                    answer = answer[:2] + bytes([answer[2] | 2]) + answer[3:]
                self._datagrams.sendto(answer, sender)

    def _serve_streams(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._streams.accept()[0] as stream:
                    stream.sendall(dns.framed(self._answer(stream.recv(65535)[2:])))

    def close(self) -> None:
        self._streams.shutdown(socket.SHUT_RDWR)
        self._streams.close()
        self._datagrams.close()


@pytest.mark.parametrize("truncates", [False, True])
def test_the_nameservers_of_the_policy_are_asked(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, truncates: bool
) -> None:
    monkeypatch.setattr(dns_lookup, "_PATIENCE", 0.2)
    server = Nameserver("127.0.0.1", truncates=truncates)
    monkeypatch.setattr(dns_lookup, "PORT", server.port)
    entries = (f"found.example:{echo.port}", f"127.0.0.1:{echo.port}", "other.example:443")
    served = Served(*entries, nameservers=("127.0.0.77", "127.0.0.1"))  # the first one does not answer
    try:
        assert served.ask(connect(f"found.example:{echo.port}"), b"\0\1\2") == b"\0\1\2"
        assert served.ask(connect(f"127.0.0.1:{echo.port}"), b"\0\1\2") == b"\0\1\2"
        assert b"resolves to 127.0.0.1" in served.ask(connect("other.example:443"))
    finally:
        served.close()
        server.close()
    assert set(server.asked) == {"found.example", "other.example"}
    assert b"cannot be resolved" in Served("gone.example", nameservers=("127.0.0.1",)).ask(
        connect("gone.example:443")
    )
