"""Decide whether a destination may be reached, and explain a refusal. Pure.

    decide("api.example.com", 443, network)              the policy's verdict on a name or address
    resolved("api.example.com", "10.0.0.7", 443, …)      whether to connect to this address from DNS
    may_ask("api.example.com", network)                  whether the name may be resolved at all

An allowed name does not allow every address that its owner returns for it. Private, loopback, link-local and
metadata addresses, and addresses of this machine, need an entry for the address itself.
"""

from __future__ import annotations

import ipaddress

from ..._value import Value
from ...errors import PolicyError
from ...hostnames import allow_entry, canonical, embedded, special_network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network
    from typing import Literal

    from ...hostnames import HostRule
    from ...policy.network import Network

    Protocol = Literal["tcp", "udp"]


class Verdict(Value):
    """The decision about one destination.

    `rule` is the entry that allowed or refused it, or the reason for the refusal. `allow` is the entry that
    would allow it, or empty if it is allowed or if no entry would.
    """

    allowed: bool
    host: str
    port: int
    protocol: Protocol
    rule: str
    allow: str = ""


def decide(host: str, port: int, network: Network, protocol: Protocol = "tcp") -> Verdict:
    """Decide about `host`, a name or an address in any spelling, at `port`."""
    try:
        asked = canonical(host)
    except PolicyError as error:
        return Verdict(False, host[:260], port, protocol, error.why or "it is not a host name")
    if network.mode != "allow":
        permitted = network.permits(asked, port, protocol)
        return _verdict(permitted, asked, port, protocol, f"the network is {network}")
    refusing, allowing = _matching(network, asked, port, protocol)
    if refusing is not None:
        return Verdict(False, asked, port, protocol, f"refused by {refusing}")
    if not allowing:
        known = any(rule.covers(asked) for rule in network.rules if not rule.deny)
        why = f"allowed, but not at {protocol} port {port}" if known else "no entry allows it"
        return _verdict(False, asked, port, protocol, why)
    return Verdict(True, asked, port, protocol, str(allowing[0]))


def resolved(
    name: str, address: str, port: int, network: Network, protocol: Protocol = "tcp", *, own: bool = False
) -> Verdict:
    """Decide whether to connect to `address`, which a resolver returned for the allowed `name`.

    `own` marks an address of this machine, where services that bind all addresses listen.
    """
    try:
        asked = canonical(address)
    except PolicyError:
        return Verdict(False, name, port, protocol, "its address is not one")
    refusing, allowing = _matching(network, asked, port, protocol)
    if refusing is not None:
        return Verdict(False, name, port, protocol, f"it resolves to {asked}, refused by {refusing}")
    found = special_network(asked)
    if found is None and own:
        found = ipaddress.ip_network(asked), "an address of this machine"
    if found is None:
        return Verdict(True, name, port, protocol, "a public address")
    # 0.0.0.0/0 must not open the host's loopback to the owner of a name.
    meant = next((rule for rule in allowing if _is_about(rule, found[0])), None)
    if meant is not None:
        return Verdict(True, name, port, protocol, str(meant))
    why = f"it resolves to {asked}, {found[1]}"
    return Verdict(False, name, port, protocol, why, allow_entry(asked, port, protocol))


def may_ask(name: str, network: Network) -> Verdict:
    """Decide whether `name` may be resolved: an entry allows it at some port, and none refuses all ports."""
    try:
        asked = canonical(name)
    except PolicyError as error:
        return Verdict(False, name[:260], 0, "tcp", error.why or "it is not a host name")
    if network.mode != "allow":
        return Verdict(False, asked, 0, "tcp", f"the network is {network}", asked)
    for rule in network.rules:
        if rule.deny and rule.protocol == "tcp" and not rule.ports and rule.covers(asked):
            return Verdict(False, asked, 0, "tcp", f"refused by {rule}")
    for rule in network.rules:
        if not rule.deny and rule.kind != "network" and rule.covers(asked):
            return Verdict(True, asked, 0, "tcp", str(rule))
    return Verdict(False, asked, 0, "tcp", "no entry allows it", asked)


def refused_name(name: str, network: Network) -> HostRule | None:
    """Return the entry that refuses `name` at every port, if any. Used for names seen in TLS and HTTP."""
    for rule in network.rules:
        if rule.deny and not rule.ports and rule.covers(name):
            return rule
    return None


def refuses_names(network: Network) -> bool:
    """Whether an entry refuses names. An unreadable name could then be one of them."""
    return any(rule.deny and rule.kind != "network" for rule in network.rules)


def refused_alias(
    name: str, aliases: tuple[str, ...], port: int, network: Network, protocol: Protocol = "tcp"
) -> Verdict | None:
    """Return a refusal of the allowed `name` if its CNAMEs include a name that an entry refuses."""
    for alias in aliases:
        refusing, _ = _matching(network, alias, port, protocol)
        if refusing is not None:
            return Verdict(False, name, port, protocol, f"it is an alias of {alias}, refused by {refusing}")
    return None


def _is_about(rule: HostRule, around: IPv4Network | IPv6Network) -> bool:
    """Whether an entry covers only addresses in `around`, or a single address."""
    own = ipaddress.ip_network(rule.host)
    if own.prefixlen == own.max_prefixlen:
        return True
    first, last = own.network_address, own.broadcast_address
    return own.version == around.version and first in around and last in around


def _matching(
    network: Network, host: str, port: int, protocol: Protocol
) -> tuple[HostRule | None, list[HostRule]]:
    """Return the first entry that refuses, and all entries that allow."""
    matching = [rule for rule in network.rules if rule.matches(host, port, protocol)]
    refusing = next((rule for rule in matching if rule.deny), None)
    if refusing is None and ":" in host:
        for inner in embedded(ipaddress.ip_address(host)):
            refused = (r for r in network.rules if r.deny and r.matches(str(inner), port, protocol))
            refusing = refusing or next(refused, None)
    return refusing, [rule for rule in matching if not rule.deny]


def _verdict(allowed: bool, host: str, port: int, protocol: Protocol, rule: str) -> Verdict:
    return Verdict(allowed, host, port, protocol, rule, "" if allowed else allow_entry(host, port, protocol))
