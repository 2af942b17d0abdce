"""The policy decides the same in every order, refusals only take away, and what is made inside covers it."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle import Network
from staddle.network.namespace.from_policy import exact_names, network_spec
from staddle.network.rules import synthetic
from staddle.network.rules.rules import decide, may_ask, resolved

NAMES = st.sampled_from(["a.com", "b.com", "x.a.com", "y.x.a.com", "xa.com", "a.com.b.com", "com"])
ADDRESSES = st.sampled_from(
    ["10.0.0.1", "10.1.0.1", "127.0.0.1", "8.8.8.8", "169.254.169.254", "::1", "2001:db8::1"]
)
PORTS = st.integers(1, 5)
HOSTS = st.one_of(
    NAMES,
    NAMES.map(lambda name: f"*.{name}"),
    ADDRESSES.map(lambda text: f"[{text}]" if ":" in text else text),
    st.sampled_from(["10.0.0.0/8", "10.0.0.0/16", "0.0.0.0/0", "[::/0]", "[2001:db8::/32]"]),
)


@st.composite
def entries(draw: st.DrawFn) -> str:
    host, deny, udp = draw(HOSTS), draw(st.booleans()), draw(st.booleans())
    ports = draw(st.lists(PORTS, max_size=2)) or ([1] if udp else [])
    text = f"{host}:{','.join(map(str, ports))}" if ports else host
    return f"{'!' if deny else ''}{'udp://' if udp else ''}{text}"


POLICIES = st.lists(entries(), min_size=1, max_size=6).filter(
    lambda all_: any(not e.startswith("!") for e in all_)
)
PROTOCOLS = st.sampled_from(["tcp", "udp"])


@pytest.mark.slow
@given(POLICIES, st.one_of(NAMES, ADDRESSES), PORTS, PROTOCOLS, st.randoms())
def test_the_decision_is_the_policys_in_any_order(policy, host, port, protocol, random) -> None:
    verdict = decide(host, port, Network.allow(*policy), protocol)
    assert verdict.allowed == Network.allow(*policy).permits(host, port, protocol)
    random.shuffle(policy)
    assert decide(host, port, Network.allow(*policy), protocol) == verdict


@pytest.mark.slow
@given(POLICIES, entries(), st.one_of(NAMES, ADDRESSES), PORTS, PROTOCOLS)
def test_a_refusal_never_widens_and_an_allowance_never_narrows(policy, entry, host, port, protocol) -> None:
    before, after = (Network.allow(*all_) for all_ in (policy, [*policy, entry]))
    was, is_ = (decide(host, port, network, protocol).allowed for network in (before, after))
    assert not is_ or was or not entry.startswith("!")
    assert is_ or not was or entry.startswith("!")
    if entry.startswith("!"):
        assert may_ask(host, before).allowed or not may_ask(host, after).allowed


@pytest.mark.slow
@given(POLICIES, NAMES, ADDRESSES, PORTS)
def test_what_is_dialled_for_a_name_is_public_or_allowed_itself(policy, name, address, port) -> None:
    network = Network.allow(*policy)
    if resolved(name, address, port, network).allowed and address != "8.8.8.8" and address != "2001:db8::1":
        assert network.permits(address, port)


@pytest.mark.slow
@given(POLICIES, st.one_of(NAMES, ADDRESSES), PORTS)
def test_every_allowed_tcp_destination_has_a_way_to_the_gateway(policy, host, port) -> None:
    network = Network.allow(*policy)
    if not decide(host, port, network).allowed:
        return
    made = network_spec(network)
    if host[0].isdigit() or ":" in host:
        packed = ipaddress.ip_address(host).packed
        if ipaddress.ip_address(host).is_loopback:
            return  # only as a forward, when the very address is named
    else:
        assert may_ask(host, network).allowed
        assert made.resolver
        names = exact_names(network)
        packed = synthetic.v4(names.index(host) if host in names else len(names))
    assert any(
        len(gate) == len(packed)
        and ipaddress.ip_address(packed) in ipaddress.ip_network((gate, prefix))
        and (not ports or port in ports)
        for gate, prefix, ports in made.gates
    )
