"""Who may be reached: one spelling decides, refusals win, and a name does not allow every address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle import Network
from staddle.hostnames import allow_entry, special
from staddle.network.rules.rules import decide, may_ask, refused_alias, refused_name, resolved

NETWORK = Network.allow(
    "api.example.com",
    "github.com:22,443",
    "*.wild.example:443",
    "!ads.wild.example",
    "10.1.0.0/16:5432",
    "!10.1.9.0/24",
    "[2001:db8::/32]:443",
    "udp://192.0.2.53:53",
    "!metadata.internal",
)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("api.example.com", 1),
        ("API.Example.COM.", 65535),
        ("github.com", 22),
        ("a.wild.example", 443),
        ("a.b.c.wild.example", 443),
        ("10.1.2.3", 5432),
        ("::ffff:10.1.2.3", 5432),
        ("[::ffff:a01:203]", 5432),
        ("2001:0DB8:0:0::1", 443),
    ],
)
def test_what_an_entry_allows_is_allowed_in_every_spelling(host: str, port: int) -> None:
    verdict = decide(host, port, NETWORK)
    assert verdict.allowed
    assert verdict.allow == ""


@pytest.mark.parametrize(
    ("host", "port", "why"),
    [
        ("evil.com", 443, "no entry"),
        ("github.com", 80, "port 80"),
        ("wild.example", 443, "no entry"),
        ("evilwild.example", 443, "no entry"),
        ("a.wild.example.evil.com", 443, "no entry"),
        ("ads.wild.example", 443, "!ads.wild.example"),
        ("10.1.9.7", 5432, "!10.1.9.0/24"),
        ("10.1.2.3", 80, "port 80"),
        ("192.0.2.53", 53, "port 53"),
        ("metadata.internal", 80, "!metadata.internal"),
        ("169.254.169.254", 80, "no entry"),
        ("127.0.0.1", 80, "no entry"),
    ],
)
def test_everything_else_is_refused_and_says_why(host: str, port: int, why: str) -> None:
    verdict = decide(host, port, NETWORK)
    assert not verdict.allowed
    assert why in verdict.rule


@pytest.mark.parametrize(
    "host",
    [
        "api.example.com\0.evil.com",
        "api.example.com\r\nHost: x",
        "api.example.com ",
        "api%2eexample.com",
        "user@api.example.com",
        "api\uff0eexample.com",
        "127.1",
        "0x7f000001",
        "2130706433",
        "010.0.0.1",
        "fe80::1%eth0",
        "",
        ".",
        "a" * 300,
    ],
)
def test_what_has_two_readings_is_refused_and_nothing_would_allow_it(host: str) -> None:
    verdict = decide(host, 443, NETWORK)
    assert not verdict.allowed
    assert verdict.allow == ""


def test_the_line_that_would_allow_it_does_allow_it() -> None:
    for host, port in (("evil.com", 443), ("10.9.9.9", 80), ("2001:4860::8888", 53), ("github.com", 80)):
        verdict = decide(host, port, NETWORK)
        assert decide(host, port, Network.allow(verdict.allow)).allowed
    udp = decide("192.0.2.1", 123, NETWORK, "udp")
    assert decide("192.0.2.1", 123, Network.allow(udp.allow), "udp").allowed
    assert allow_entry("2001:db8::1", 443) == "[2001:db8::1]:443"


def test_udp_is_asked_for_by_itself_and_a_refusal_is_for_both() -> None:
    assert decide("192.0.2.53", 53, NETWORK, "udp").allowed
    assert not decide("api.example.com", 53, NETWORK, "udp").allowed
    both = Network.allow("udp://10.0.0.0/8:53", "10.0.0.0/8:53", "!10.0.0.1", "!udp://10.0.0.2")
    assert not decide("10.0.0.1", 53, both, "udp").allowed
    assert not decide("10.0.0.1", 53, both, "tcp").allowed
    assert not decide("10.0.0.2", 53, both, "udp").allowed
    assert decide("10.0.0.2", 53, both, "tcp").allowed


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "169.254.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "198.18.0.7",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "2001:0:0808:808:0:0:80ff:fffe",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:2::5",
    ],
)
def test_a_name_does_not_lead_to_an_address_that_is_not_public(address: str) -> None:
    verdict = resolved("api.example.com", address, 443, NETWORK)
    assert not verdict.allowed
    assert special(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "172.32.0.1", "100.128.0.1"]
)
def test_a_name_leads_to_public_addresses(address: str) -> None:
    assert resolved("api.example.com", address, 443, NETWORK).allowed


def test_an_address_that_is_allowed_itself_may_be_behind_a_name() -> None:
    network = Network.allow("db.example.com:5432", "10.0.0.7:5432", "!10.0.0.8", "10.0.0.8:5432")
    assert resolved("db.example.com", "10.0.0.7", 5432, network).allowed
    assert not resolved("db.example.com", "10.0.0.7", 5433, network).allowed
    assert not resolved("db.example.com", "10.0.0.8", 5432, network).allowed
    refused = resolved("db.example.com", "10.0.0.9", 5432, network)
    assert refused.allow == "10.0.0.9:5432"
    assert "private" in refused.rule


def test_everything_is_not_the_same_as_the_address_itself() -> None:
    everything = Network.allow("api.example.com", "0.0.0.0/0", "::/0", "169.254.0.0/16", "10.0.0.0/8")
    for address in ("127.0.0.1", "192.168.1.1", "::1", "fd00::1", "169.254.169.254", "64:ff9b::7f00:1"):
        assert not resolved("api.example.com", address, 443, everything).allowed, address
    for address in ("10.1.2.3", "169.254.1.1", "8.8.8.8"):
        assert resolved("api.example.com", address, 443, everything).allowed, address


def test_a_refused_address_is_refused_also_where_a_translator_would_reach_it() -> None:
    network = Network.allow("::/0", "!10.0.0.0/8")
    for address in ("64:ff9b::a00:1", "2002:a00:1::", "::ffff:10.0.0.1"):
        assert not decide(address, 443, network).allowed, address
    assert decide("64:ff9b::808:808", 443, network).allowed


def test_a_refused_public_address_is_not_dialled_for_a_name() -> None:
    network = Network.allow("api.example.com", "!203.0.113.0/24")
    assert not resolved("api.example.com", "203.0.113.9", 443, network).allowed
    assert resolved("api.example.com", "198.51.100.9", 443, network).allowed


def test_only_allowed_names_may_be_resolved() -> None:
    for name in ("api.example.com", "GITHUB.com.", "x.wild.example"):
        assert may_ask(name, NETWORK).allowed
    for name in ("evil.com", "wild.example", "ads.wild.example", "metadata.internal", "10.1.2.3", "a b", ""):
        assert not may_ask(name, NETWORK).allowed
    assert not may_ask("api.example.com", Network.loopback([80])).allowed
    # refused at one port only: it still has an address
    assert may_ask("api.example.com", Network.allow("api.example.com", "!api.example.com:25")).allowed


def test_a_name_does_not_lead_through_a_name_that_is_refused() -> None:
    network = Network.allow("api.example.com", "cdn.example", "!*.ads.example", "!bad.example:443")
    for aliases, rule in (
        (("a.cdn.example", "x.ads.example", "b.cdn.example"), "!*.ads.example"),
        (("Bad.Example.",), "!bad.example:443"),
    ):
        refused = refused_alias("api.example.com", aliases, 443, network)
        assert refused is not None
        assert not refused.allowed
        assert refused.rule == f"it is an alias of {aliases[len(aliases) // 2]}, refused by {rule}"
        assert refused.allow == ""
    # Names that no entry mentions are no refusal: a content network has its own.
    assert refused_alias("api.example.com", ("x.cdn.net", "ads.example"), 443, network) is None
    assert refused_alias("api.example.com", ("bad.example",), 80, network) is None
    assert refused_alias("api.example.com", ("bad.example",), 443, network, "udp") is not None


def test_names_seen_in_tls_meet_refusals() -> None:
    assert refused_name("ads.wild.example", NETWORK) is not None
    assert refused_name("api.example.com", NETWORK) is None


def test_loopback_is_about_the_hosts_own_ports() -> None:
    network = Network.loopback([5432])
    assert decide("127.0.0.1", 5432, network).allowed
    assert not decide("127.0.0.1", 5433, network).allowed
    assert not decide("10.0.0.1", 5432, network).allowed


@given(st.text(max_size=80), st.integers(1, 65535))
def test_no_text_is_allowed_by_chance(host: str, port: int) -> None:
    verdict = decide(host, port, NETWORK)
    if verdict.allowed:
        assert NETWORK.permits(host, port)


@given(st.ip_addresses().map(str), st.integers(1, 65535))
def test_no_address_passes_behind_a_name_that_is_special_and_not_allowed(address: str, port: int) -> None:
    if resolved("api.example.com", address, port, NETWORK).allowed:
        assert not special(address) or NETWORK.permits(address, port)
