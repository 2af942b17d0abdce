"""However a host is written, it is refused or the one on the list: in policies, DNS, TLS and HTTP alike."""

from __future__ import annotations

import _socket
import ipaddress
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import Network
from staddle.ipc.gateway_messages import GatewaySettings
from staddle.network.gateway.dns_server import _DnsServerStream
from staddle.network.gateway.gateway import Gateway
from staddle.network.rules import dns, synthetic
from staddle.network.rules.rules import decide, may_ask, resolved
from staddle.network.rules.sniff import parse_opening
from tests.unit.network.rules.hellos import hello, server_name

ENTRIES = ("api.example.com", "*.wild.example", "192.0.2.7:443")
NETWORK = Network.allow(*ENTRIES)
many = settings(max_examples=150, deadline=None, derandomize=True)

LETTERS = {"a": "\u0430", "e": "\u0435", "p": "\u0440", "i": "\u0456", "c": "\u0441", "o": "\u03bf"}
DOTS = ["\u3002", "\uff0e", "\uff61", "\u2024", "%2e", "%2E", "\\.", "..", " ."]
WITHIN = ["\0", "\r\n", "\n", "\t", " ", "%00", "%0d%0a", "@", "/", "\\", "#", "?", ":", ";", ","]
WITHIN += ["\u200b", "\xad", "\x7f"]
AROUND = ["evil", "xn--", "-", "_", "*", "user@", "[", "]", "http://", "//", "evil.com#", "1.", "0x"]


@st.composite
def tricks(draw: st.DrawFn) -> str:
    """A spelling of a host on the list, or of one that is meant to be taken for it."""
    host = draw(st.sampled_from(["api.example.com", "a.wild.example", "wild.example", "x.y.wild.example"]))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(host)))
        kind = draw(st.sampled_from(["case", "dot", "within", "around", "alike", "suffix", "labels", "end"]))
        if kind == "case":
            host = host[:at] + host[at : at + 4].upper() + host[at + 4 :]
        elif kind == "dot":
            host = host.replace(".", draw(st.sampled_from(DOTS)), draw(st.integers(1, 2)))
        elif kind == "within":
            host = host[:at] + draw(st.sampled_from(WITHIN)) + host[at:]
        elif kind == "around":
            host = draw(st.sampled_from(AROUND)) + host
        elif kind == "alike":
            letter = draw(st.sampled_from(sorted(LETTERS)))
            host = host.replace(letter, LETTERS[letter], 1)
        elif kind == "suffix":
            host += draw(st.sampled_from([".evil.com", "evil", "-evil.com", "..", ".0", ":443"]))
        elif kind == "labels":
            host = "a" * draw(st.sampled_from([63, 64, 253])) + "." + host
        else:
            host += "."
    return host


def listed(host: str) -> str | None:
    """The host on the list that this is, by the plainest reading there is."""
    plain = host.lower().removesuffix(".") if host.isascii() else ""
    labels = plain.split(".")
    whole = all(1 <= len(x) <= 63 and set(x) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_") for x in labels)
    if not whole or len(plain) > 253:
        return None
    return plain if plain == "api.example.com" or plain.endswith(".wild.example") else None


@pytest.mark.slow
@many
@given(tricks())
def test_no_spelling_passes_for_a_host_on_the_list(host: str) -> None:
    for verdict in (decide(host, 443, NETWORK), may_ask(host, NETWORK)):
        if verdict.allowed and host.isascii():
            assert verdict.host == listed(host)
        elif verdict.allowed:  # another script, beneath a wildcard: one spelling, which leads back to it
            assert listed(verdict.host) == verdict.host != "api.example.com"
            assert verdict.host.encode("ascii").decode("idna") == host.lower().removesuffix(".")
    try:
        wire = host.encode("utf-8")
    except UnicodeEncodeError:
        return
    seen = parse_opening(hello(server_name(wire)))
    assert seen is not None
    assert seen.name is None or not may_ask(seen.name, NETWORK).allowed or seen.name == listed(host)
    request = parse_opening(b"GET / HTTP/1.1\r\nHost: " + wire + b"\r\n\r\n")
    if request is not None and request.protocol == "http" and request.name is not None:
        bare = host.partition("\n")[0].strip(" \t\r").removesuffix(":443")  # the line that it is on
        assert not may_ask(request.name, NETWORK).allowed or request.name == listed(bare)


@pytest.mark.slow
@many
@given(tricks())
def test_no_spelling_gets_an_address_but_the_hosts_own(host: str) -> None:
    labels = [label.encode("utf-8") for label in host.split(".")]
    if any(not 1 <= len(label) <= 63 for label in labels) or sum(map(len, labels)) + len(labels) > 254:
        return  # cannot be written in a question at all
    wire = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    with_gateway(lambda gateway: _asked(gateway, wire, host))


def _asked(gateway: Gateway, wire: bytes, host: str) -> None:
    packet = struct.pack(">HHHHHH", 9, 0x100, 1, 0, 0, 0) + wire + struct.pack(">HH", dns.A, 1)
    answer = gateway.dns_server.answer(packet)
    assert answer is not None
    if struct.unpack_from(">H", answer, 6)[0]:
        assert gateway.addresses.name(answer[-4:]) == listed(host)
        assert listed(host) is not None


def with_gateway(work: Callable[[Gateway], None]) -> None:
    line, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    gateway = Gateway(theirs)
    theirs.setblocking(False)
    try:
        gateway._set(GatewaySettings("allow", ENTRIES))
        gateway.dns_server.v6 = True
        work(gateway)
    finally:
        line.close()
        theirs.close()
        gateway.budget.close()


NUMERIC = [
    "127.1", "127.0.1", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "017700000001", "127.0.0.1.",
    "127.0.0.01", "::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "0:0:0:0:0:ffff:7f00:0001", "[::1]",
    "64:ff9b::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "::1%lo", "fe80::1%eth0", "0", "0.0.0.0",
    "\uff11\uff12\uff17.0.0.1", "\u2460.0.0.1", "1e9", "127.0.0.1:80", "+127.0.0.1", "127.0.0.256",
    "169.254.169.254",
]  # fmt: skip


@pytest.mark.parametrize("host", NUMERIC)
def test_no_spelling_of_a_number_reaches_the_host_itself(host: str) -> None:
    assert not decide(host, 443, NETWORK).allowed
    assert not may_ask(host, NETWORK).allowed
    wide = Network.allow("api.example.com", "0.0.0.0/0", "::/0", "!127.0.0.0/8", "!::1", "!169.254.0.0/16")
    verdict = decide(host, 443, wide)
    if verdict.allowed:  # read as one address, and no machine reads it as one that is refused
        shown = ipaddress.ip_address(verdict.host)
        assert not shown.is_loopback
        assert str(shown) in ("0.0.0.0", "fe80::1")
    if ":" in host or host.count(".") == 3:
        try:
            ipaddress.ip_address(host.strip("[]."))
        except ValueError:
            return
        assert not resolved("api.example.com", host.strip("[]."), 443, NETWORK).allowed


@pytest.mark.slow
@many
@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:{}", "64:ff9b::{}", "::{}", "::ffff:0:{}"]))
def test_an_address_inside_an_address_is_judged_as_what_it_is(
    inner: ipaddress.IPv4Address, form: str
) -> None:
    written = form.format(inner)
    if not resolved("api.example.com", str(inner), 443, NETWORK).allowed:
        assert not resolved("api.example.com", written, 443, NETWORK).allowed
    refused = Network.allow("0.0.0.0/0", "::/0", f"!{inner}")
    assert not decide(written, 443, refused).allowed


@pytest.mark.slow
@many
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 4))
def test_questions_over_tcp_may_be_cut_anywhere(cuts: list[int], count: int) -> None:
    question = (
        struct.pack(">HHHHHH", 9, 0x100, 1, 0, 0, 0) + b"\3api\7example\3com\0" + struct.pack(">HH", 1, 1)
    )
    sent = dns.framed(question) * count

    def work(gateway: Gateway) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        for each in (ours, theirs):
            each.setblocking(False)
        stream = _DnsServerStream(gateway.dns_server, gateway, theirs)
        at = 0
        while at < len(sent):
            size = cuts[at % len(cuts)]
            ours.send(sent[at : at + size])
            stream._told(0)
            at += size
        answers = ours.recv(65536)
        stream.close()
        ours.close()
        for _ in range(count):
            found = dns.unframed(answers)
            assert found is not None
            answer, answers = found
            assert answer[-4:] == synthetic.v4(0)
        assert answers == b""

    with_gateway(work)
