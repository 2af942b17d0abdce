"""Synthetic addresses: each allowed name has an IPv4 and an IPv6 address inside that stand for it.

198.18.0.0/15 and 2001:2::/48 are reserved for benchmarks (RFC 2544, RFC 5180). No host on the internet has
them, and programs treat them as public addresses. Pure; the time is an argument.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

V4_NETWORK, V4_PREFIX = bytes((198, 18, 0, 0)), 15
V6_NETWORK, V6_PREFIX = bytes.fromhex("20010002") + bytes(12), 48
#: The sandbox's own addresses in these networks, the source of its connections.
OWN_V4, OWN_V6 = bytes((198, 18, 0, 1)), V6_NETWORK[:15] + b"\1"
#: The first address of a name; the addresses below it are reserved for staddle.
FIRST = 256
#: Maximum number of names from wildcards that have an address.
ROOM = 16384
#: Seconds after the last lookup of a name until another name may get its address.
FORGOTTEN = 3600.0

_V4_BASE = int.from_bytes(V4_NETWORK, "big")


def v4(slot: int) -> bytes:
    """Return the IPv4 address of a slot."""
    return struct.pack(">I", _V4_BASE + FIRST + slot)


def v6(slot: int) -> bytes:
    """Return the IPv6 address of a slot."""
    return V6_NETWORK[:12] + struct.pack(">I", FIRST + slot)


def slot_of(packed: bytes) -> int | None:
    """Return the slot of an address, or None if it is not synthetic."""
    if len(packed) == 4:
        number = int.from_bytes(packed, "big") - _V4_BASE
        inside = 0 <= number < 1 << (32 - V4_PREFIX)
    else:
        number = int.from_bytes(packed[12:], "big")
        inside = len(packed) == 16 and packed[:12] == V6_NETWORK[:12]
    return number - FIRST if inside and number >= FIRST else None


def is_ours(packed: bytes) -> bool:
    """Whether the address is in a synthetic network, which exists only inside."""
    if len(packed) == 4:
        return packed[0] == V4_NETWORK[0] and packed[1] & 0xFE == V4_NETWORK[1]
    return packed[:6] == V6_NETWORK[:6]


class Addresses:
    """Slots of names: permanent for names in the policy, temporary for names from wildcards."""

    def __init__(self, names: Iterable[str], room: int = ROOM) -> None:
        self._names: dict[int, str] = dict(enumerate(sorted(set(names))))
        self._slots = {name: slot for slot, name in self._names.items()}
        self._fixed = len(self._names)
        self._room = room
        self._asked: dict[str, float] = {}  # names from wildcards, least recently asked first

    def narrow(self, room: int) -> None:
        """Limit the number of names from wildcards, because only so many have listeners."""
        self._room = min(self._room, room)

    def slot(self, name: str, now: float) -> int | None:
        """Return the slot of this name, a new one if needed; None if all slots are in use."""
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
        """Return the name that this address stands for, or None."""
        slot = slot_of(packed)
        return None if slot is None else self._names.get(slot)

    def _free(self, now: float) -> int | None:
        if len(self._asked) < self._room:
            return self._fixed + len(self._asked)
        oldest = next(iter(self._asked), None)
        # A program may still use the old address, and would then reach the wrong host.
        if oldest is None or now - self._asked[oldest] < FORGOTTEN:
            return None
        del self._asked[oldest]
        slot = self._slots.pop(oldest)
        del self._names[slot]
        return slot
