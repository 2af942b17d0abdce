"""What a server reads in an opening is what the gateway has read there: real servers are asked."""

from __future__ import annotations

import http.server
import io
import ssl

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from staddle.network.rules.sniff import LONGEST, Opening, parse_opening
from tests.unit.network.rules.hellos import extended, extension, hello, real, server_name

GOOD, EVIL = "api.example.com", "evil.example.net"
OPENINGS = [real(GOOD), real(EVIL), extended(real(EVIL), extension(0xFE0D, bytes(80)))]
_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

many = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def openssl_reads(data: bytes) -> str | None:
    """The server name that OpenSSL finds in an opening; None when it finds none, or no opening."""
    found: list[str | None] = []
    _CONTEXT.sni_callback = lambda _socket, name, _context: found.append(name)
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    server = _CONTEXT.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    try:
        server.do_handshake()
    except (ssl.SSLError, ValueError):
        pass
    return found[0] if found else None


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, data: bytes) -> None:
        self.rfile, self.wfile = io.BytesIO(data), io.BytesIO()
        self.client_address = ("", 0)
        self.hosts: list[str] | None = None
        self.raw_requestline = self.rfile.readline(65537)
        if self.raw_requestline and self.parse_request():
            self.hosts = self.headers.get_all("Host") or []

    def log_message(self, *_: object) -> None:
        pass


def python_reads(data: bytes) -> list[str] | None:
    """The Hosts that Python's server finds in a request; None when it finds no request."""
    return _Handler(data).hosts


def first_said(data: bytes, cuts: list[int]) -> Opening | None:
    """What the gateway goes by, when the bytes come in these pieces."""
    for cut in (*sorted(cuts), len(data)):
        seen = parse_opening(data[:cut])
        if seen is not None:
            return seen
    return None


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes replaced, taken out, put in and repeated."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["replace", "insert", "remove", "repeat"]))
        some = draw(st.binary(min_size=1, max_size=3))
        if kind == "replace":
            data[at : at + len(some)] = some
        elif kind == "insert":
            data[at:at] = some
        elif kind == "remove":
            del data[at : at + len(some)]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
        assume(data)
    return bytes(data)


# Python complains about a name that is not ASCII before anybody is asked about it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@many
@given(st.data(), st.sampled_from(OPENINGS), st.lists(st.integers(0, 700), max_size=4))
def test_no_opening_shows_openssl_a_name_that_the_gateway_did_not_see(
    data: st.DataObject, opening: bytes, cuts: list[int]
) -> None:
    sent = data.draw(damaged(opening))
    name = openssl_reads(sent)
    seen = first_said(sent, cuts)
    if name is not None:
        assert seen is not None
        assert seen.protocol == "tls"
        assert seen.problem or seen.name == name.lower().removesuffix(".")
    if seen is not None and seen.name == GOOD:
        assert name in (None, GOOD)


@pytest.mark.slow
@many
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.sampled_from([GOOD, EVIL]))
def test_records_of_any_size_say_the_same(sizes: list[int], name: str) -> None:
    whole = real(name)
    head, message, sent, at = whole[:3], whole[5:], b"", 0
    while at < len(message):
        part = message[at : at + sizes[0]]
        sizes = [*sizes[1:], sizes[0]]
        sent += head + len(part).to_bytes(2, "big") + part
        at += len(part)
    seen = [parse_opening(sent[:cut]) for cut in range(len(sent) + 1)]
    assert {each for each in seen if each is not None} == {Opening("tls", name)}
    assert seen[-1] is not None


SPACE = st.sampled_from([" ", " ", " ", "\t", "  "])
END = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n", "\r", "\0\r\n", "\r\n "])
HOST = st.sampled_from(
    [GOOD, EVIL, GOOD.upper(), f"{GOOD}.", f"{GOOD}:80", f"{EVIL}:80", f"{GOOD}@{EVIL}", f"{GOOD}, {EVIL}",
     f"{GOOD}\0", f"{GOOD}.{EVIL}", f" {GOOD}", "", "[::1]", "127.1", "2130706433"]
)  # fmt: skip
FIELD = st.sampled_from(["Host", "host", "HOST", "Host ", " Host", "X-Host", "Hos\u212a", "Accept", "H\0ost"])
TARGET = st.one_of(
    st.sampled_from(["/", "*", "/?u=http://x/", "/\u00e9"]), HOST.map(lambda host: f"http://{host}/x"), HOST
)
KNOWN = (b"GET", b"POST", b"CONNECT", b"OPTIONS")
METHOD = st.sampled_from(["GET", "POST", "CONNECT", "OPTIONS", "get", "FOO", "G3T", "PRI", ""])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Requests as clients, proxies and attackers write them."""
    words = [
        draw(METHOD),
        draw(TARGET),
        draw(st.sampled_from(["HTTP/1.1", "HTTP/1.0", "http/1.1", "HTTP/2"])),
    ]
    text = draw(st.sampled_from(["", "", "", "\r\n", "\n\n", " "])) + draw(SPACE).join(words) + draw(END)
    for _ in range(draw(st.integers(0, 3))):
        text += f"{draw(FIELD)}:{draw(SPACE)}{draw(HOST)}{draw(END)}"
    return (text + draw(END)).encode("utf-8") + draw(st.sampled_from([b"", b"body", b"Host: x\r\n\r\n"]))


@pytest.mark.slow
@many
@given(requests(), st.lists(st.integers(0, 200), max_size=4))
def test_no_request_shows_a_server_a_host_that_the_gateway_did_not_see(sent: bytes, cuts: list[int]) -> None:
    seen = first_said(sent, cuts) or parse_opening(sent + bytes(LONGEST))
    assert seen is not None
    hosts = python_reads(sent)
    if hosts and seen.protocol == "http" and not seen.problem:
        plain = {host.strip().lower().removesuffix(":80").strip("[].") for host in hosts if host.strip()}
        assert plain <= {seen.name}, (hosts, seen)
    if hosts and EVIL in hosts[0].lower():
        assert seen.name != GOOD, (hosts, seen)
        # A method that nobody knows, in pieces, is not recognised; all others are.
        assert seen.protocol == "http" or sent.split()[0].upper() not in KNOWN, (hosts, seen)


@pytest.mark.slow
@many
@given(requests())
def test_every_split_of_a_request_is_refused_or_says_the_same(sent: bytes) -> None:
    said = [seen for seen in (parse_opening(sent[:cut]) for cut in range(len(sent) + 1)) if seen is not None]
    names = {seen.name for seen in said if seen.protocol == "http" and not seen.problem}
    assert len(names) <= 1


@many
@given(st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=30)), max_size=5), st.binary(max_size=60))
def test_hellos_made_of_any_extensions_have_one_name_or_none(extra: list, name: bytes) -> None:  # type: ignore[type-arg]
    extensions = [extension(kind, content) for kind, content in extra]
    seen = parse_opening(hello(*extensions, server_name(name)))
    assert seen is not None
    if seen.name is not None:
        assert seen.name == name.decode("ascii").lower().removesuffix(".")
        assert all(kind for kind, _ in extra)
