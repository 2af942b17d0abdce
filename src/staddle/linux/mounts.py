"""Mounts: the kernel's calls, one function each, and no policy.

The kernel resolves links in paths, but not in descriptors. So every file below a directory that others can
write is named by descriptor here. `open_tree` and `move_mount` take descriptors for both ends, and `path_of`
names a descriptor for the older calls.
"""

from __future__ import annotations

import errno
import os
import struct

from .syscalls import call

CLONE_NEWNS = 0x00020000
#: mount(2)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 1 << 12, 1 << 14, 1 << 18, 1 << 19
MNT_DETACH = 2
#: mount_setattr(2), Linux 5.12
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC, ATTR_IDMAP = 0x01, 0x02, 0x04, 0x08, 0x100000

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
#: Flags of open_tree(2), move_mount(2) and mount_setattr(2) as they are used here.
CLONE_TREE = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE | _AT_EMPTY_PATH
BY_DESCRIPTORS = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
RECURSIVELY = _AT_EMPTY_PATH | _AT_RECURSIVE
_ATTR = struct.Struct("QQQQ")  # struct mount_attr: set, clear, propagation, userns


def private_namespace() -> None:
    """Give the calling thread its own mount namespace, from which nothing propagates.

    Only the calling thread moves, even in a process with many threads. Needs CAP_SYS_ADMIN over the user
    namespace of the thread.
    """
    call("unshare", CLONE_NEWNS)
    mount(None, "/", flags=MS_REC | MS_PRIVATE)


def mount(
    source: str | None, target: str, kind: str | None = None, *, flags: int = 0, options: str | None = None
) -> None:
    """mount(2). Follows links in both paths, so use it only for trees that are ours alone."""
    encoded = (None if text is None else os.fsencode(text) for text in (source, target, kind))
    call("mount", *encoded, flags, None if options is None else os.fsencode(options))


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """umount2(2), lazily by default."""
    call("umount2", os.fsencode(target), flags)


def clone_tree(descriptor: int) -> int:
    """Copy the mounts at and below an open file or directory; the copy is detached.

    It includes the mounts below, because without them the copy would show the files that they cover.
    """
    return call("open_tree", descriptor, b"", CLONE_TREE)


def attach(tree: int, target: int) -> None:
    """Mount a detached `tree` over the open file or directory `target`."""
    call("move_mount", tree, b"", target, b"", BY_DESCRIPTORS)


def set_attributes(tree: int, attributes: int, *, recursive: bool = True, private: bool = False) -> None:
    """Add ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV or ATTR_NOEXEC to the mount at `tree` and those below it.

    With `private`, mounts made elsewhere no longer propagate to it.
    """
    _mount_setattr(tree, attributes, 0, recursive, MS_PRIVATE if private else 0)


def clear_attributes(tree: int, attributes: int) -> None:
    """Remove these attributes from the mount at `tree` only."""
    attr = _ATTR.pack(0, attributes, 0, 0)
    call("mount_setattr", tree, b"", _AT_EMPTY_PATH, attr, _ATTR.size)


def map_ids(tree: int, user_namespace: int, *, recursive: bool = True) -> None:
    """Show the files of a detached `tree` with owners as `user_namespace` translates them.

    EINVAL: the filesystem cannot (overlayfs, NFS, proc). EPERM: no CAP_SYS_ADMIN where the filesystem was
    mounted, or the mount is translated already.
    """
    _mount_setattr(tree, ATTR_IDMAP, user_namespace, recursive)


def packed_attributes(attributes: int, propagation: int = 0, user_namespace: int = 0) -> bytes:
    """Return the struct mount_attr that adds these attributes."""
    return _ATTR.pack(attributes, 0, propagation, user_namespace)


def _mount_setattr(
    tree: int, attributes: int, user_namespace: int, recursive: bool, propagation: int = 0
) -> None:
    attr = packed_attributes(attributes, propagation, user_namespace)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    call("mount_setattr", tree, b"", flags, attr, _ATTR.size)


#: The reason and the fix if the kernel has no mount_setattr.
TOO_OLD, NEWER = "this kernel is older than 5.12: it has no mount_setattr", "use Linux 5.12 or newer"


def can_set_attributes() -> bool:
    """Whether this kernel has mount_setattr."""
    try:
        _mount_setattr(-1, 0, 0, recursive=False)
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def path_of(descriptor: int) -> str:
    """Return a path for this open file, for calls that take no descriptor."""
    return f"/proc/self/fd/{descriptor}"
