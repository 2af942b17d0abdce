"""Host names and addresses: one parser, one spelling, nothing that has two readings."""

from __future__ import annotations

import pytest

from staddle.errors import PolicyError
from staddle.hostnames import canonical, checked_port, parse


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("github.com:22,443", "github.com:22,443"),
        ("github.com:443,22,443", "github.com:22,443"),
        ("*.github.com:443", "*.github.com:443"),
        ("*.GitHub.com.", "*.github.com"),
        ("localhost:8000", "localhost:8000"),
        ("my_service:80", "my_service:80"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7/32:1", "192.0.2.7:1"),
        ("10.1.0.0/16:5432", "10.1.0.0/16:5432"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:DB8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("udp://192.0.2.53:53", "udp://192.0.2.53:53"),
        ("tcp://example.com", "example.com"),
        ("!ads.example.com", "!ads.example.com"),
        ("!udp://*.example.com:53", "!udp://*.example.com:53"),
        ("!udp://*.example.com", "!udp://*.example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("*.münchen.de:443", "*.xn--mnchen-3ya.de:443"),
        ("a" * 63 + ".com", "a" * 63 + ".com"),
    ],
)
def test_an_entry_has_one_spelling(entry: str, text: str) -> None:
    rule = parse(entry)
    assert str(rule) == text
    assert parse(str(rule)) == rule


@pytest.mark.parametrize(
    "entry",
    [
        "",
        ".",
        "!",
        "*",
        "*:443",
        "!*",
        "**",
        "*.",
        "*.*.com",
        "*x.com",
        "a.*.com",
        "x*",
        "*.1.2.3.4",
        "a..b",
        ".a",
        "a..",
        "-a.com",
        "a-.com",
        "a" * 64 + ".com",
        ".".join(["a" * 60] * 5),
        "a b.com",
        " a.com",
        "a.com\n",
        "a.com\r\nHost: b.com",
        "a.com\0.b.com",
        "a.com\t",
        "a\x7f.com",
        "a\u200b.com",
        "a\u2028.com",
        "a\u3002com",
        "a\uff0ecom",
        "\uff45xample.com",
        "faß.de",
        "ς.gr",
        "a\u00ad.com",
        "1\u0666.0.0.1",
        "user@example.com",
        "user:pw@example.com",
        "exa%6dple.com",
        "example.com%00",
        "fe80::1%eth0",
        "https://example.com",
        "example.com/path",
        "http:example.com",
        "example.com:0",
        "example.com:65536",
        "example.com:",
        "example.com:http",
        "example.com:-1",
        "example.com:+1",
        "example.com:080",
        "example.com:80,",
        "example.com:80-90",
        "example.com:\u0668",
        "example.com:999999999999999999999",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "017700000001",
        "010.0.0.1",
        "1.2.3.4.",
        "1.2.3.4.5",
        "1.2.3.256",
        "foo.123",
        "foo.0x1f",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/08",
        "10.0.0.0/255.0.0.0",
        "example.com/24",
        "2001:db8::1/32",
        "[::1",
        "::1]",
        "[::1]443",
        "[::1]:",
        "[example.com]:443",
        "[192.0.2.1]:443",
        "a:b:c",
        "exa\\mple.com",
        "example.com?x",
        "example.com#x",
        "!!example.com",
        "udp://192.0.2.53",
        "udp://example.com",
        "\udcff.com",
    ],
)
def test_what_has_no_or_two_readings_is_refused(entry: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(entry)
    assert not {"\n", "\r", "\0"} & set(str(caught.value))


@pytest.mark.parametrize("entry", [None, 5, b"example.com", ["example.com"]])
def test_a_host_is_text(entry: object) -> None:
    with pytest.raises(PolicyError):
        parse(entry)  # type: ignore[arg-type]


def test_host_bits_are_refused_with_the_network_that_was_meant() -> None:
    with pytest.raises(PolicyError) as caught:
        parse("10.1.2.3/16")
    assert caught.value.fix == "write 10.1.0.0/16"


def test_subdomains_are_whole_labels_and_not_the_name_itself() -> None:
    rule = parse("*.example.com:443")
    assert rule.matches("a.example.com", 443)
    assert rule.matches("a.b.example.com", 443)
    assert rule.matches("A.EXAMPLE.COM.", 443)
    for host in (
        "example.com",
        "evil-example.com",
        "notexample.com",
        "example.com.evil",
        "a.example.com.evil",
    ):
        assert not rule.matches(host, 443)
    assert not rule.matches("a.example.com", 80)


def test_a_name_matches_itself_in_any_spelling_and_nothing_else() -> None:
    rule = parse("bücher.example")
    assert rule.matches("BÜCHER.example.", 1)
    assert rule.matches("xn--bcher-kva.example", 65535)
    for host in ("bucher.example", "a.bücher.example", "bücher.example\0.evil.com", "bücher.example ", ""):
        assert not rule.matches(host, 443)


def test_addresses_match_by_number_not_by_text() -> None:
    rule = parse("10.1.0.0/16:5432")
    assert rule.matches("10.1.2.3", 5432)
    assert rule.matches("::ffff:10.1.2.3", 5432)
    assert rule.matches("[::ffff:a01:203]", 5432)
    for host in ("10.2.0.1", "10.1", "0xa.1.2.3", "167838211", "010.1.2.3", "10.1.2.3.example.com"):
        assert not rule.matches(host, 5432)
    assert parse("2001:db8::/32").matches("2001:0DB8:0::1", 1)
    assert not parse("2001:db8::/32").matches("10.0.0.1", 1)
    assert not parse("::/0").matches("::ffff:10.0.0.1", 1)


def test_a_name_rule_does_not_match_an_address_nor_the_other_way_round() -> None:
    assert not parse("example.com").matches("192.0.2.1", 443)
    assert not parse("0.0.0.0/0").matches("example.com", 443)


def test_protocols_are_kept_apart() -> None:
    assert parse("udp://192.0.2.53:53").matches("192.0.2.53", 53, "udp")
    assert not parse("udp://192.0.2.53:53").matches("192.0.2.53", 53)
    assert not parse("192.0.2.53:53").matches("192.0.2.53", 53, "udp")


def test_canonical_is_what_rules_compare() -> None:
    assert canonical("EXAMPLE.com.") == "example.com"
    assert canonical("[::1]") == "::1"
    assert canonical("::FFFF:127.0.0.1") == "127.0.0.1"
    with pytest.raises(PolicyError):
        canonical("example.com:443:")


@pytest.mark.parametrize("port", [0, -1, 65536, True, 80.0, "80", None])
def test_ports_are_whole_numbers_in_range(port: object) -> None:
    assert checked_port(1) == 1
    assert checked_port(65535) == 65535
    with pytest.raises(PolicyError):
        checked_port(port)


def test_a_refusal_is_for_both_protocols_unless_it_says_udp() -> None:
    assert parse("!example.com").matches("example.com", 53, "udp")
    assert parse("!tcp://example.com").matches("example.com", 53, "udp")
    assert not parse("!udp://example.com").matches("example.com", 53, "tcp")
    assert not parse("example.com").matches("example.com", 53, "udp")


def test_what_a_rule_covers_does_not_depend_on_ports() -> None:
    assert parse("example.com:443").covers("EXAMPLE.com.")
    assert parse("udp://*.example.com:53").covers("a.example.com")
    assert not parse("*.example.com").covers("example.com")
    assert not parse("10.0.0.0/8").covers("example.com")
    assert not parse("example.com").covers("exa mple.com")
