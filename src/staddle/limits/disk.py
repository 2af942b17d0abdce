"""Bytes and inodes that a sandbox writes: limited in a file system of ours, measured elsewhere.

Allocated space counts: a sparse file by its blocks, a file with several names once. An empty file and a
directory count as one inode each.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..mounts.operations import inodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class DiskUsage(Value):
    """The space that a layer takes. `whole` is False if counting stopped at the limit."""

    bytes: int
    inodes: int
    whole: bool = True


def is_over(taken: DiskUsage, disk: int) -> bool:
    """Whether `taken` is more than `disk` bytes, or more than its number of inodes."""
    return not taken.whole or taken.bytes > disk or taken.inodes > inodes(disk)


def in_memory(path: str) -> bool:
    """Whether files in the directory at `path` are stored in memory."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/self/mountinfo", "rb") as file:
            rows = file.read().splitlines()
    except OSError:
        return False
    number = b"%d:%d" % (os.major(device), os.minor(device))
    kinds = {row.partition(b" - ")[2].split(b" ", 1)[0] for row in rows if row.split(b" ", 3)[2] == number}
    return bool(kinds & {b"tmpfs", b"ramfs"})


def full(place: str | int) -> bool:
    """Whether the file system at `place` has no room left for a page or for an inode."""
    try:
        status = os.statvfs(place)
    except OSError:
        return False
    return bool(status.f_blocks and not status.f_bfree) or bool(status.f_files and not status.f_ffree)


def occupied(path: str, most: int | None = None) -> DiskUsage:
    """Measure the directory at `path`; counting stops above `most` bytes.

    The sandbox may change it at the same time. So no link is followed, and files that disappear are not
    counted.
    """
    from ..files.tree import Tree, listed

    total = count = 0
    several: set[tuple[int, int]] = set()
    with Tree(path, ours=True) as layer:
        todo = [""]
        while todo:
            here = todo.pop()
            try:
                directory = layer.directory(here)
            except OSError:
                continue
            try:
                names = listed(directory)
                for name in names:
                    try:
                        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    except OSError:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        todo.append(f"{here}/{name}" if here else name)
                    elif status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in several:
                            continue
                        several.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
                    count += 1
                    if most is not None and is_over(DiskUsage(total, count), most):
                        return DiskUsage(total, count, whole=False)
            except OSError:
                continue
            finally:
                os.close(directory)
    return DiskUsage(total, count)


def shown(layers: Sequence[str], apart: Collection[int] = (), most: int | None = None) -> DiskUsage:
    """Measure the files that `layers`, topmost first, show together, without files that upper layers hide.

    Layers whose index is in `apart` are counted elsewhere. Counting stops above `most` bytes.
    """
    from ..layers.merged_view import LayerView, OpenLayers, Side

    total = count = 0
    several: set[tuple[int, int]] = set()
    with OpenLayers(LayerView(tuple(layers), ()), waits=False) as opened:
        todo = [("", tuple(range(len(layers))))]
        while todo:
            here, trees = todo.pop()
            side = Side(opened.layers, trees, here, True)
            try:
                for name in side.names():
                    found = side.resolve(name)
                    status = found.status
                    if status is None:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        todo.append((f"{here}/{name}" if here else name, found.trees))
                    elif status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in several:
                            continue
                        several.add((status.st_dev, status.st_ino))
                    if found.trees[0] in apart:
                        continue
                    total += status.st_blocks * 512
                    count += 1
                    if most is not None and is_over(DiskUsage(total, count), most):
                        return DiskUsage(total, count, whole=False)
            finally:
                side.close()
                opened.give_back()
    return DiskUsage(total, count)
