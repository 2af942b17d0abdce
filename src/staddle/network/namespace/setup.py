"""Set up the sandbox's network namespace: loopback, routes, nftables rules and sockets.

The first process inside calls this in a new network namespace, while it has CAP_NET_ADMIN and
CAP_NET_BIND_SERVICE over it, before any code of the agent runs:

    ready = prepare(spec)      set up everything, or raise OSError

It then hands the sockets out (see `socket_handoff`). The gateway accepts on these sockets from outside; no
code of staddle runs inside afterwards.

The nftables rules are one transaction (`compiled`, which is pure):

    own addresses            accepted
    allowed destinations     TCP to the gateway's listener, UDP to its sockets
    everything else          reported to the gateway, a few per second, and refused at once

Building the bytes takes longer than the kernel's work, so they are cached: the process that forks the first
process of a sandbox calls `compiled` first.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct

from ...ipc.namespace_spec import ANYWHERE
from ...linux import nftables
from ...linux.netlink import LOOPBACK, NETFILTER, Netlink, address, attribute, link_up, local_route, message
from ..rules import synthetic
from .from_policy import LISTENER_PORT, RESOLVER
from .socket_handoff import PreparedSockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.gateway_messages import Label
    from ...ipc.namespace_spec import NetworkSpec

#: Log group for refused packets, logged bytes of each packet, and packets logged per second.
LOG_GROUP, LOG_LENGTH, LOGGED_A_SECOND = 1, 80, 50

_OWN = {
    nftables.IPV4: ((bytes((127, 0, 0, 0)), 8), (synthetic.OWN_V4, 32)),
    nftables.IPV6: ((bytes(15) + b"\1", 128), (synthetic.OWN_V6, 128)),
}
_REMEMBERED = 16
_known: dict[tuple[NetworkSpec, bool, bool], tuple[bytes, int]] = {}


def compiled(spec: NetworkSpec, *, v6: bool = True, tells: bool = True) -> tuple[bytes, int]:
    """Return the transaction and the number of answers that the kernel sends to it.

    `v6` and `tells` are False for kernels without IPv6 or without nfnetlink_log.
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
    """Return the nftables rules in order."""
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


_BACKLOG = 128
_SOL_IPV6, _IP_TRANSPARENT, _IPV6_TRANSPARENT = 41, 19, 75
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_V6ONLY, _IPV6_FREEBIND = 8, 49, 26, 78
_SOL_NETLINK, _NETLINK_NO_ENOBUFS = 270, 5
_STREAM, _DATAGRAM = _socket.SOCK_STREAM, _socket.SOCK_DGRAM


def prepare(spec: NetworkSpec, *, redirect: bool = True) -> PreparedSockets:
    """Bring loopback up and create the sockets of `spec`. Closes everything if it fails."""
    redirects, tells = False, False
    if redirect and (spec.gates or spec.datagrams):
        redirects, tells = _redirect(spec)
    v6 = _interfaces(spec, everything=redirects)
    return sockets(spec, redirects=redirects, tells=tells, v6=v6)


def sockets(spec: NetworkSpec, *, redirects: bool, tells: bool, v6: bool) -> PreparedSockets:
    """Create the sockets of a network that is set up: for a new one, or after the old sockets were closed."""
    made: list[tuple[Label, _socket.socket]] = []
    try:
        for packed, port in spec.forwards:
            made.append((("forward", packed, port), _listener(packed, port)))
        if spec.resolver:
            where = bytes(map(int, RESOLVER.split(".")))
            made.append((("dns", where, 53), _bound(_DATAGRAM, where, 53)))
            made.append((("dns-tcp", where, 53), _listener(where, 53)))
        for packed, port in spec.datagrams:
            made += [(("udp", p, port), _datagram(p, port)) for p in _addresses(packed, v6)]
        if redirects:
            for own in (synthetic.OWN_V4, synthetic.OWN_V6) if v6 else (synthetic.OWN_V4,):
                made.append((("tcp", own, 0), _listener(own, LISTENER_PORT, transparent=True)))
            if tells:
                made.append((("refusals", b"", 0), _refusals()))
        else:
            for packed, port in spec.listeners:
                made += [(("tcp", p, port), _listener(p, port)) for p in _addresses(packed, v6)]
    except BaseException:
        for _, each in made:
            each.close()
        raise
    return PreparedSockets(tuple(made), redirects, v6, tells)


def _interfaces(spec: NetworkSpec, everything: bool) -> bool:
    """Set up loopback with addresses besides 127.0.0.1 and ::1, and routes. Returns whether there is IPv6.

    Without other addresses, getaddrinfo() with AI_ADDRCONFIG assumes that there is no network, and asks for
    no address at all.
    """
    messages = [(4, link_up(LOOPBACK))]
    networks = _networks(spec, everything)
    if networks:
        own = {4: synthetic.OWN_V4, 16: synthetic.OWN_V6}
        messages += [(length, address(LOOPBACK, packed, length * 8)) for length, packed in own.items()]
        messages += [
            (len(packed), local_route(packed, prefix, own[len(packed)])) for packed, prefix in networks
        ]
    with Netlink() as kernel:
        refused = kernel.ask_each(*(message for _, message in messages))
    v6 = bool(networks) and not refused[2]
    for (length, _), error in zip(messages, refused, strict=True):
        if error and (v6 or length == 4):  # without IPv6, its addresses and routes fail
            raise OSError(error, os.strerror(error))
    return v6


def _networks(spec: NetworkSpec, everything: bool) -> list[tuple[bytes, int]]:
    """Return the networks that are routed to loopback."""
    found = {(packed, prefix) for packed, prefix, _ in spec.gates}
    found |= {(packed, len(packed) * 8) for packed, _ in spec.datagrams if packed}
    if spec.resolver:
        found |= {
            (synthetic.V4_NETWORK, synthetic.V4_PREFIX),
            (synthetic.V6_NETWORK, synthetic.V6_PREFIX),
        }
    if everything:
        # The rules refuse and report everything else. Without rules it stays unreachable.
        return [(bytes(4), 0), (bytes(16), 0)]
    return sorted(network for network in found if not _is_loopback(network[0]))


def _redirect(spec: NetworkSpec) -> tuple[bool, bool]:
    """Install the nftables rules. Returns whether they work, and whether refusals are reported."""
    for v6, tells in ((True, True), (True, False), (False, True), (False, False)):
        try:
            with Netlink(NETFILTER) as kernel:
                kernel.ask_batch(*compiled(spec, v6=v6, tells=tells))
        except OSError as error:
            # nftables is not in this kernel, not loaded or forbidden. All three have the same result.
            if error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
                raise
        else:
            return True, tells
    return False, False


def _refusals() -> _socket.socket:
    """Return the socket on which the kernel reports refused packets (nfnetlink_log)."""
    configure = 4 << 8 | 1  # NFULNL_MSG_CONFIG
    header = struct.pack(">BBH", 0, 0, LOG_GROUP)
    bind = attribute(1, b"\1")
    mode = attribute(2, struct.pack(">IBx", LOG_LENGTH, 2))  # copy up to LOG_LENGTH bytes
    made = _socket.socket(
        _socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK, NETFILTER
    )
    try:
        made.bind((0, 0))
        made.setsockopt(_SOL_NETLINK, _NETLINK_NO_ENOBUFS, 1)
        made.send(message(configure, 0, header + bind) + message(configure, 0, header + mode))
    except BaseException:
        made.close()
        raise
    return made


def _addresses(packed: bytes, v6: bool) -> list[bytes]:
    """Return the addresses to bind for an address of the specification; none for IPv6 without `v6`."""
    if packed == ANYWHERE:
        return [bytes(4), bytes(16)] if v6 else [bytes(4)]
    return [packed] if v6 or len(packed) == 4 else []


def _bound(kind: int, packed: bytes, port: int, *, transparent: bool = False) -> _socket.socket:
    family = _socket.AF_INET if len(packed) == 4 else _socket.AF_INET6
    made = _socket.socket(family, kind | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    try:
        if kind == _STREAM:
            made.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        if family == _socket.AF_INET6:
            made.setsockopt(_SOL_IPV6, _IPV6_V6ONLY, 1)
            made.setsockopt(_SOL_IPV6, _IPV6_FREEBIND, 1)  # a local route is not enough for IPv6
        if transparent:
            level, option = (0, _IP_TRANSPARENT) if len(packed) == 4 else (_SOL_IPV6, _IPV6_TRANSPARENT)
            made.setsockopt(level, option, 1)
        made.bind((_socket.inet_ntop(family, packed), port))
    except BaseException:
        made.close()
        raise
    return made


def _listener(packed: bytes, port: int, *, transparent: bool = False) -> _socket.socket:
    made = _bound(_STREAM, packed, port, transparent=transparent)
    made.listen(_BACKLOG)
    return made


def _datagram(packed: bytes, port: int) -> _socket.socket:
    """Create a UDP socket that reports the destination address of every datagram."""
    made = _bound(_DATAGRAM, packed, port)
    if len(packed) == 4:
        made.setsockopt(0, _IP_PKTINFO, 1)
    else:
        made.setsockopt(_SOL_IPV6, _IPV6_RECVPKTINFO, 1)
    return made


def _is_loopback(packed: bytes) -> bool:
    return packed[0] == 127 if len(packed) == 4 else packed == bytes(15) + b"\1"


def allow_low_ports() -> None:
    """Let all processes in this network namespace bind ports below 1024. Needs a writable /proc/sys."""
    try:
        fd = os.open("/proc/sys/net/ipv4/ip_unprivileged_port_start", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # this kernel has no such setting
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)
