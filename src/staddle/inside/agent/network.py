"""The network of a sandbox, as its first process has it: made ahead, handed out when asked for."""

from __future__ import annotations

import struct

from ...linux import loopback
from ...network.namespace import handing, inside
from ...network.namespace.arrangement import Arrangement

TYPE_CHECKING = False
if TYPE_CHECKING:
    #: (kind, address, number, ports): one part of an arrangement.
    Row = tuple[bytes, bytes, int, bytes]

_RESOLVER, _GATE, _FORWARD, _DATAGRAM, _LISTENER = b"resolver", b"gate", b"forward", b"datagram", b"listener"


class Network:
    """Sockets of the sandbox's network namespace. Needs CAP_NET_ADMIN over it."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        """Bring loopback up, and make what the policy needs besides."""
        self._ready: handing.Ready | None = None
        if rows:
            self._ready = inside.prepare(decoded(rows))
        else:  # the usual case, with as little of us as possible: every sandbox has this in memory
            loopback.up()

    def hand_over(self, line: int) -> None:
        """Send what was made, once, to whoever holds the other end."""
        ready, self._ready = self._ready, None
        if ready is not None:
            handing.hand_over(line, ready)

    def answer(self, line: int, wish: bytes) -> None:
        """Make what the host program wishes for: a connection to a server inside, more sockets."""
        if handing.is_wish(wish):
            handing.answer(line, wish)


def encoded(arrangement: Arrangement) -> tuple[Row, ...]:
    """An arrangement as rows of plain values. Pure."""
    rows: list[Row] = [(_RESOLVER, b"", 0, b"")] if arrangement.resolver else []
    for packed, length, ports in arrangement.gates:
        rows.append((_GATE, packed, length, struct.pack(f"<{len(ports)}H", *ports)))
    for kind in (_FORWARD, _DATAGRAM, _LISTENER):
        rows += [(kind, packed, port, b"") for packed, port in getattr(arrangement, f"{kind.decode()}s")]
    return tuple(rows)


def decoded(rows: tuple[Row, ...]) -> Arrangement:
    """The arrangement again. ValueError for a row that is none. Pure."""
    found: dict[bytes, list[tuple[bytes, int]]] = {_FORWARD: [], _DATAGRAM: [], _LISTENER: []}
    gates: list[tuple[bytes, int, tuple[int, ...]]] = []
    resolver = False
    for kind, packed, number, ports in rows:
        if kind == _RESOLVER:
            resolver = True
        elif kind == _GATE and len(ports) % 2 == 0:
            gates.append((packed, number, struct.unpack(f"<{len(ports) // 2}H", ports)))
        elif kind in found:
            found[kind].append((packed, number))
        else:
            raise ValueError(f"there is no {kind!r} in a network")
    return Arrangement(
        resolver=resolver,
        gates=tuple(gates),
        forwards=tuple(found[_FORWARD]),
        datagrams=tuple(found[_DATAGRAM]),
        listeners=tuple(found[_LISTENER]),
    )
