"""Sizes of file systems in memory, for a sandbox whose memory or disk is limited. Pure."""

from __future__ import annotations

from .operations import Empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..policy.limits import Limits
    from .operations import Operation

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
