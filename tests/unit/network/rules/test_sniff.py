"""The name in the first bytes: found wherever they are split, and never where there is none."""

from __future__ import annotations

import socket
import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.linux.netlink import attribute, message
from staddle.network.rules.sniff import LONGEST, OTHER, Opening, destinations, objection, parse_opening
from staddle.policy.network import Network
from tests.unit.network.rules.hellos import extension, hello, real, server_name

GET = b"GET / HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n"


def whole(data: bytes) -> Opening:
    seen = parse_opening(data)
    assert seen is not None
    return seen


# TLS.


def test_the_server_name_of_a_real_client_is_found_at_every_split() -> None:
    data = real("API.example.com")
    for cut in range(len(data)):
        assert parse_opening(data[:cut]) is None
    assert parse_opening(data) == Opening("tls", "api.example.com")
    assert parse_opening(data + b"more") == Opening("tls", "api.example.com")


def test_a_client_without_a_server_name_says_none() -> None:
    assert parse_opening(real(None)) == Opening("tls", None)
    assert parse_opening(hello()) == Opening("tls", None)


@pytest.mark.parametrize("records", [2, 3, 7, 50, 200])
def test_an_opening_in_many_records_is_put_together(records: int) -> None:
    data = hello(extension(10, b"\0\2\0\x1d"), server_name(b"api.example.com"), records=records)
    assert parse_opening(data) == Opening("tls", "api.example.com")
    assert parse_opening(data[:-1]) is None


def test_the_outer_name_of_an_encrypted_opening_is_the_one_that_counts() -> None:
    encrypted = extension(0xFE0D, b"\0" * 200)
    assert parse_opening(hello(encrypted, server_name(b"front.example"))) == Opening("tls", "front.example")


@pytest.mark.parametrize(
    "data",
    [
        hello(server_name(b"a.com"), server_name(b"b.com")),
        hello(server_name(b"a.com"), server_name(b"a.com")),
        hello(server_name(b"a.com", kind=1)),
        hello(server_name(b"a.com\0.evil.com")),
        hello(server_name(b"")),
        hello(server_name(b"a b")),
        hello(server_name("bücher.example".encode())),
        hello(server_name(b"127.1")),
        hello(server_name(b"a" * 300)),
        hello(extension(0, b"")),
        hello(extension(0, b"\0\0")),
        hello(extension(0, b"\xff\xff\0\0\1a")),
        hello(server_name(b"a.com"))[:-1].replace(b"\x16\3\1\0", b"\x16\3\1\0") + b"\xff\xff\xff",
        b"\x16\3\1\0\0",
        b"\x16\3\1\xff\xff",
        b"\x16\3\1\0\5\2\0\0\1\0",
        b"\x16\3\1\0\4\1\xff\xff\xff",
        b"\x16\3\1\0\1\1\x17\3\1\0\1\0",
        b"\x80\x2e\1\3\1\0\x15\0\0\0\x10",
    ],
)
def test_a_wrong_opening_has_no_name(data: bytes) -> None:
    seen = parse_opening(data)
    assert seen is None or (seen.protocol == "tls" and seen.name is None)
    if seen is None:
        assert whole(data + bytes(LONGEST)).name is None


def test_a_server_reads_the_same_name() -> None:
    for name in ("api.example.com", "a.b.c.d.example"):
        found: list[str | None] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = lambda _s, n, _c, found=found: found.append(n)  # type: ignore[misc]
        incoming = ssl.MemoryBIO()
        incoming.write(real(name))
        server = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
        with pytest.raises(ssl.SSLError):
            server.do_handshake()
        assert found == [whole(real(name)).name]


HELLO = hello(server_name(b"api.example.com"))
ALERT = b"\x15\3\1\0\2\1\x5a"
FIRST_RECORDS = {
    "a warning": ALERT,
    "a fatal alert": b"\x15\3\1\0\2\2\x28",
    "an empty alert": b"\x15\3\1\0\0",
    "an alert of another version": b"\x15\2\0\0\2\1\x5a",
    "change_cipher_spec": b"\x14\3\3\0\1\1",
    "application data": b"\x17\3\3\0\1x",
    "empty application data": b"\x17\3\3\0\0",
    "heartbeat": b"\x18\3\2\0\3\1\0\0",
    "an empty handshake record": b"\x16\3\1\0\0",
    "a hello request": b"\x16\3\1\0\4\0\0\0\0",
}


@pytest.mark.parametrize("first", FIRST_RECORDS.values(), ids=FIRST_RECORDS)
def test_a_hello_after_another_record_is_refused_at_every_split(first: bytes) -> None:
    """Some servers drop such a record, and go on with the hello: the name in it would not be seen."""
    data = first + HELLO
    seen = whole(data)
    assert seen.protocol == "tls"
    assert seen.problem
    assert {parse_opening(data[:cut]) for cut in range(1, len(data))} <= {None, seen}
    assert objection(seen, "api.example.com", Network.allow("api.example.com"))


@pytest.mark.parametrize("between", FIRST_RECORDS.values(), ids=FIRST_RECORDS)
def test_a_record_between_the_parts_of_a_hello_is_refused(between: bytes) -> None:
    parts = hello(server_name(b"api.example.com"), records=2)
    at = 5 + int.from_bytes(parts[3:5], "big")
    seen = whole(parts[:at] + between + parts[at:])
    assert (seen.protocol, seen.name) == ("tls", None)
    assert seen.problem or between[5:6] == b"\0"  # more of the message, whatever that says


@pytest.mark.parametrize("version", [b"\0\0", b"\2\0", b"\4\1", b"\x0f\xff", b"\xff\xff"])
def test_the_version_of_a_record_does_not_hide_a_hello(version: bytes) -> None:
    """Servers are told to ignore it."""
    data = HELLO[:1] + version + HELLO[3:]
    said = {parse_opening(data[:cut]) for cut in range(1, len(data) + 1)}
    assert said == {None, Opening("tls", None, "its opening is malformed")}


def test_the_opening_of_ssl_2_is_seen_at_every_split() -> None:
    data = b"\x80\x2e\1\3\1\0\x15\0\0\0\x10" + bytes(37)
    assert {parse_opening(data[:cut]) for cut in range(1, len(data))} == {None, Opening("tls", None)}


def test_an_opening_that_hides_its_name_is_refused_at_an_address_when_a_name_is() -> None:
    hidden = whole(ALERT + HELLO)
    assert objection(hidden, None, Network.allow("192.0.2.1", "!api.example.com"))
    assert not objection(hidden, None, Network.allow("192.0.2.1", "!192.0.2.2"))


# HTTP.


def test_the_host_of_a_request_is_found_at_every_split() -> None:
    for cut in range(len(GET)):
        assert parse_opening(GET[:cut]) is None
    assert parse_opening(GET) == parse_opening(GET + b"body") == Opening("http", "api.example.com")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nhOST:api.example.com:8080\r\n\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\nHost: API.EXAMPLE.COM.\r\n\r\n",
        b"GET / HTTP/1.1\nHost: api.example.com\n\n",
        b"GET http://api.example.com/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        b"GET http://api.example.com HTTP/1.0\r\n\r\n",
        b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
        b"FOO /?u=http://evil.com HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        b" \tGET  /  HTTP/1.1\r\nHost:\tapi.example.com\r\n\r\n",
        b"get / http/1.1\r\nHost: api.example.com\r\n\r\n",
    ],
)
def test_a_host_is_found_however_it_is_written(data: bytes) -> None:
    assert parse_opening(data) == Opening("http", "api.example.com")
    if not data.startswith(b"FOO"):  # a method that nobody knows is not waited for
        for cut in range(len(data)):
            assert parse_opening(data[:cut]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a.com\r\nHost: b.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.com\r\nHost: a.com\r\n\r\n",
        b"GET http://b.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
        b"CONNECT b.com:443 HTTP/1.1\r\nHost: a.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.com\r\n b.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a.com\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.com\0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.com\rHost: b.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.com, b.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: user@a.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.com:x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: b\xc3\xbccher.example\r\n\r\n",
        b"GET / x HTTP/1.1\r\nHost: a.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nnonsense\r\n\r\n",
        b"GET / HTTP/1.1\rHost: a.com\r\n\r\n",
        b"GET\t/\tHTTP/1.1\r\nHost: a.com\r\n\r\n",
        b"GET /\vHTTP/1.1\r\nHost: a.com\r\n\r\n",
        b"GET /\xa0HTTP/1.1\r\nHost: a.com\r\n\r\n",
        b"GET / HTTQ/1.1\r\nHost: a.com\r\n\r\n",
        b"FOO / HTTP/1.1 x\r\nHost: a.com\r\n\r\n",
        b"GET /" + b"a" * 9000,
        b"GET / HTTP/1.1\r\nX: " + b"a" * LONGEST,
    ],
)
def test_a_request_with_two_readings_has_none(data: bytes) -> None:
    seen = whole(data)
    assert seen.protocol == "http"
    assert seen.name is None
    assert seen.problem


@pytest.mark.parametrize(
    "data",
    [
        b"GET http://other.example/\r\n",
        b"GET http://other.example/\n",
        b"\r\n\r\nGET http://other.example/\r\n",
        b"get HTTP://other.example/\r\n",
        b"POST https://other.example\r\n",
        b"GET  \t http://other.example/ \r\n",
        b"GET http://other.example/ x\r\n",
        b"GET http://other.example/\1\r\n",
        b"GET http://other.example/\0\r\n",
        b"GET /\r\n",
        b"GET //other.example/\r\n",
        b"HEAD /x y z\r\n",
    ],
)
def test_a_request_without_a_version_is_refused_at_every_split(data: bytes) -> None:
    """Servers of HTTP/0.9 answer it, for the host in its target or for any."""
    seen = Opening("http", None, "its request line is malformed")
    assert {parse_opening(data[:cut]) for cut in range(1, len(data) + 1)} == {None, seen}
    assert objection(seen, "api.example.com", Network.allow("api.example.com"))


def test_the_preface_of_http_2_is_one_as_a_whole_only() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert {parse_opening(preface[:cut]) for cut in range(1, len(preface))} == {None}
    assert parse_opening(preface + b"frames") == OTHER
    request = b"PRI * HTTP/2.0\r\nHost: api.example.com\r\n\r\n"
    assert {parse_opening(request[:cut]) for cut in range(1, len(request))} == {None}
    assert parse_opening(request) == Opening("http", "api.example.com")


def test_a_request_without_a_host_says_none() -> None:
    assert parse_opening(b"GET / HTTP/1.0\r\n\r\n") == Opening("http", None)
    assert parse_opening(b"GET / HTTP/1.1\r\nHost:\r\n\r\n") == Opening("http", None)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\x16\2\0\0\1\7",
        b"\x16\1\0\0\1\0\0\0",  # a little-endian length, as databases have it
        b"\x15\0\0\0\2\0",
        b"\x14\0\xfd\5\rm.example",
        b"\x80\x2e\2",
        b"hello",
        b"ping\r\n",
        b"GET key\r\n",
        b"get key\r\n",
        b"CONNECT\naccept-version:1.2\n\n\0",
        b'<14>Oct 11 22:14:15 web: "GET / HTTP/1.1" 200\n',
        b"*1\r\n$4\r\nPING\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff\xfe",
        b"EHLO me\r\n",
        b"{}",
        bytes(20000),
        b"x" * 20000,
    ],
)
def test_other_protocols_are_let_be_at_once(data: bytes) -> None:
    assert parse_opening(data) == OTHER


def test_nothing_says_nothing() -> None:
    assert parse_opening(b"") is None
    assert parse_opening(b"\r\n") is None


@given(st.binary(max_size=300))
def test_no_bytes_break_it_and_enough_bytes_always_get_an_answer(data: bytes) -> None:
    parse_opening(data)
    assert parse_opening(data + bytes(LONGEST)) is not None


@given(st.integers(0, 600), st.integers(0, 255), st.sampled_from(["tls", "http"]))
def test_one_wrong_byte_gives_a_name_only_when_it_is_well_formed(at: int, byte: int, kind: str) -> None:
    data = bytearray(hello(server_name(b"api.example.com")) if kind == "tls" else GET)
    data[at % len(data)] = byte
    seen = parse_opening(bytes(data))
    if seen is not None and seen.name is not None:
        assert seen.problem == ""
        assert seen.name == seen.name.lower()
        assert "\0" not in seen.name


@given(st.lists(st.integers(0, len(GET)), max_size=6))
def test_what_was_said_does_not_change_with_more_bytes(cuts: list[int]) -> None:
    answers = [parse_opening(GET[:cut]) for cut in sorted(cuts)]
    said = [seen for seen in answers if seen is not None]
    assert all(seen == said[0] for seen in said)


# Packets that the kernel tells about.


def told(packet: bytes) -> bytes:
    return message(4 << 8, 0, struct.pack(">BBH", 2, 0, 1) + attribute(1, bytes(4)) + attribute(9, packet))


def v4(protocol: int, host: str, port: int) -> bytes:
    return (
        b"\x45"
        + bytes(8)
        + bytes([protocol])
        + bytes(6)
        + socket.inet_aton(host)
        + struct.pack(">HH", 40000, port)
    )


def v6(protocol: int, host: str, port: int) -> bytes:
    head = b"\x60" + bytes(5) + bytes([protocol]) + bytes(1 + 16)
    return head + socket.inet_pton(socket.AF_INET6, host) + struct.pack(">HH", 40000, port)


def test_destinations_are_read_from_every_packet_of_a_message() -> None:
    whole = told(v4(6, "1.2.3.4", 443)) + told(v6(17, "2001:db8::1", 53)) + told(v4(1, "8.8.8.8", 0))
    assert list(destinations(whole)) == [("tcp", "1.2.3.4", 443), ("udp", "2001:db8::1", 53)]


def test_what_is_cut_is_skipped() -> None:
    assert list(destinations(told(v4(6, "1.2.3.4", 443)[:-1]))) == []
    assert list(destinations(told(b""))) == []
    assert list(destinations(told(v4(6, "1.2.3.4", 443))[:-4])) == []


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    list(destinations(data))
    list(destinations(told(data)))
