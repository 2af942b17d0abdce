"""Bytes and inodes of what a sandbox writes: set where the file system is ours, measured where not.

What counts is what is taken: a sparse file by its blocks, a file with several names once, an
empty file and a directory as an inode each.
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
    """The space that a layer takes. `whole` is false when counting stopped because it was too much."""

    bytes: int
    inodes: int
    whole: bool = True


def is_over(taken: DiskUsage, disk: int) -> bool:
    """Whether it is more than `disk` allows."""
    return not taken.whole or taken.bytes > disk or taken.inodes > inodes(disk)


def in_memory(path: str) -> bool:
    """Whether what is written to the directory at `path` is kept in memory."""
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
    """Whether the file system at `place` has no room left for a page or for a file."""
    try:
        status = os.statvfs(place)
    except OSError:
        return False
    return bool(status.f_blocks and not status.f_bfree) or bool(status.f_files and not status.f_ffree)


def occupied(path: str, most: int | None = None) -> DiskUsage:
    """The space that the directory at `path` takes; counting stops when it is over `most` bytes.

    The sandbox may be changing it: nothing is followed, and what goes away meanwhile is not counted.
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
    """The space of the files that `layers`, topmost first, show together, without what is hidden by others.

    Those whose index is `apart` are counted elsewhere. Counting stops when it is over `most` bytes.
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
