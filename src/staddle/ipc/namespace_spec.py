"""The namespaces, mounts and identity around a command, as bytes in a memory file. Pure.

Namespaces, the view of files, who the command is; `command` are the instructions for the last
step, which confines and execs. Neither a path nor a variable of the policy is ever on a command
line.
"""

from __future__ import annotations

import os
import struct

from .._value import Value
from ..mounts.operations import ROW_SHAPE, decode_operations
from . import wire
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..mounts.operations import Operation, Row

    #: (kind, address, number, ports): one part of a network specification.
    NetworkRow = tuple[bytes, bytes, int, bytes]

# The resolver, routes and listeners of a sandbox's network namespace, and their rows for a record. Pure.


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


MAGIC = b"staddle-namespace-spec-1\n"
#: The rows in its fields, by the names that their annotations have.
ROWS = {"Row": ROW_SHAPE, "NetworkRow": NETWORK_ROW_SHAPE}


class NamespaceSpec(Value):
    """One sandbox that is made by our own processes."""

    #: The descriptor for a report of failure, and the process that asked for this start.
    status: int
    launcher: int
    #: The operations that make the view, as rows (`mounts.operations`).
    view: tuple[Row, ...]
    #: CLONE_NEW* of the namespaces to make, besides the user, pid and mount namespaces.
    namespaces: int
    #: The ids of the command inside, and the machine's name there (empty: unchanged).
    uid: int
    gid: int
    host: bytes
    #: An unused id to become instead of root; -1 if the caller is an ordinary user.
    unprivileged_uid: int
    #: (name, inode) of the outer namespaces, in which the sandbox must not be.
    foreign: tuple[tuple[bytes, int], ...]
    #: An `ExecSpec`, encoded.
    command: bytes
    #: The parts of the network to make inside, as in `network_spec`, and the descriptors of the gateway's
    #: socket: its own end and the other. Both are empty if nothing outside can be reached.
    network: tuple[NetworkRow, ...]
    gateway: tuple[int, ...]
    #: Descriptors with which the first process enters the cgroups of the sandbox, if it has any.
    cgroup_fds: tuple[int, ...]
    #: The number of processors for it (0: all).
    processors: int = 0
    #: Limits for the first process to enforce if no cgroup does: bytes of memory, processes (0: none). And
    #: the descriptor of the file in which it reports its actions.
    memory: int = 0
    processes: int = 0
    tally: int = -1
    #: Whether /proc is that of an outer container, because no other can be mounted.
    outer_processes: int = 0
    #: Whether root makes the user namespace and maps the unused id, because this host restricts others.
    maps_as_root: int = 0
    #: The unit of systemd that the launcher is to be in, and the command that asks for it, with its variables
    #: (see `inside.systemd_unit`); and (file, most): what the control group of the unit must allow at most.
    unit: bytes = b""
    starter: tuple[bytes, ...] = ()
    starter_environment: tuple[bytes, ...] = ()
    bounds: tuple[tuple[bytes, int], ...] = ()

    def operations(self) -> tuple[Operation, ...]:
        """The operations that make the view."""
        return decode_operations(self.view)


_SHAPES = wire.shapes(NamespaceSpec, **ROWS)


def encode(spec: NamespaceSpec) -> bytes:
    """The bytes for the memory file. Raises Malformed for what decode would refuse."""
    data = wire.pack(MAGIC, spec, _SHAPES)
    check(spec)
    return data


def decode(data: bytes) -> NamespaceSpec:
    """The specification in `data`, or Malformed."""
    spec = wire.unpack(MAGIC, data, NamespaceSpec, _SHAPES)
    check(spec)
    return spec


def foreign(kinds: Iterable[str]) -> tuple[tuple[bytes, int], ...]:
    """The namespaces that this process is in, of these kinds, by their names in /proc."""
    return tuple((os.fsencode(kind), os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in kinds)


def check(spec: NamespaceSpec) -> None:
    """Malformed for what cannot be meant."""
    if spec.uid < 0 or spec.gid < 0 or spec.unprivileged_uid == 0:
        raise Malformed("no process in a sandbox is the host's root")
    if spec.unit and not (spec.starter and spec.starter[0].startswith(b"/")):
        raise Malformed("there is nothing to ask for the unit with")
    if len(spec.gateway) not in (0, 2, 3):
        raise Malformed("the gateway has two ends, and one for copies or none")
    try:
        spec.operations()
    except ValueError as error:
        raise Malformed(str(error)) from None
