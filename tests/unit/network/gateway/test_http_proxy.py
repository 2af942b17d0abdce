"""The proxy for macOS decides as the gateway does, and takes nothing that two could read differently."""

from __future__ import annotations

import base64
import contextlib
import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from staddle import Network
from staddle.network.gateway import proxy_names
from staddle.network.gateway.http_proxy import HttpProxy
from staddle.network.rules import dns
from tests.unit.network.rules.answers import aliased
from tests.unit.network.rules.hellos import hello, server_name

WORD = "the-word"
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

    def __init__(self, *entries: str, nameservers: tuple[str, ...] = (), only_the_name: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.where = self._listener.getsockname()
        network = Network.allow(*entries, dns=nameservers)
        if only_the_name:
            network = network.replace(rules=tuple(rule for rule in network.rules if rule.kind == "name"))
        proxy = HttpProxy(network, WORD)
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
    proxy = Served(f"localhost:{echo.port}", only_the_name=True)
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
    """Answers every question about an IPv4 address with `address`; a truncated answer first, then by TCP.

    The names of `aliases` are aliases of others.
    """

    def __init__(
        self, address: str, *, truncates: bool = False, aliases: dict[str, str] | None = None
    ) -> None:
        self._packed, self._aliases = socket.inet_aton(address), aliases or {}
        self._truncates = truncates
        self.asked: list[str] = []
        self._streams, self._datagrams = _at_one_port()
        self.port: int = self._streams.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        threading.Thread(target=self._serve_streams, daemon=True).start()

    def _answer(self, query: bytes) -> bytes:
        question = dns.parse(query)
        self.asked.append(str(question.name))
        alias = self._aliases.get(str(question.name))
        if alias is not None:
            return aliased(question, alias, self._packed)
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


def test_a_name_that_is_an_alias_of_a_refused_one_is_refused(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Nameserver(
        "127.0.0.1", aliases={"hidden.example": "bad.example", "found.example": "cdn.example"}
    )
    monkeypatch.setattr(proxy_names, "PORT", server.port)
    entries = (f"{name}:{echo.port}" for name in ("found.example", "hidden.example", "127.0.0.1"))
    served = Served(*entries, "!bad.example", nameservers=("127.0.0.1",))
    try:
        assert served.ask(connect(f"found.example:{echo.port}"), b"\0\1\2") == b"\0\1\2"
        refused = served.ask(connect(f"hidden.example:{echo.port}"))
        assert b"it is an alias of bad.example, refused by !bad.example" in refused
    finally:
        served.close()
        server.close()


def test_the_hosts_own_resolver_tells_aliases(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"found.example": ["x.cdn.example"], "hidden.example": ["x.cdn.example", "bad.example"]}
    real = socket.getaddrinfo

    def addresses(host: str, *words: object, **options: object) -> object:
        return real("127.0.0.1" if host in names else host, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    monkeypatch.setattr(socket, "gethostbyname_ex", lambda name: ("last.example", names[name], ["127.0.0.1"]))
    entries = (f"{name}:{echo.port}" for name in (*names, "127.0.0.1"))
    served = Served(*entries, "!bad.example")
    try:
        assert served.ask(connect(f"found.example:{echo.port}"), b"\0\1\2") == b"\0\1\2"
        refused = served.ask(connect(f"hidden.example:{echo.port}"))
        assert b"it is an alias of bad.example, refused by !bad.example" in refused
    finally:
        served.close()


@pytest.mark.parametrize("truncates", [False, True])
def test_the_nameservers_of_the_policy_are_asked(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, truncates: bool
) -> None:
    monkeypatch.setattr(proxy_names, "_PATIENCE", 0.2)
    server = Nameserver("127.0.0.1", truncates=truncates)
    monkeypatch.setattr(proxy_names, "PORT", server.port)
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


# Connections that are led here, of programs that know of no proxy.


def led(proxy: Served, line: str, *then: bytes) -> bytes:
    """All that comes back: first one byte, an error's number or 0."""
    return proxy.ask(line.encode() + b"".join(then))


def asked(proxy: Served, name: str, kind: int = dns.A) -> bytes:
    """The address that a program gets for a name; nothing when it has none."""
    answer = led(proxy, f"staddle {WORD} dns 53 go\n", dns.framed(dns.query(7, name, kind)))
    assert answer[:1] == b"\0"
    found = dns.read_answer(answer[3:], 7, name, kind)
    return b"".join(found.addresses)


@pytest.fixture
def known(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A proxy that finds found.example at the echo server."""
    server = Nameserver("127.0.0.1")
    monkeypatch.setattr(proxy_names, "PORT", server.port)
    entries = (
        f"found.example:{echo.port}",
        f"*.wild.example:{echo.port}",
        f"127.0.0.1:{echo.port}",
        "!bad.example",
    )
    made = Served(*entries, "private.example", nameservers=("127.0.0.1",))
    yield made
    made.close()
    server.close()


@pytest.mark.parametrize("how", ["wait", "go"])
@pytest.mark.parametrize("name", ["found.example", "a.wild.example"])
def test_an_allowed_name_has_an_address_that_leads_to_it(
    known: Served, echo: Echo, how: str, name: str
) -> None:
    address = socket.inet_ntoa(asked(known, name))
    line = f"staddle {WORD} {address} {echo.port} {how}\n"
    assert led(known, line, b"\1\2\3") == b"\0\1\2\3"
    assert led(known, line, client_hello(name)) == b"\0" + client_hello(name)
    assert led(known, line, client_hello("other.example")) == b"\0"


@pytest.mark.parametrize(
    ("name", "kind"), [("evil.example", dns.A), ("bad.example", dns.A), ("found.example", dns.AAAA)]
)
def test_other_names_and_families_have_none(known: Served, name: str, kind: int) -> None:
    assert asked(known, name, kind) == b""


def test_a_connection_that_is_refused_is_told_so(known: Served, echo: Echo) -> None:
    address = socket.inet_ntoa(asked(known, "found.example"))
    private = socket.inet_ntoa(asked(known, "private.example"))
    for how in ("wait", "go"):
        assert led(known, f"staddle {WORD} {address} 1 {how}\n") == bytes([errno.EACCES])
        assert led(known, f"staddle {WORD} 198.18.9.9 {echo.port} {how}\n") == bytes([errno.EHOSTUNREACH])
        assert led(known, f"staddle {WORD} 10.0.0.1 80 {how}\n") == bytes([errno.EACCES])
    # What a name leads to is known when it is looked up: after `go` was answered.
    assert led(known, f"staddle {WORD} {private} {echo.port + 1} wait\n") == bytes([errno.EACCES])
    assert led(known, f"staddle {WORD} {private} {echo.port + 1} go\n", b"x") == b"\0"


@pytest.mark.parametrize(
    "line",
    [
        "staddle wrong 198.18.1.0 80 go\n",
        "staddle the-word 198.18.1.0 80 run\n",
        "staddle \n",
        "staddle a b c d\n",
        "staddle",
    ],
)
def test_another_first_line_is_not_served(known: Served, line: str) -> None:
    answer = led(known, line)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
