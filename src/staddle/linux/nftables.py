"""nftables over netlink, as far as the sandbox's own namespace needs it. Pure.

There is one table of family inet with base chains. A rule is a list of expressions, each of which may end it.
The kernel applies everything as one transaction (`Netlink.ask_batch`), or nothing. See
linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import struct

from .netlink import attribute, message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_INET = 1  # NFPROTO_INET
_BEGIN, _END, _SUBSYSTEM = 16, 17, 10
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_CREATE, _APPEND, _ACKNOWLEDGE = 0x400, 0x800, 4
_NESTED = 0x8000
_REGISTER = 1
ACCEPT, DROP = 1, 0
PREROUTING, INPUT = 0, 1
IPV4, IPV6 = 2, 10
TCP, UDP = 6, 17

#: Position of the destination address in a header: (offset, length).
_DESTINATION = {IPV4: (16, 4), IPV6: (24, 16)}
_META_NFPROTO, _META_L4PROTO = 15, 16
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value))


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def _nest(kind: int, *content: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(content))


def _expression(name: str, *content: bytes) -> bytes:
    return _nest(1, _text(1, name), _nest(2, *content))


def _compare(value: bytes) -> bytes:
    return _expression("cmp", _number(1, _REGISTER), _number(2, 0), _nest(3, attribute(1, value)))


def _meta(key: int) -> bytes:
    return _expression("meta", _number(2, key), _number(1, _REGISTER))


def _load(base: int, offset: int, length: int) -> bytes:
    return _expression(
        "payload", _number(1, _REGISTER), _number(2, base), _number(3, offset), _number(4, length)
    )


# Expressions of a rule.


def family(which: int) -> bytes:
    """Continue for IPV4 or IPV6 packets only."""
    return _meta(_META_NFPROTO) + _compare(bytes([which]))


def protocol(which: int) -> bytes:
    """Continue for TCP or UDP only."""
    return _meta(_META_L4PROTO) + _compare(bytes([which]))


def destination(packed: bytes, prefix: int) -> bytes:
    """Continue for packets to this network only; an earlier expression has checked the family."""
    if not prefix:
        return b""
    offset, length = _DESTINATION[IPV4 if len(packed) == 4 else IPV6]
    bits = length * 8
    mask = ((1 << bits) - (1 << (bits - prefix))).to_bytes(length, "big")
    masked = _expression(
        "bitwise",
        _number(1, _REGISTER),
        _number(2, _REGISTER),
        _number(3, length),
        _nest(4, attribute(1, mask)),
        _nest(5, attribute(1, bytes(length))),
    )
    return _load(_NETWORK_HEADER, offset, length) + masked + _compare(packed)


def destination_port(port: int) -> bytes:
    """Continue for this port only; an earlier expression has checked the protocol."""
    return _load(_TRANSPORT_HEADER, 2, 2) + _compare(struct.pack(">H", port))


def deliver_to(packed: bytes, port: int) -> bytes:
    """Deliver the packet to the transparent socket at this address (tproxy). It keeps its destination."""
    return (
        _expression("immediate", _number(1, _REGISTER), _nest(2, attribute(1, packed)))
        + _expression("immediate", _number(1, _REGISTER + 1), _nest(2, attribute(1, struct.pack(">H", port))))
        + _expression(
            "tproxy",
            _number(1, IPV4 if len(packed) == 4 else IPV6),
            _number(2, _REGISTER),
            _number(3, _REGISTER + 1),
        )
    )


def verdict(code: int) -> bytes:
    """ACCEPT or DROP; later rules of the chain do not apply."""
    return _expression("immediate", _number(1, 0), _nest(2, _nest(2, _number(1, code))))


def at_most(packets: int) -> bytes:
    """Continue for at most `packets` in a second, with a burst of as many."""
    rate = attribute(1, struct.pack(">Q", packets)) + attribute(2, struct.pack(">Q", 1))
    return _expression("limit", rate, _number(3, packets), _number(4, 0))


def log(group: int, length: int) -> bytes:
    """Send the first `length` bytes of the packet to the listeners of this nflog group."""
    return _expression(
        "log", attribute(1, struct.pack(">H", group)), _number(3, length), attribute(4, struct.pack(">H", 1))
    )


def reset() -> bytes:
    """Refuse a TCP connection with a reset, like a machine without a listener."""
    return _expression("reject", _number(1, 1), attribute(2, b"\0"))


def unreachable() -> bytes:
    """Refuse any other packet: administratively prohibited."""
    return _expression("reject", _number(1, 2), attribute(2, b"\3"))  # NFT_REJECT_ICMPX, ADMIN_PROHIBITED


def transaction(table: str, chains: Iterable[tuple[str, int, int, Iterable[bytes]]]) -> tuple[bytes, int]:
    """Return bytes that make `table` with (name, hook, priority, rules) chains, and the number of answers."""
    parts = [_message(_NEW_TABLE, _CREATE, _text(1, table) + _number(2, 0))]
    for name, hook, priority, rules in chains:
        where = _nest(4, _number(1, hook), attribute(2, struct.pack(">i", priority)))
        parts.append(
            _message(_NEW_CHAIN, _CREATE, _text(1, table) + _text(3, name) + where + _text(7, "filter"))
        )
        for rule in rules:
            parts.append(
                _message(_NEW_RULE, _CREATE | _APPEND, _text(1, table) + _text(2, name) + _nest(4, rule))
            )
    begin, end = (message(kind, 0, struct.pack(">BBH", 0, 0, _SUBSYSTEM)) for kind in (_BEGIN, _END))
    return begin + b"".join(parts) + end, len(parts)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return message(_SUBSYSTEM << 8 | kind, _ACKNOWLEDGE | flags, struct.pack(">BBH", _INET, 0, 0) + body)
