"""What a policy needs inside: names, addresses and ports, with and without nftables."""

from __future__ import annotations

import socket

from staddle import Network
from staddle.ipc.namespace_spec import ANYWHERE, NetworkSpec
from staddle.network.namespace.from_policy import (
    MOST_LISTENERS,
    RESOLVER,
    USUAL_PORTS,
    WILDCARD_SLOTS,
    exact_names,
    needs_gateway,
    network_spec,
)
from staddle.network.rules import synthetic
from staddle.policy.system import RESOLV_CONF

V4 = (synthetic.V4_NETWORK, synthetic.V4_PREFIX)
V6 = (synthetic.V6_NETWORK, synthetic.V6_PREFIX)


def packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def test_without_anything_to_reach_there_is_nothing_to_make() -> None:
    for network in (Network.deny(), Network.open(), Network.loopback(), Network.allow()):
        assert network_spec(network) == NetworkSpec()
        assert not needs_gateway(network)
    assert needs_gateway(Network.loopback([1]))
    assert needs_gateway(Network.allow("a.com"))


def test_loopback_ports_are_forwards() -> None:
    made = network_spec(Network.loopback([5432, 80]))
    assert made == NetworkSpec(forwards=((packed("127.0.0.1"), 80), (packed("127.0.0.1"), 5432)))


def test_names_need_the_resolver_and_their_ports_only() -> None:
    made = network_spec(Network.allow("a.com:443", "*.b.com:80,443"))
    assert made.resolver
    assert made.gates == ((*V6, (80, 443)), (*V4, (80, 443)))
    assert not made.forwards


def test_one_name_at_every_port_opens_every_port() -> None:
    assert network_spec(Network.allow("a.com:443", "b.com")).gates == ((*V6, ()), (*V4, ()))


def test_names_are_answered_beside_a_list_of_addresses() -> None:
    made = network_spec(Network.allow("10.1.0.0/16:5432", "[2001:db8::1]:443"))
    assert made.resolver, "who asks for a name is refused, and it is reported"
    assert made.gates == ((packed("10.1.0.0"), 16, (5432,)), (packed("2001:db8::1"), 128, (443,)))


def test_an_allowed_loopback_port_of_the_host_is_a_forward() -> None:
    made = network_spec(Network.allow("127.0.0.1:5432", "[::1]:80", "127.0.0.0/8:99", "127.0.0.2"))
    assert set(made.forwards) == {(packed("127.0.0.1"), 5432), (packed("::1"), 80)}
    assert made.gates == made.listeners == ()


def test_refusals_open_nothing() -> None:
    made = network_spec(Network.allow("a.com:443", "!b.com", "!10.0.0.0/8", "!udp://10.0.0.1:53"))
    assert made == network_spec(Network.allow("a.com:443"))


def test_udp_has_a_socket_for_each_address_and_one_for_all_of_a_network() -> None:
    made = network_spec(
        Network.allow("udp://192.0.2.53:53", "udp://time.example.com:123", "udp://10.0.0.0/8:514")
    )
    assert set(made.datagrams) == {
        (packed("192.0.2.53"), 53),
        (synthetic.v4(0), 123),
        (synthetic.v6(0), 123),
        (ANYWHERE, 514),
    }
    assert made.resolver
    assert made.gates == ()
    both = network_spec(Network.allow("udp://192.0.2.53:53", "udp://10.0.0.0/8:53"))
    assert both.datagrams == ((ANYWHERE, 53),)


def test_without_nftables_there_are_listeners_and_a_word_about_what_is_missing() -> None:
    exact = network_spec(Network.allow("a.com:443"))
    assert exact.listeners == ((synthetic.v6(0), 443), (synthetic.v4(0), 443))
    assert exact.unheld == ()
    every = network_spec(Network.allow("a.com", "b.com:8443"))
    assert {port for address, port in every.listeners if address == synthetic.v4(0)} == {*USUAL_PORTS, 8443}
    assert "only at ports" in every.unheld[0]
    wild = network_spec(Network.allow("*.a.com:443"))
    assert len(wild.listeners) == 2 * WILDCARD_SLOTS
    assert f"only {WILDCARD_SLOTS} names" in wild.unheld[0]
    network = network_spec(Network.allow("10.0.0.0/8:443"))
    assert network.listeners == ((ANYWHERE, 443),)
    assert "taken" in network.unheld[0]


def test_listeners_and_rules_are_bounded() -> None:
    ports = ",".join(str(port) for port in range(1, 400))
    made = network_spec(Network.allow(*(f"host{n}.com:{ports}" for n in range(20))))
    assert len(made.listeners) == MOST_LISTENERS
    assert made.gates == ((*V6, ()), (*V4, ()))


def test_exact_names_are_those_that_are_written_out() -> None:
    network = Network.allow("b.com:1", "a.com", "b.com:2", "*.c.com", "!d.com", "10.0.0.1", "udp://e.com:5")
    assert exact_names(network) == ("a.com", "b.com", "e.com")


# The file that programs inside read.


def test_the_resolver_is_where_programs_look_for_it() -> None:
    assert RESOLV_CONF.splitlines()[0] == f"nameserver {RESOLVER}".encode()
