"""Network: four ways, and an empty list never means everything."""

from __future__ import annotations

import pytest

from staddle import Network
from staddle.errors import PolicyError


def test_the_four_modes() -> None:
    assert Network.deny().mode == "deny"
    assert Network.open().mode == "open"
    assert Network.loopback().mode == "loopback"
    assert Network.loopback().ports == ()
    assert Network.allow("example.com").mode == "allow"
    assert Network() == Network.deny()


def test_an_empty_allow_list_denies_everything() -> None:
    assert Network.allow() == Network.deny()
    assert not Network.allow().permits("example.com", 443)


def test_every_host_at_once_has_to_be_said() -> None:
    for entry in ("*", "*:443"):
        with pytest.raises(PolicyError, match=r"Network\.open\(\)"):
            Network.allow(entry)


def test_order_and_repetition_do_not_matter() -> None:
    assert Network.allow("b.com", "A.com.", "a.com") == Network.allow("a.com", "b.com")
    assert hash(Network.allow("b.com", "a.com")) == hash(Network.allow("a.com", "b.com"))
    assert Network.loopback([8000, 80, 8000]) == Network.loopback(ports=(80, 8000))


def test_a_refusal_beats_an_allowance_in_any_order() -> None:
    for hosts in (("*.example.com", "!ads.example.com"), ("!ads.example.com", "*.example.com")):
        network = Network.allow(*hosts)
        assert network.permits("www.example.com", 443)
        assert not network.permits("ADS.example.com.", 443)
    private = Network.allow("0.0.0.0/0", "!10.0.0.0/8")
    assert private.permits("192.0.2.1", 443)
    assert not private.permits("::ffff:10.0.0.1", 443)


def test_a_list_of_refusals_alone_is_refused() -> None:
    with pytest.raises(PolicyError, match="only refusals"):
        Network.allow("!example.com")


def test_localhost_is_this_hosts_loopback_at_named_ports() -> None:
    found = Network.allow("localhost:5432,80", "udp://localhost:53")
    assert {"127.0.0.1:80,5432", "udp://127.0.0.1:53", "localhost:80,5432"} < {*map(str, found.rules)}
    assert Network.allow(*map(str, found.rules)) == found
    assert found.permits("127.0.0.1", 5432)
    assert found.permits("localhost", 5432)
    for hosts, http in (
        (["localhost"], []),
        (["db.localhost:5432"], []),
        (["*.localhost:80"], []),
        (["*.localhost"], []),
        ([], ["GET localhost:8080/**"]),
    ):
        with pytest.raises(PolicyError, match="sandbox's own"):
            Network.allow(*hosts, http=http)
    Network.allow("example.com", "!localhost", "localhost.example.com", "*.mylocalhost")


def test_permits_speaks_for_every_mode() -> None:
    assert Network.open().permits("anything", 1)
    assert not Network.deny().permits("localhost", 80)
    assert Network.loopback([80]).permits("127.0.0.1", 80)
    assert not Network.loopback([80]).permits("127.0.0.1", 81)
    assert not Network.loopback([80]).permits("example.com", 80)
    assert not Network.allow("example.com").permits("exa mple.com", 443)


@pytest.mark.parametrize("ports", [8000, "8000", [0], [True], ["80"], [65536], None])
def test_ports_of_loopback_are_a_list_of_ports(ports: object) -> None:
    with pytest.raises(PolicyError):
        Network.loopback(ports)  # type: ignore[arg-type]


def test_a_network_made_by_hand_has_to_make_sense() -> None:
    for wrong in ({"mode": "closed"}, {"mode": "allow"}, {"mode": "open", "ports": (1,)}):
        with pytest.raises(PolicyError):
            Network(**wrong)  # type: ignore[arg-type]


def test_it_can_be_read() -> None:
    assert str(Network.deny()) == "deny"
    assert str(Network.loopback([8000, 5432])) == "loopback 5432, 8000"
    assert str(Network.allow("B.com:443", "a.com")) == "allow a.com, b.com:443"


@pytest.mark.parametrize("mode", ["open", "deny", "loopback"])
def test_nameservers_are_for_a_list_of_hosts_alone(mode: str) -> None:
    with pytest.raises(PolicyError, match="nameservers"):
        Network(mode=mode, dns=("9.9.9.9",))
