"""The operations that make the sandbox's view of the file system: plain data, in order.

A fresh, empty root is filled with what the plan names and nothing else. Every operation
happens at one path, the same inside as outside; those of a parent come before those of its
children, so each lands on top of what the parent shows.

`below` marks an operation whose path lies inside something of the host. Nothing may be
created there: the path must exist, as it was when the plan was made, with no link in it.
"""

from __future__ import annotations

from .._value import Value
from ..display import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from ..policy.limits import Limits


class Bind(Value):
    """Show the host's file or directory, read-only unless `writable`.

    `again` means that it is visible already and only gets a mount of its own: a mount point
    cannot be renamed, removed or replaced. `optional` ones are left out when they are gone.
    `source` is what the host calls it, where that is something else.
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
        """The path of what is shown, on the host."""
        return self.source or self.path

    def __str__(self) -> str:
        if self.again and self.writable:
            return f"pin {shown(self.path)} so that it cannot be moved or replaced"
        verb = "protect" if self.again else "show"
        what = f"{shown(self.source)} at {shown(self.path)}" if self.source else shown(self.path)
        return f"{verb} {what} ({'read and write' if self.writable else 'read-only'})"


class Overlay(Value):
    """Let what is changed at and below `path`, where something of the host is shown, go to `upper`."""

    path: str
    upper: str
    work: str
    origin: str

    def __str__(self) -> str:
        return f"keep what is changed in {shown(self.path)} in a layer, away from the host"


class Empty(Value):
    """An empty directory in memory. Mode 0 hides whatever is there."""

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
    """A directory of ours, on the way to something inside a private directory."""

    path: str
    mode: int
    origin: str

    def __str__(self) -> str:
        return f"directory {shown(self.path)} (mode {self.mode:04o}), on the way to what is shown below it"


class Mask(Value):
    """Something that cannot be opened in place of the host's file.

    `optional`: unless that is gone. `which` file it is, where another may take its place: a mask goes
    with the file that it covers.
    """

    path: str
    origin: str
    optional: bool = False
    which: str = ""

    def __str__(self) -> str:
        return f"hide the file {shown(self.path)}"


class File(Value):
    """A small file with this content; `below` covers the host's file of that name, and is read-only.

    With a mode that lets it be written it belongs to the sandbox's user, in a private directory.
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


class ProcMount(Value):
    """A /proc that knows the sandbox's own processes only."""

    path: str
    origin: str

    def __str__(self) -> str:
        return f"process directory {shown(self.path)}: the sandbox's own processes"


class Seal(Value):
    """From now on this directory of ours is read-only; what is mounted below stays as it is."""

    path: str
    origin: str

    def __str__(self) -> str:
        return f"make {shown(self.path)} itself read-only"


if TYPE_CHECKING:
    Operation: TypeAlias = (
        Bind | Overlay | Empty | Directory | Mask | File | Symlink | Devices | ProcMount | Seal
    )


# Sizes of file systems in memory, for a sandbox whose memory or disk is limited.

#: One inode is allowed for each so many bytes of a limit; and no sandbox has fewer than that.
_BYTES_AN_INODE, _FEWEST = 4096, 1024
_PAGE = 4096


def inodes(disk: int) -> int:
    """The number of files and directories that `limits.disk` allows: one for each page of it."""
    return max(_FEWEST, disk // _BYTES_AN_INODE)


def tmpfs_options(disk: int) -> str:
    """The mount options of a tmpfs with at most `disk` bytes."""
    size = -(-disk // _PAGE) * _PAGE  # the kernel counts pages
    return f"size={size},nr_inodes={inodes(disk)}"


def sized(limits: Limits, operations: Iterable[Operation]) -> list[Operation]:
    """`operations`, with each tmpfs bounded by half of the memory limit and by the disk limit.

    Files in tmpfs are not freed by killing processes, so at least half of the memory is left to processes.
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
