"""Operations as rows of plain values, for a process that is told about them by descriptor. Pure.

A row is (kind, path, flags, mode, size, data). Where an operation comes from is not in it: who
carries it out need not know.
"""

from __future__ import annotations

import os

from .operations import Bind, Devices, Directory, Empty, File, Mask, Overlay, ProcMount, Seal, Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from .operations import Operation

    Row: TypeAlias = tuple[bytes, bytes, int, int, int, bytes]

BIND, OVERLAY, EMPTY, DIRECTORY, MASK, FILE, LINK, DEVICES, PROCESSES, SEAL = (
    *(b"bind", b"overlay", b"empty", b"directory", b"mask", b"file"),
    *(b"link", b"devices", b"processes", b"seal"),
)
WRITABLE, BELOW, AGAIN, OPTIONAL = 1, 2, 4, 8

#: Those of which there is nothing to say but where.
_BARE: dict[bytes, type[Devices | ProcMount | Seal]] = {
    DEVICES: Devices,
    PROCESSES: ProcMount,
    SEAL: Seal,
}
_BARE_KINDS = {operation: kind for kind, operation in _BARE.items()}
#: The shape of a row, as `ipc.wire` checks it.
ROW_SHAPE = (bytes, bytes, int, int, int, bytes)


def encoded(operations: Iterable[Operation]) -> tuple[Row, ...]:
    """A row for each."""
    return tuple(map(_encoded, operations))


def decoded(rows: Iterable[Row]) -> tuple[Operation, ...]:
    """The operations again, without their origins. ValueError for a row that is none."""
    return tuple(map(_decoded, rows))


def _encoded(item: Operation) -> Row:
    path = os.fsencode(item.path)
    if isinstance(item, Bind):
        flags = (
            *((WRITABLE, item.writable), (BELOW, item.below)),
            *((AGAIN, item.again), (OPTIONAL, item.optional)),
        )
        return BIND, path, sum(flag for flag, on in flags if on), 0, 0, os.fsencode(item.source)
    if isinstance(item, Overlay):
        return OVERLAY, path, 0, 0, 0, b"\0".join(map(os.fsencode, (item.upper, item.work)))
    if isinstance(item, Empty):
        return EMPTY, path, BELOW if item.below else 0, item.mode, item.size, b""
    if isinstance(item, Directory):
        return DIRECTORY, path, 0, item.mode, 0, b""
    if isinstance(item, File):
        return FILE, path, BELOW if item.below else 0, item.mode, 0, item.content
    if isinstance(item, Symlink):
        return LINK, path, 0, 0, 0, os.fsencode(item.target)
    if isinstance(item, Mask):
        return MASK, path, OPTIONAL if item.optional else 0, 0, 0, item.which.encode()
    return _BARE_KINDS[type(item)], path, 0, 0, 0, b""


def _decoded(row: Row) -> Operation:
    kind, name, flags, mode, size, data = row
    if not name.startswith(b"/") or 0 in name:
        raise ValueError(f"{name!r} is not an absolute path")
    path, below = os.fsdecode(name), bool(flags & BELOW)
    if kind == BIND:
        if data and (not data.startswith(b"/") or 0 in data):
            raise ValueError(f"{data!r} is not an absolute path")
        again, optional = bool(flags & AGAIN), bool(flags & OPTIONAL)
        return Bind(path, bool(flags & WRITABLE), "", below, again, optional, os.fsdecode(data))
    if kind == OVERLAY:
        upper, _, work = data.partition(b"\0")
        if not upper.startswith(b"/") or not work.startswith(b"/") or b"\0" in work:
            raise ValueError(f"{data!r} are not two absolute paths")
        return Overlay(path, os.fsdecode(upper), os.fsdecode(work), "")
    if kind == EMPTY:
        return Empty(path, mode, size, "", below)
    if kind == DIRECTORY:
        return Directory(path, mode, "")
    if kind == FILE:
        return File(path, data, "", below, mode)
    if kind == LINK:
        return Symlink(path, os.fsdecode(data), "")
    if kind == MASK:
        return Mask(path, "", bool(flags & OPTIONAL), data.decode("ascii", "replace"))
    if kind not in _BARE:
        raise ValueError(f"there is no operation {kind!r} (at {path!r})")
    return _BARE[kind](path, "")
