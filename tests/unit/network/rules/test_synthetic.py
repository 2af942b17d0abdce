"""A name has one address of each family, the address leads back, and wildcards cannot fill memory."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from staddle.network.rules import synthetic
from staddle.network.rules.synthetic import Addresses, slot_of, v4, v6


def test_addresses_are_stable_and_lead_back() -> None:
    first, second = Addresses(["b.com", "a.com"]), Addresses(["a.com", "b.com", "b.com"])
    for name in ("a.com", "b.com"):
        slot = first.slot(name, 0.0)
        assert slot is not None
        assert slot == second.slot(name, 99.0)
        assert first.name(v4(slot)) == first.name(v6(slot)) == name


def test_they_are_of_the_benchmark_networks_and_never_our_own() -> None:
    for slot in (0, 1, 255, 4095, synthetic.ROOM * 2):
        assert ipaddress.ip_address(v4(slot)) in ipaddress.ip_network("198.18.0.0/15")
        assert ipaddress.ip_address(v6(slot)) in ipaddress.ip_network("2001:2::/48")
        assert slot_of(v4(slot)) == slot_of(v6(slot)) == slot
    for own in (synthetic.OWN_V4, synthetic.OWN_V6):
        assert slot_of(own) is None


def test_what_is_ours_is_known_by_its_network() -> None:
    for text in ("198.18.0.0", "198.18.0.1", "198.19.255.255", "2001:2::1", "2001:2:0:ffff::"):
        assert synthetic.is_ours(ipaddress.ip_address(text).packed)
    for text in ("198.17.255.255", "198.20.0.0", "2001:2:1::", "2001:1::", "::1"):
        assert not synthetic.is_ours(ipaddress.ip_address(text).packed)


def test_an_address_that_was_not_given_out_has_no_name() -> None:
    addresses = Addresses(["a.com"])
    assert addresses.name(v4(1)) is None
    for text in ("198.18.0.0", "198.20.0.0", "198.17.255.255", "1.2.3.4", "::1", "2001:2:0:0:0:1::"):
        assert addresses.name(ipaddress.ip_address(text).packed) is None


def test_wildcards_have_room_for_so_many_names_and_no_more() -> None:
    addresses = Addresses(["fixed.com"], room=2)
    slots = [addresses.slot(name, 0.0) for name in ("a.x.com", "b.x.com", "c.x.com")]
    assert slots == [1, 2, None]
    assert addresses.slot("fixed.com", 0.0) == 0


def test_a_name_nobody_asks_for_gives_its_address_away_after_an_hour() -> None:
    addresses = Addresses([], room=2)
    addresses.slot("old.x.com", 0.0)
    addresses.slot("used.x.com", 0.0)
    addresses.slot("used.x.com", synthetic.FORGOTTEN - 1)
    assert addresses.slot("new.x.com", synthetic.FORGOTTEN - 1) is None
    assert addresses.slot("new.x.com", synthetic.FORGOTTEN) == 0
    assert addresses.name(v4(0)) == "new.x.com"
    assert addresses.name(v4(1)) == "used.x.com"
    assert addresses.slot("old.x.com", synthetic.FORGOTTEN) is None


@given(
    st.lists(
        st.tuples(st.sampled_from([f"{c}.x.com" for c in "abcdefgh"]), st.integers(0, 5000)), max_size=60
    )
)
def test_no_two_names_ever_share_an_address(asked: list[tuple[str, int]]) -> None:
    addresses, clock = Addresses(["fixed.com"], room=3), 0.0
    for name, later in asked:
        clock += later
        slot = addresses.slot(name, clock)
        if slot is not None:
            assert addresses.name(v4(slot)) == name
            assert 1 <= slot <= 3
