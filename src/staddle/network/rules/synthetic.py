"""Addresses for names: each allowed name has one of each family inside, and the address leads back to it.

198.18.0.0/15 and 2001:2::/48 are set aside for benchmarks (RFC 2544, RFC 5180): no host on
the internet has them, and programs treat them as ordinary addresses, not as private ones.
Pure; the clock is an argument.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

V4_NETWORK, V4_PREFIX = bytes((198, 18, 0, 0)), 15
V6_NETWORK, V6_PREFIX = bytes.fromhex("20010002") + bytes(12), 48
#: The sandbox's own addresses in them: what its connections come from.
OWN_V4, OWN_V6 = bytes((198, 18, 0, 1)), V6_NETWORK[:15] + b"\1"
#: The first address of a name; those below are ours.
FIRST = 256
#: How many names of wildcards have an address at once.
ROOM = 16384
#: A name that was not asked for in this time (seconds) may lose its address to another.
FORGOTTEN = 3600.0

_V4_BASE = int.from_bytes(V4_NETWORK, "big")


def v4(slot: int) -> bytes:
    """The IPv4 address of a slot."""
    return struct.pack(">I", _V4_BASE + FIRST + slot)


def v6(slot: int) -> bytes:
    """The IPv6 address of a slot."""
    return V6_NETWORK[:12] + struct.pack(">I", FIRST + slot)


def slot_of(packed: bytes) -> int | None:
    """The slot that an address of either family belongs to, if it is one of ours."""
    if len(packed) == 4:
        number = int.from_bytes(packed, "big") - _V4_BASE
        inside = 0 <= number < 1 << (32 - V4_PREFIX)
    else:
        number = int.from_bytes(packed[12:], "big")
        inside = len(packed) == 16 and packed[:12] == V6_NETWORK[:12]
    return number - FIRST if inside and number >= FIRST else None


def is_ours(packed: bytes) -> bool:
    """Whether the address is of the networks that exist inside only."""
    if len(packed) == 4:
        return packed[0] == V4_NETWORK[0] and packed[1] & 0xFE == V4_NETWORK[1]
    return packed[:6] == V6_NETWORK[:6]


class Addresses:
    """Slots for names: for ever for those of the policy, for names of wildcards while there is room."""

    def __init__(self, names: Iterable[str], room: int = ROOM) -> None:
        self._names: dict[int, str] = dict(enumerate(sorted(set(names))))
        self._slots = {name: slot for slot, name in self._names.items()}
        self._fixed = len(self._names)
        self._room = room
        self._asked: dict[str, float] = {}  # the names of wildcards, longest unasked first

    def narrow(self, room: int) -> None:
        """Have no more than this many names of wildcards, because only so many have listeners."""
        self._room = min(self._room, room)

    def slot(self, name: str, now: float) -> int | None:
        """The slot of this name, given to it if it has none; None when there is no room for another."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._free(now)
            if slot is None:
                return None
            self._slots[name], self._names[slot] = slot, name
        if slot >= self._fixed:
            self._asked.pop(name, None)
            self._asked[name] = now
        return slot

    def name(self, packed: bytes) -> str | None:
        """The name that this address was given out for."""
        slot = slot_of(packed)
        return None if slot is None else self._names.get(slot)

    def _free(self, now: float) -> int | None:
        if len(self._asked) < self._room:
            return self._fixed + len(self._asked)
        oldest = next(iter(self._asked), None)
        # A program may still have the old address: soon after, it would reach the wrong host.
        if oldest is None or now - self._asked[oldest] < FORGOTTEN:
            return None
        del self._asked[oldest]
        slot = self._slots.pop(oldest)
        del self._names[slot]
        return slot
