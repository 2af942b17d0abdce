"""The part of a plan's network that the supervisor can hold: connections over TCP to addresses. Pure.

It makes every connection in the command's place, and knows the address it connects to. It knows
no names, because a command cannot ask for one: a datagram socket would send anywhere. And there
is no loopback but the host's.
"""

from __future__ import annotations

from ...enforcement import Gap
from ...linux import landlock as kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...inside.landlock.connections import Row
    from ...policy.plan import Plan

_ELSEWHERE = "use the namespaces, bwrap or systemd backend"
_LOCALHOST = bytes((127, 0, 0, 1))
#: The first Landlock that keeps a command from taking a port of the host's.
_PORTS_SINCE = 4


def is_some(plan: Plan) -> bool:
    """Whether it is neither none of the network nor all of it."""
    return plan.network.mode in ("loopback", "allow")


def rows(plan: Plan) -> tuple[Row, ...]:
    """The addresses that may be connected to, and those that may not."""
    network = plan.network
    if network.mode == "loopback":
        return tuple((_LOCALHOST, 32, port, 0) for port in network.ports)
    if network.mode != "allow":
        return ()
    from ipaddress import ip_network

    made = []
    for rule in network.rules:
        if rule.kind == "network" and rule.protocol == "tcp":
            place = ip_network(rule.host)
            packed = place.network_address.packed
            made += [(packed, place.prefixlen, port, int(rule.deny)) for port in rule.ports or (0,)]
    return tuple(made)


def ports(plan: Plan, rights: frozenset[str]) -> tuple[tuple[tuple[int, int], ...], frozenset[str]]:
    """(port, rights) that Landlock itself allows, and the rights that it handles at all.

    The supervisor is under the same rules as the command. Ports cannot be counted where every one is meant.
    """
    if plan.network.mode == "open":
        return (), rights - kernel.TCP
    meant = sorted({port for _, _, port, refused in rows(plan) if not refused})
    if 0 in meant:
        return (), rights - {"connect_tcp"}
    connect = kernel.bits(rights & {"connect_tcp"}, "net")
    return tuple((port, connect) for port in meant), rights


def gaps(plan: Plan, abi: int) -> Iterator[Gap]:
    """The gaps of the network, each in its words. More than the policy says is never reached."""
    if not is_some(plan):
        return
    yield Gap(
        "network",
        "Landlock gives no loopback of its own: no server inside can be connected to, and one that listens "
        "without naming a port gets one of the host's",
        _ELSEWHERE,
    )
    if abi < _PORTS_SINCE:
        yield Gap(
            "network",
            f"this kernel has Landlock ABI {abi}: a command can take ports of the host before ABI 4",
            "use Linux 6.7 or newer",
        )
    for rule in plan.network.rules:
        if rule.deny:
            continue
        if rule.protocol == "udp":
            yield Gap(
                "network", f"{rule} cannot be reached: Landlock cannot hold UDP to anything", _ELSEWHERE
            )
        elif rule.kind != "network":
            why = f"{rule} cannot be reached: Landlock knows addresses, not names"
            yield Gap("network", why, f"name its address and port, or {_ELSEWHERE}")
