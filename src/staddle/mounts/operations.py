"""The operations that build the sandbox's view of the file system: plain data, in order.

A fresh, empty root is filled with only the paths of the plan. Every operation has one path, the same inside
as outside. Operations of a parent precede those of its children, so each is mounted on top of the parent.

`below` marks an operation whose path is inside a tree of the host. Nothing may be created there: the path
must exist, as it was when the plan was made, with no link in it.

For a process that receives them by descriptor, operations are rows of plain values: (kind, path, flags, mode,
size, data). A row does not contain the operation's origin, which that process need not know.
"""

from __future__ import annotations

import os

from .._value import Value
from ..display import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from ..policy.limits import Limits

    Row: TypeAlias = tuple[bytes, bytes, int, int, int, bytes]


class Bind(Value):
    """Show the host's file or directory, read-only unless `writable`.

    `again`: it is visible already and only gets its own mount, because a mount point cannot be renamed,
    removed or replaced. `optional` ones are left out if they are gone. `source` is the path on the host, if
    it differs.
    """

    path: str
    writable: bool
    origin: str
    below: bool = False
    again: bool = False
    optional: bool = False
    source: str = ""

    @property
    def outside(self) -> str:
        """The path on the host."""
        return self.source or self.path

    def __str__(self) -> str:
        if self.again and self.writable:
            return f"pin {shown(self.path)} so that it cannot be moved or replaced"
        verb = "protect" if self.again else "show"
        what = f"{shown(self.source)} at {shown(self.path)}" if self.source else shown(self.path)
        return f"{verb} {what} ({'read and write' if self.writable else 'read-only'})"


class Overlay(Value):
    """Send changes at and below `path`, which shows a tree of the host, to the layer `upper`."""

    path: str
    upper: str
    work: str
    origin: str

    def __str__(self) -> str:
        return f"keep what is changed in {shown(self.path)} in a layer, away from the host"


class Empty(Value):
    """An empty directory in memory. Mode 0 hides the entry that is there."""

    path: str
    mode: int
    size: int
    origin: str
    below: bool = False

    def __str__(self) -> str:
        if not self.mode:
            return f"hide the directory {shown(self.path)}"
        return f"empty directory {shown(self.path)} (mode {self.mode:04o}, at most {self.size} bytes)"


class Directory(Value):
    """A directory of ours, on the way to an entry inside a private directory."""

    path: str
    mode: int
    origin: str

    def __str__(self) -> str:
        return f"directory {shown(self.path)} (mode {self.mode:04o}), on the way to what is shown below it"


class Mask(Value):
    """Cover the host's file with one that cannot be opened.

    `optional`: skip it if the file is gone. `which` identifies the file if another may replace it, because a
    mask goes with the file that it covers.
    """

    path: str
    origin: str
    optional: bool = False
    which: str = ""

    def __str__(self) -> str:
        return f"hide the file {shown(self.path)}"


class File(Value):
    """A small file with this content; with `below` it covers the host's file, and is read-only.

    With a writable mode it belongs to the sandbox's user, in a private directory.
    """

    path: str
    content: bytes
    origin: str
    below: bool = False
    mode: int = 0o444

    def __str__(self) -> str:
        writable = ", which may be changed" if self.mode & 0o200 else ""
        return f"file {shown(self.path)} ({len(self.content)} bytes){writable}"


class Symlink(Value):
    """A symbolic link in the fresh root."""

    path: str
    target: str
    origin: str

    def __str__(self) -> str:
        return f"link {shown(self.path)} -> {shown(self.target)}"


class Devices(Value):
    """null, zero, full, random, urandom, tty and a private terminal device, nothing else."""

    path: str
    origin: str

    def __str__(self) -> str:
        return f"device directory {shown(self.path)}: null, zero, full, random, urandom, tty, private pts"


class DeviceNode(Value):
    """Show one character device of the host, if it still has these numbers."""

    path: str
    major: int
    minor: int
    origin: str

    def __str__(self) -> str:
        return f"show the device {shown(self.path)} ({self.major}:{self.minor})"


class ProcMount(Value):
    """A /proc that shows only the sandbox's own processes."""

    path: str
    origin: str

    def __str__(self) -> str:
        return f"process directory {shown(self.path)}: the sandbox's own processes"


class Seal(Value):
    """Make this directory of ours read-only from now on; mounts below it stay as they are."""

    path: str
    origin: str

    def __str__(self) -> str:
        return f"make {shown(self.path)} itself read-only"


if TYPE_CHECKING:
    Operation: TypeAlias = (
        Bind | Overlay | Empty | Directory | Mask | File | Symlink | Devices | DeviceNode | ProcMount | Seal
    )

# Sizes of file systems in memory, for a sandbox whose memory or disk is limited.

#: Bytes of a limit for each allowed inode; and the least number of inodes.
_BYTES_AN_INODE, _FEWEST = 4096, 1024
_PAGE = 4096


def inodes(disk: int) -> int:
    """Return the number of files and directories that `limits.disk` allows: one for each page of it."""
    return max(_FEWEST, disk // _BYTES_AN_INODE)


def tmpfs_options(disk: int) -> str:
    """Return the mount options of a tmpfs with at most `disk` bytes."""
    size = -(-disk // _PAGE) * _PAGE  # the kernel counts pages
    return f"size={size},nr_inodes={inodes(disk)}"


def sized(limits: Limits, operations: Iterable[Operation]) -> list[Operation]:
    """Return `operations`, with each tmpfs limited by half of the memory limit and by the disk limit.

    Killing processes does not free files in tmpfs, so at least half of the memory is left to processes.
    """
    bounds = [
        *(() if limits.memory is None else (limits.memory // 2,)),
        *(() if limits.disk is None else (limits.disk,)),
    ]
    if not bounds:
        return list(operations)
    most = max(min(bounds), _PAGE)
    return [
        item.replace(size=most) if isinstance(item, Empty) and item.size > most else item
        for item in operations
    ]


BIND, OVERLAY, EMPTY, DIRECTORY, MASK, FILE, LINK, DEVICES, DEVICE, PROCESSES, SEAL = (
    *(b"bind", b"overlay", b"empty", b"directory", b"mask", b"file"),
    *(b"link", b"devices", b"device", b"processes", b"seal"),
)
WRITABLE, BELOW, AGAIN, OPTIONAL = 1, 2, 4, 8

#: Operations with only a path.
_BARE: dict[bytes, type[Devices | ProcMount | Seal]] = {
    DEVICES: Devices,
    PROCESSES: ProcMount,
    SEAL: Seal,
}
_BARE_KINDS = {operation: kind for kind, operation in _BARE.items()}
#: The shape of a row, as `ipc.wire` checks it.
ROW_SHAPE = (bytes, bytes, int, int, int, bytes)


def encode_operations(operations: Iterable[Operation]) -> tuple[Row, ...]:
    """Return a row for each operation."""
    return tuple(map(_encoded, operations))


def decode_operations(rows: Iterable[Row]) -> tuple[Operation, ...]:
    """Return the operations, without their origins. ValueError for an invalid row."""
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
    if isinstance(item, DeviceNode):
        return DEVICE, path, 0, item.major, item.minor, b""
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
    if kind == DEVICE:
        return DeviceNode(path, mode, size, "")
    if kind not in _BARE:
        raise ValueError(f"there is no operation {kind!r} (at {path!r})")
    return _BARE[kind](path, "")
