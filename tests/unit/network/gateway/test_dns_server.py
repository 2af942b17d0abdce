"""The resolver inside: allowed names have addresses, others do not exist, whatever is sent."""

from __future__ import annotations

import _socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from staddle.ipc.gateway_messages import GatewaySettings, decode_attempt
from staddle.network.gateway.gateway import Gateway
from staddle.network.rules import dns, synthetic


class Inside:
    """A gateway that is not running, and what it tells."""

    def __init__(self, *entries: str, asks: int = 0) -> None:
        self._line, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.gateway = Gateway(theirs)
        self.gateway._socket.setblocking(False)
        self.gateway._set(GatewaySettings("allow", entries, asks=asks))
        self.gateway.dns_server.v6 = True

    def ask(self, name: str, kind: int = dns.A) -> tuple[int, bytes]:
        """The code of the answer, and its last record's content."""
        labels = b"".join(bytes([len(x)]) + x.encode() for x in name.split("."))
        packet = struct.pack(">HHHHHH", 9, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
        answer = self.gateway.dns_server.answer(packet)
        assert answer is not None
        size = 4 if kind == dns.A else 16
        return answer[3] & 15, answer[-size:] if struct.unpack_from(">H", answer, 6)[0] else b""

    def told(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(decode_attempt(self._line.recv(65536, _socket.MSG_DONTWAIT)).host)
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._line.close()
        self.gateway._socket.close()
        self.gateway.budget.close()


@pytest.fixture
def inside() -> Iterator[Inside]:
    made = Inside("api.example.com:443", "*.wild.example", "!no.wild.example", "10.0.0.0/8")
    yield made
    made.close()


def test_allowed_names_have_an_address_of_each_family_that_stays(inside: Inside) -> None:
    code, v4 = inside.ask("API.example.COM")
    assert (code, v4) == (dns.OK, synthetic.v4(0))
    assert inside.ask("api.example.com", dns.AAAA) == (dns.OK, synthetic.v6(0))
    assert inside.ask("a.wild.example") == inside.ask("a.wild.example") == (dns.OK, synthetic.v4(1))
    assert inside.ask("b.wild.example") == (dns.OK, synthetic.v4(2))
    assert inside.told() == []


@pytest.mark.parametrize("name", ["evil.com", "wild.example", "no.wild.example", "com", "x.api.example.com"])
def test_other_names_do_not_exist_and_are_told(inside: Inside, name: str) -> None:
    for kind in (dns.A, dns.AAAA, dns.HTTPS, 16, dns.ANY):
        assert inside.ask(name, kind) == (dns.NO_SUCH_NAME, b"")
    assert inside.told() == [name]


def test_localhost_and_addresses_are_answered_without_a_word(inside: Inside) -> None:
    assert inside.ask("localhost") == (dns.OK, bytes((127, 0, 0, 1)))
    assert inside.ask("app.localhost", dns.AAAA) == (dns.OK, bytes(15) + b"\1")
    inside.ask("api.example.com")
    assert inside.ask("0.1.18.198.in-addr.arpa", dns.PTR)[0] == dns.OK
    assert inside.ask("8.8.8.8.in-addr.arpa", dns.PTR)[0] == dns.NO_SUCH_NAME
    assert inside.told() == []


def test_when_there_is_no_room_the_resolver_says_so(inside: Inside) -> None:
    inside.gateway.addresses.narrow(2)
    assert [inside.ask(f"{c}.wild.example")[0] for c in "abc"] == [dns.OK, dns.OK, dns.SERVER_FAILURE]
    assert inside.told() == ["c.wild.example"]
    assert inside.ask("api.example.com")[0] == dns.OK


def test_where_somebody_may_be_asked_names_have_addresses_but_not_refused_ones() -> None:
    inside = Inside("api.example.com", "!no.example.com", asks=5)
    try:
        assert inside.ask("anything.com")[0] == dns.OK
        assert inside.ask("no.example.com")[0] == dns.NO_SUCH_NAME
        assert inside.told() == ["no.example.com"]
    finally:
        inside.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda labels, kind, tail: (
                struct.pack(">HHHHHH", 1, 0, 1, 0, 0, 0)
                + b"".join(bytes([len(x)]) + x for x in labels)
                + b"\0"
                + struct.pack(">HH", kind, 1)
                + tail
            ),
            st.lists(st.binary(min_size=1, max_size=20), max_size=6),
            st.sampled_from([1, 28, 65, 255]),
            st.binary(max_size=3),
        ),
    ),
    st.booleans(),
)
def test_no_packet_gets_an_address_but_for_an_allowed_name(
    inside: Inside, packet: bytes, over_tcp: bool
) -> None:
    answer = inside.gateway.dns_server.answer(packet, over_tcp)
    if answer is not None and struct.unpack_from(">H", answer, 6)[0]:
        name = dns.parse(packet, over_tcp).name
        assert name is not None
        assert name == "api.example.com" or name.endswith((".wild.example", "localhost"))
