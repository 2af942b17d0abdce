"""Whether a destination may be reached, and in which words to say no. Pure.

    decide("api.example.com", 443, network)              what the policy says about a name or address
    resolved("api.example.com", "10.0.0.7", 443, …)      whether that answer of the DNS may be dialled
    may_ask("api.example.com", network)                  whether the name may be resolved at all

A name that is allowed does not allow whatever address its owner puts behind it: private,
loopback, link-local and metadata addresses, and those of this machine itself, are dialled only
when the policy allows the address itself.
"""

from __future__ import annotations

import ipaddress

from ..._value import Value
from ...errors import PolicyError
from ...policy.hosts import allow_entry, canonical, embedded, special_network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network
    from typing import Literal

    from ...policy.hosts import HostRule
    from ...policy.network import Network

    Protocol = Literal["tcp", "udp"]


class Verdict(Value):
    """The decision about one destination.

    `rule` is the entry that allowed or refused it, or what is missing; `allow` is the entry
    that would allow it, empty when it is allowed or when none would.
    """

    allowed: bool
    host: str
    port: int
    protocol: Protocol
    rule: str
    allow: str = ""


def decide(host: str, port: int, network: Network, protocol: Protocol = "tcp") -> Verdict:
    """Whether `host`, a name or an address in any spelling, may be reached at `port`."""
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
    """Whether `address`, which a resolver gave for the allowed `name`, may be dialled in its place.

    `own` says that it is an address of this machine: services that listen on all of its addresses are
    behind that.
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
    # 0.0.0.0/0 is not meant to hand the host's loopback to whoever owns a name.
    meant = next((rule for rule in allowing if _is_about(rule, found[0])), None)
    if meant is not None:
        return Verdict(True, name, port, protocol, str(meant))
    why = f"it resolves to {asked}, {found[1]}"
    return Verdict(False, name, port, protocol, why, allow_entry(asked, port, protocol))


def may_ask(name: str, network: Network) -> Verdict:
    """Whether `name` may be resolved: some entry allows it at some port, and none refuses all of it."""
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
    """The entry that refuses `name` whatever the port, if there is one: for names seen in TLS and HTTP."""
    for rule in network.rules:
        if rule.deny and not rule.ports and rule.covers(name):
            return rule
    return None


def refuses_names(network: Network) -> bool:
    """Whether an entry refuses names: then a name that cannot be read may be one of them."""
    return any(rule.deny and rule.kind != "network" for rule in network.rules)


def refused_alias(
    name: str, aliases: tuple[str, ...], port: int, network: Network, protocol: Protocol = "tcp"
) -> Verdict | None:
    """The refusal of the allowed `name`, if the DNS leads from it through a name that an entry refuses."""
    for alias in aliases:
        refusing, _ = _matching(network, alias, port, protocol)
        if refusing is not None:
            return Verdict(False, name, port, protocol, f"it is an alias of {alias}, refused by {refusing}")
    return None


def _is_about(rule: HostRule, around: IPv4Network | IPv6Network) -> bool:
    """Whether an entry speaks of addresses in `around` only, or of one address."""
    own = ipaddress.ip_network(rule.host)
    if own.prefixlen == own.max_prefixlen:
        return True
    first, last = own.network_address, own.broadcast_address
    return own.version == around.version and first in around and last in around


def _matching(
    network: Network, host: str, port: int, protocol: Protocol
) -> tuple[HostRule | None, list[HostRule]]:
    """The first entry that refuses, and all that allow."""
    matching = [rule for rule in network.rules if rule.matches(host, port, protocol)]
    refusing = next((rule for rule in matching if rule.deny), None)
    if refusing is None and ":" in host:
        for inner in embedded(ipaddress.ip_address(host)):
            refused = (r for r in network.rules if r.deny and r.matches(str(inner), port, protocol))
            refusing = refusing or next(refused, None)
    return refusing, [rule for rule in matching if not rule.deny]


def _verdict(allowed: bool, host: str, port: int, protocol: Protocol, rule: str) -> Verdict:
    return Verdict(allowed, host, port, protocol, rule, "" if allowed else allow_entry(host, port, protocol))
