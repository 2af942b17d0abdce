"""The resolver, routes and listeners of a sandbox's network namespace, and their rows for a record. Pure."""

from __future__ import annotations

import struct

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    #: (kind, address, number, ports): one part of a network specification.
    NetworkRow = tuple[bytes, bytes, int, bytes]

#: The shape of a row, as `wire` checks it.
NETWORK_ROW_SHAPE = (bytes, bytes, int, bytes)
#: Stands for every address of the sandbox.
ANYWHERE = b""
_RESOLVER, _GATE, _FORWARD, _DATAGRAM, _LISTENER = b"resolver", b"gate", b"forward", b"datagram", b"listener"


class NetworkSpec(Value):
    """Resolver, routes and listeners to make. Addresses are packed; ANYWHERE is every address of the sandbox.

    `gates` are networks (address, prefix length, ports; no ports: all) whose TCP connections go to the
    gateway. `forwards` are (address, port) of the host's loopback that appear inside. `unheld` lists what is
    missing without nftables.
    """

    resolver: bool = False
    gates: tuple[tuple[bytes, int, tuple[int, ...]], ...] = ()
    forwards: tuple[tuple[bytes, int], ...] = ()
    datagrams: tuple[tuple[bytes, int], ...] = ()
    listeners: tuple[tuple[bytes, int], ...] = ()
    unheld: tuple[str, ...] = ()


def encoded(spec: NetworkSpec) -> tuple[NetworkRow, ...]:
    """Return `spec` as rows of plain values."""
    rows: list[NetworkRow] = [(_RESOLVER, b"", 0, b"")] if spec.resolver else []
    for packed, length, ports in spec.gates:
        rows.append((_GATE, packed, length, struct.pack(f"<{len(ports)}H", *ports)))
    for kind in (_FORWARD, _DATAGRAM, _LISTENER):
        rows += [(kind, packed, port, b"") for packed, port in getattr(spec, f"{kind.decode()}s")]
    return tuple(rows)


def decoded(rows: tuple[NetworkRow, ...]) -> NetworkSpec:
    """Return the specification in `rows`; ValueError for an invalid row."""
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
    return NetworkSpec(
        resolver=resolver,
        gates=tuple(gates),
        forwards=tuple(found[_FORWARD]),
        datagrams=tuple(found[_DATAGRAM]),
        listeners=tuple(found[_LISTENER]),
    )
