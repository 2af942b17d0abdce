"""Kinds of addresses: private, loopback, link-local, metadata services; IPv4 embedded in IPv6. Pure."""

from __future__ import annotations

import ipaddress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

#: Networks without public addresses, and what they are. The first that fits is named.
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


def special(address: str) -> str:
    """The kind of an address that is not an ordinary public one; empty for a public one.

    An IPv4 address that is written in an IPv6 one counts: a translator on the way may use it.
    """
    found = special_network(address)
    return found[1] if found else ""


def special_network(address: str) -> tuple[IPv4Network | IPv6Network, str] | None:
    """The network of SPECIAL that `address`, or one embedded in it, is in."""
    parsed = ipaddress.ip_address(address)
    for candidate in (parsed, *embedded(parsed)):
        for network, what in SPECIAL:
            if candidate.version == network.version and candidate in network:
                return network, what
    return None


def embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that are written in `address`: a translator on the way may use them."""
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
