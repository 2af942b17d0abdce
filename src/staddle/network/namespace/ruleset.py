"""The nftables rules of a sandbox, as one transaction. Pure.

    own addresses            accepted
    what is allowed          TCP to the gateway's listener, UDP to its sockets
    everything else          told to the gateway, a few a second, and refused at once

Making the bytes takes longer than having the kernel take them, so they are remembered: whoever
forks the first process of a sandbox calls `compiled` before.
"""

from __future__ import annotations

from ...ipc.network_spec import ANYWHERE
from ...linux import nftables
from ..rules import synthetic
from .from_policy import LISTENER_PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.network_spec import NetworkSpec

#: The group that refused packets are told to, how much of each, and how many in a second.
LOG_GROUP, LOG_LENGTH, LOGGED_A_SECOND = 1, 80, 50

_OWN = {
    nftables.IPV4: ((bytes((127, 0, 0, 0)), 8), (synthetic.OWN_V4, 32)),
    nftables.IPV6: ((bytes(15) + b"\1", 128), (synthetic.OWN_V6, 128)),
}
_REMEMBERED = 16
_known: dict[tuple[NetworkSpec, bool, bool], tuple[bytes, int]] = {}


def compiled(spec: NetworkSpec, *, v6: bool = True, tells: bool = True) -> tuple[bytes, int]:
    """The transaction, and how many answers the kernel gives to it.

    `v6` and `tells` are for kernels without IPv6, or without a way to tell what was refused.
    """
    key = (spec, v6, tells)
    found = _known.get(key)
    if found is None:
        if len(_known) >= _REMEMBERED:
            del _known[next(iter(_known))]
        chain = ("incoming", nftables.PREROUTING, -150, rules(spec, v6, tells))
        found = _known[key] = nftables.transaction("staddle", [chain])
    return found


def rules(spec: NetworkSpec, v6: bool, tells: bool) -> list[bytes]:
    """The rules, in order."""
    made = []
    for family in (nftables.IPV4, nftables.IPV6) if v6 else (nftables.IPV4,):
        made += _family(spec, family)
    if tells:
        made.append(nftables.at_most(LOGGED_A_SECOND) + nftables.log(LOG_GROUP, LOG_LENGTH))
    return [*made, nftables.protocol(nftables.TCP) + nftables.reset(), nftables.unreachable()]


def _family(spec: NetworkSpec, family: int) -> list[bytes]:
    is_v4 = family == nftables.IPV4
    only, length = nftables.family(family), 4 if is_v4 else 16
    accept = nftables.verdict(nftables.ACCEPT)
    made = [only + nftables.destination(*network) + accept for network in _OWN[family]]
    listener = nftables.deliver_to(synthetic.OWN_V4 if is_v4 else synthetic.OWN_V6, LISTENER_PORT)
    tcp, udp = nftables.protocol(nftables.TCP), nftables.protocol(nftables.UDP)
    for packed, prefix, ports in spec.gates:
        if len(packed) == length:
            to = only + nftables.destination(packed, prefix) + tcp
            at = [nftables.destination_port(port) for port in ports] or [b""]
            made += [to + port + listener + accept for port in at]
    for packed, port in spec.datagrams:
        if packed == ANYWHERE or len(packed) == length:
            to = nftables.destination(packed, length * 8) if packed else b""
            made.append(only + to + udp + nftables.destination_port(port) + accept)
    return made
