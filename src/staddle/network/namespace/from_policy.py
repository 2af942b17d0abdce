"""Derive the specification of the sandbox's network namespace from a policy: plain data, pure.

With nftables, every TCP connection to a synthetic or allowed address goes to one listener, at a port that no
server uses, so all other ports stay free. Without nftables, each address and port has its own listener
(`listeners`).
"""

from __future__ import annotations

from ...ipc.namespace_spec import ANYWHERE, NetworkSpec
from ..rules import synthetic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...hostnames import HostRule
    from ...policy.network import Network

#: Address of our resolver inside, and port of the single TCP listener (tcpmux, unused for decades).
RESOLVER, LISTENER_PORT = "127.0.0.53", 1
#: Without nftables: ports for names that are allowed at every port, and the slots for wildcards.
USUAL_PORTS = (22, 80, 443)
WILDCARD_SLOTS = 16
MOST_LISTENERS = 512
#: With more rules than this, the gateway decides about ports instead.
MOST_RULES = 256

_HERE = bytes((127, 0, 0, 1))


def needs_gateway(network: Network) -> bool:
    """Whether the policy allows any connection out of the sandbox."""
    return network.mode == "allow" or (network.mode == "loopback" and bool(network.ports))


def exact_names(network: Network) -> tuple[str, ...]:
    """Return the names that the policy lists without wildcards. They have an address from the start."""
    return tuple(sorted({rule.host for rule in network.rules if rule.kind == "name" and not rule.deny}))


def network_spec(network: Network, *, asks: bool = False) -> NetworkSpec:
    """Return the specification of the network namespace for this policy.

    With `asks`, all connections go to the gateway, because `on_connect` decides about unlisted destinations.
    """
    if network.mode == "open":
        return NetworkSpec()
    if asks:
        made = network_spec(network)
        return made.replace(
            resolver=True,
            gates=((bytes(4), 0, ()), (bytes(16), 0, ())),
            unheld=(*made.unheld, "no function can be asked about hosts without an entry"),
        )
    if network.mode != "allow":
        local = _HERE
        return NetworkSpec(forwards=tuple((local, port) for port in network.ports))
    rules = [rule for rule in network.rules if not rule.deny]
    tcp = [rule for rule in rules if rule.protocol == "tcp"]
    listeners, unheld = _listeners(tcp, exact_names(network))
    return NetworkSpec(
        resolver=True,  # even for a list of addresses, so that lookups of names are refused and reported
        gates=_gates(tcp),
        forwards=tuple(
            (packed, port)
            for rule in tcp
            if rule.kind == "network"
            for packed, prefix in [_packed(rule.host)]
            if _is_loopback(packed) and prefix == len(packed) * 8
            for port in rule.ports
        ),
        datagrams=_datagrams(rules, exact_names(network)),
        listeners=listeners,
        unheld=unheld,
    )


def fits(wanted: NetworkSpec, made: NetworkSpec) -> bool:
    """Whether a namespace made for `made` leads everything in `wanted` to the gateway."""
    gates = {(packed, prefix): ports for packed, prefix, ports in made.gates}

    def is_open(packed: bytes, prefix: int, ports: tuple[int, ...]) -> bool:
        for place in ((packed, prefix), (bytes(len(packed)), 0)):
            if place in gates and (not gates[place] or (ports and {*ports} <= {*gates[place]})):
                return True
        return False

    return (
        (made.resolver or not wanted.resolver)
        and all(is_open(*gate) for gate in wanted.gates)
        and {*wanted.forwards} <= {*made.forwards}
        and {*wanted.datagrams} <= {*made.datagrams}
    )


def _gates(tcp: list[HostRule]) -> tuple[tuple[bytes, int, tuple[int, ...]], ...]:
    gates: dict[tuple[bytes, int], set[int]] = {}
    everywhere: set[tuple[bytes, int]] = set()
    for rule in tcp:
        if rule.kind == "network":
            packed, prefix = _packed(rule.host)
            places = [] if _is_loopback(packed) else [(packed, prefix)]
        else:
            places = [
                (synthetic.V4_NETWORK, synthetic.V4_PREFIX),
                (synthetic.V6_NETWORK, synthetic.V6_PREFIX),
            ]
        for place in places:
            gates.setdefault(place, set()).update(rule.ports)
            if not rule.ports:
                everywhere.add(place)
    made = sorted(
        (packed, prefix, () if (packed, prefix) in everywhere else tuple(sorted(ports)))
        for (packed, prefix), ports in gates.items()
    )
    if sum(len(ports) or 1 for _, _, ports in made) > MOST_RULES:
        made = [(packed, prefix, ()) for packed, prefix, _ in made]
    return tuple(made)


def _datagrams(rules: list[HostRule], names: tuple[str, ...]) -> tuple[tuple[bytes, int], ...]:
    found: set[tuple[bytes, int]] = set()
    for rule in rules:
        if rule.protocol == "udp":
            addresses = _own_addresses(rule, names) or [ANYWHERE]
            found.update((address, port) for address in addresses for port in rule.ports)
    taken = {port for address, port in found if address == ANYWHERE}
    return tuple(sorted(pair for pair in found if pair[0] == ANYWHERE or pair[1] not in taken))


def _listeners(
    tcp: list[HostRule], names: tuple[str, ...]
) -> tuple[tuple[tuple[bytes, int], ...], tuple[str, ...]]:
    usual = sorted({*USUAL_PORTS, *(port for rule in tcp for port in rule.ports)})
    found: set[tuple[bytes, int]] = set()
    unheld: list[str] = []
    for rule in tcp:
        if rule.kind == "network" and _is_loopback(_packed(rule.host)[0]):
            continue
        addresses = _own_addresses(rule, names)
        if rule.kind == "subdomains":
            slots = range(len(names), len(names) + WILDCARD_SLOTS)
            addresses = [make(slot) for slot in slots for make in (synthetic.v4, synthetic.v6)]
            unheld.append(f"{rule}: only {WILDCARD_SLOTS} names at a time")
        if not addresses:
            addresses = [ANYWHERE]
            unheld.append(f"{rule}: its ports are taken from servers inside")
        if not rule.ports:
            unheld.append(f"{rule}: only at ports {', '.join(map(str, usual))}")
        found.update((address, port) for address in addresses for port in rule.ports or usual)
    if len(found) > MOST_LISTENERS:
        unheld.append(f"only {MOST_LISTENERS} of {len(found)} addresses and ports")
    return tuple(sorted(found)[:MOST_LISTENERS]), tuple(unheld)


def _own_addresses(rule: HostRule, names: tuple[str, ...]) -> list[bytes]:
    """Return the addresses inside for this rule, or none if it covers a range."""
    if rule.kind == "name":
        slot = names.index(rule.host)
        return [synthetic.v4(slot), synthetic.v6(slot)]
    if rule.kind == "network":
        packed, prefix = _packed(rule.host)
        return [packed] if prefix == len(packed) * 8 else []
    return []


def _packed(host: str) -> tuple[bytes, int]:
    import ipaddress  # not imported at the top, because this module also runs inside

    network = ipaddress.ip_network(host)
    return network.network_address.packed, network.prefixlen


def _is_loopback(packed: bytes) -> bool:
    return packed[0] == 127 if len(packed) == 4 else packed == bytes(15) + b"\1"
