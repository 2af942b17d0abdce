"""What of a network the landlock backend holds: TCP to addresses, and it says what it does not."""

from __future__ import annotations

import socket

import pytest

from staddle.backends.landlock import rules
from staddle.linux.landlock import EVERYTHING, RIGHTS
from staddle.policy.network import Network
from tests.unit.backends.landlock_plans import plan

LOCAL = socket.inet_aton("127.0.0.1")
CONNECT = RIGHTS["net"]["connect_tcp"][0]


def test_exactly_the_ports_of_the_hosts_loopback() -> None:
    made = plan(network=Network.loopback([80, 5432]))
    assert rules.destinations(made) == ((LOCAL, 32, 80, 0), (LOCAL, 32, 5432, 0))
    assert rules.ports(made, EVERYTHING) == (((80, CONNECT), (5432, CONNECT)), EVERYTHING)


def test_addresses_and_networks_of_a_list_with_their_refusals() -> None:
    made = plan(network=Network.allow("10.0.0.0/8:5432", "[2001:db8::1]:443", "!10.1.0.0/16", "a.com:80"))
    assert set(rules.destinations(made)) == {
        (socket.inet_aton("10.0.0.0"), 8, 5432, 0),
        (socket.inet_aton("10.1.0.0"), 16, 0, 1),
        (socket.inet_pton(socket.AF_INET6, "2001:db8::1"), 128, 443, 0),
    }
    assert rules.ports(made, EVERYTHING)[0] == ((443, CONNECT), (5432, CONNECT))


def test_every_port_of_an_address_leaves_the_kernel_nothing_to_refuse_by() -> None:
    ports, handled = rules.ports(plan(network=Network.allow("10.0.0.1")), EVERYTHING)
    assert (ports, EVERYTHING - handled) == ((), {"connect_tcp"})


@pytest.mark.parametrize("network", [Network.deny(), Network.open()])
def test_all_or_nothing_needs_no_rows_and_has_no_gap(network: Network) -> None:
    made = plan(network=network)
    assert rules.destinations(made) == ()
    assert list(rules.network_gaps(made, 7)) == []


def test_what_cannot_be_reached_is_said_entry_by_entry() -> None:
    network = Network.allow("a.com:443", "*.b.com", "udp://10.0.0.1:53", "10.0.0.2:80", "!c.com")
    own, *entries = rules.network_gaps(plan(network=network), 7)
    assert own.why == (
        "Landlock gives no loopback of its own: no program inside can listen for connections over TCP"
    )
    assert [gap.why.partition(" ")[0] for gap in entries] == ["names", "udp://10.0.0.1:53"]
    assert {gap.protection for gap in (own, *entries)} == {"network"}
    # Names are reached through a proxy; a datagram is not carried by anything.
    assert [gap.documented for gap in (own, *entries)] == [True, True, False]


def test_an_old_kernel_does_not_keep_ports() -> None:
    why = [gap.why for gap in rules.network_gaps(plan(network=Network.loopback([80])), 3)]
    assert why[1] == "this kernel has Landlock ABI 3: a command can take ports of the host before ABI 4"
