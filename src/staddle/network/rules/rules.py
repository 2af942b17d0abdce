"""Whether a destination may be reached, and in which words to say no. Pure.

    decide("api.example.com", 443, network)              what the policy says about a name or address
    resolved("api.example.com", "10.0.0.7", 443, …)      whether that answer of the DNS may be dialled
    may_ask("api.example.com", network)                  whether the name may be resolved at all

A name that is allowed does not allow whatever address its owner puts behind it: private,
loopback, link-local and metadata addresses are dialled only when the policy allows the
address itself.
"""

from __future__ import annotations

import ipaddress

from ..._value import Value
from ...errors import PolicyError
from ...policy.hosts import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
    from typing import Literal

    from ...policy.hosts import Rule
    from ...policy.network import Network

    Protocol = Literal["tcp", "udp"]

#: Networks that are not somebody's public address, and what they are. The first that fits is named.
SPECIAL = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("169.254.169.254/32", "the metadata service of cloud machines"),
        ("fd00:ec2::254/128", "the metadata service of cloud machines"),
        ("fd20:ce::254/128", "the metadata service of cloud machines"),
        ("fd00:42::42/128", "the metadata service of cloud machines"),
        ("100.100.100.200/32", "the metadata service of cloud machines"),
        # Azure's platform address, and the private services of IBM's cloud: public numbers, local meaning.
        ("168.63.129.16/32", "the metadata service of cloud machines"),
        ("161.26.0.0/16", "the private services of a cloud"),
        ("166.8.0.0/14", "the private services of a cloud"),
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a carrier's private address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address, which sandboxes use for themselves"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved or broadcast address"),
        ("::/128", "this machine"),
        ("::1/128", "a loopback address"),
        ("64:ff9b:1::/48", "an address of a local translator"),
        ("100::/64", "an address that leads nowhere"),
        ("2001:2::/48", "a benchmarking address, which sandboxes use for themselves"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a private address"),
        ("ff00::/8", "a multicast address"),
    )
)
#: IPv6 networks in which an IPv4 address is written, and how many bits follow it.
EMBEDDING = tuple(
    (ipaddress.IPv6Network(network), after)
    for network, after in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated
        ("64:ff9b::/96", 0),  # NAT64
        ("2002::/16", 80),  # 6to4
    )
)
_TEREDO = ipaddress.IPv6Network("2001::/32")


class Verdict(Value):
    """What was decided about one destination.

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


def resolved(name: str, address: str, port: int, network: Network, protocol: Protocol = "tcp") -> Verdict:
    """Whether `address`, which a resolver gave for the allowed `name`, may be dialled in its place."""
    try:
        asked = canonical(address)
    except PolicyError:
        return Verdict(False, name, port, protocol, "its address is not one")
    refusing, allowing = _matching(network, asked, port, protocol)
    if refusing is not None:
        return Verdict(False, name, port, protocol, f"it resolves to {asked}, refused by {refusing}")
    found = _special(asked)
    if found is None:
        return Verdict(True, name, port, protocol, "a public address")
    # 0.0.0.0/0 is not meant to hand the host's loopback to whoever owns a name.
    meant = next((rule for rule in allowing if _is_about(rule, found[0])), None)
    if meant is not None:
        return Verdict(True, name, port, protocol, str(meant))
    why = f"it resolves to {asked}, {found[1]}"
    return Verdict(False, name, port, protocol, why, entry(asked, port, protocol))


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


def refused_name(name: str, network: Network) -> Rule | None:
    """The entry that refuses `name` whatever the port, if there is one: for names seen in TLS and HTTP."""
    for rule in network.rules:
        if rule.deny and not rule.ports and rule.covers(name):
            return rule
    return None


def special(address: str) -> str:
    """What kind of address this is, when it is not an ordinary public one; empty when it is.

    An IPv4 address that is written in an IPv6 one counts: a translator on the way may use it.
    """
    found = _special(address)
    return found[1] if found else ""


def entry(host: str, port: int, protocol: Protocol = "tcp") -> str:
    """The line of an allow list that would allow exactly this."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'udp://' if protocol == 'udp' else ''}{shown}:{port}" if port else host


def _embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    if address.version == 4:
        return []
    number = int(address)
    found = [
        ipaddress.IPv4Address(number >> after & 0xFFFFFFFF)
        for network, after in EMBEDDING
        if address in network
    ]
    if address in _TEREDO:  # the server as it is, the client with its bits turned over
        found += [ipaddress.IPv4Address(number >> 64 & 0xFFFFFFFF)]
        found += [ipaddress.IPv4Address(~number & 0xFFFFFFFF)]
    return found


def _special(address: str) -> tuple[IPv4Network | IPv6Network, str] | None:
    parsed = ipaddress.ip_address(address)
    for candidate in (parsed, *_embedded(parsed)):
        for network, what in SPECIAL:
            if candidate.version == network.version and candidate in network:
                return network, what
    return None


def _is_about(rule: Rule, around: IPv4Network | IPv6Network) -> bool:
    """Whether an entry speaks of addresses in `around` only, or of one address."""
    own = ipaddress.ip_network(rule.host)
    if own.prefixlen == own.max_prefixlen:
        return True
    first, last = own.network_address, own.broadcast_address
    return own.version == around.version and first in around and last in around


def _matching(network: Network, host: str, port: int, protocol: Protocol) -> tuple[Rule | None, list[Rule]]:
    """The first entry that refuses, and all that allow."""
    matching = [rule for rule in network.rules if rule.matches(host, port, protocol)]
    refusing = next((rule for rule in matching if rule.deny), None)
    if refusing is None and ":" in host:
        for inner in _embedded(ipaddress.ip_address(host)):
            refused = (r for r in network.rules if r.deny and r.matches(str(inner), port, protocol))
            refusing = refusing or next(refused, None)
    return refusing, [rule for rule in matching if not rule.deny]


def _verdict(allowed: bool, host: str, port: int, protocol: Protocol, rule: str) -> Verdict:
    return Verdict(allowed, host, port, protocol, rule, "" if allowed else entry(host, port, protocol))
