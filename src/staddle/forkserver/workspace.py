"""Open or mount the directories of one sandbox on the host: its workspace, and further trees of layers.

Run by the fork server, from the old root that it has kept aside. As root, the host program has
opened the workspace for it. The sandbox's first process attaches the mounts, see `mount_swap`.
"""

from __future__ import annotations

import errno
import os

from ..linux import mounts, overlay
from ..linux.openat2 import open_beneath
from ..mounts.operations import Bind
from ..mounts.shared_view import ASIDE, BORROWED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..ipc.forkserver_messages import SandboxRequest


class Moved(Exception):
    """Another directory is at this path: the host's mounts have changed since the fork server was started."""


def take_all(request: SandboxRequest, old_root: int, borrowed: list[int]) -> list[int]:
    """The mounts that are asked for, attached nowhere: the workspace first, then further trees.

    Removes from `borrowed`, the descriptors that root has opened, those that it uses.
    """
    found: list[int] = []
    try:
        if request.workspace:
            tree = borrowed.pop(0) if borrowed else None
            if request.upper:
                base = _found(request, old_root) if tree is None else tree
                found.append(_layered(request.upper, request.work, request.lowers, base, old_root, tree))
            else:
                found.append(_taken(request, old_root) if tree is None else tree)
        for _, upper, work, lowers in request.trees:
            found.append(_layered(upper, work, lowers.split(b"\0"), None, old_root, None))
        return found
    except BaseException:
        for fd in found:
            os.close(fd)
        raise


def _layered(  # noqa: PLR0917 - one caller
    upper: bytes, work: bytes, lowers: Sequence[bytes], base: int | None, old_root: int, borrowed: int | None
) -> int:
    """An overlay of layers of the host, and of `base` below them, which is closed."""
    opened = [] if base is None else [base]
    try:
        for path in (*lowers, upper, work):
            opened.append(_beneath(old_root, path))
        *below, above, aside = opened if base is None else [*opened[1:-2], base, *opened[-2:]]
        if borrowed is None:
            return overlay.overlay(below, above, aside)
        # What is to be a layer must be mounted somewhere in our namespace.
        return _mounted_for(borrowed, lambda: overlay.overlay([*below[:-1], BORROWED], above, aside))
    finally:
        for fd in opened:
            os.close(fd)


def _mounted_for(tree: int, work: Callable[[], int]) -> int:
    """Do `work` while `tree` is mounted at BORROWED. It stays there until `tidy`, or the next one."""
    tidy()
    place = os.open(BORROWED, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounts.attach(tree, place)
    finally:
        os.close(place)
    return work()


def tidy() -> None:
    """Unmount BORROWED. That takes a while: the kernel waits for every processor."""
    if os.stat(BORROWED).st_dev != os.stat(ASIDE).st_dev:
        mounts.umount(BORROWED)


def _found(request: SandboxRequest, old_root: int) -> int:
    """The workspace on the host, opened. Moved if it is another directory now."""
    try:
        source = _beneath(old_root, request.workspace)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
            raise Moved from None
        raise
    status = os.fstat(source)
    if (status.st_dev, status.st_ino) != (request.device, request.inode):
        os.close(source)
        raise Moved
    return source


def _taken(request: SandboxRequest, old_root: int) -> int:
    """A clone of the workspace's mount, read-only unless it is granted for writing."""
    source = _found(request, old_root)
    try:
        tree = mounts.clone_tree(source)
    finally:
        os.close(source)
    try:
        writable = any(isinstance(op, Bind) and op.writable for op in request.operations()[:1])
        read_only = 0 if writable and not request.upper else mounts.ATTR_RDONLY
        mounts.set_attributes(tree, mounts.ATTR_NOSUID | mounts.ATTR_NODEV | read_only)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _beneath(old_root: int, path: bytes) -> int:
    return open_beneath(old_root, os.fsdecode(path[1:]) or ".", os.O_PATH)
