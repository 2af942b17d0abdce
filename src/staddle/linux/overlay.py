"""Overlay mounts: make a detached mount from layers, and replace a mount under running processes.

Every layer is named by descriptor. The kernel reads only `/proc/self/fd/7`, so a colon, comma, backslash or
newline in the real path has no meaning to it, and no path is too long. The mount table inside a sandbox
reveals nothing about the host.

Mounts always use `userxattr`: an ordinary user can write the marks of a layer (`user.overlay.*`), so a
layer means the same for every user. The option also disables redirect_dir and metacopy. A layer therefore
contains whole files, and a directory is never a reference to another directory.
"""

from __future__ import annotations

import errno
import os
from itertools import takewhile

from .mounts import ATTR_NODEV, ATTR_NOSUID, MNT_DETACH, attach, mount, path_of, set_attributes, umount
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_AT_FDCWD = -100
_OPEN_TREE_CLONE = 1
_FROM_DESCRIPTOR, _TO_DESCRIPTOR, _BENEATH = 0x04, 0x40, 0x200
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPTION_PAGE = 4095


def takes_translated(release: str) -> bool:
    """Whether a layer may be a mount with translated owners, in the kernel `release`: from 5.19. Pure."""
    numbers = [int("".join(takewhile(str.isdigit, part)) or 0) for part in release.split(".")]
    return numbers[:2] >= [5, 19]


def overlay(
    lowers: Sequence[str | int],
    upper: str | int | None = None,
    work: str | int | None = None,
    *,
    volatile: bool = False,
) -> int:
    """Make a detached overlay mount of `lowers` (topmost first) below `upper`; return its descriptor.

    Layers are open directories, or paths of trees that are ours. Without an upper layer the mount is
    read-only. A `volatile` mount writes to the disk as late as possible, and is useless after a crash of the
    machine (Linux 5.10). Set-user-ID bits and devices have no effect in it. Needs CAP_SYS_ADMIN over our user
    namespace.

    ELOOP: a layer is inside another. EINVAL: something is mounted below a lower layer (in a user namespace),
    or the upper file system does not support it.
    """
    opened: list[int] = []
    try:
        below = [_descriptor(lower, opened) for lower in lowers]
        above = None
        if upper is not None and work is not None:
            above = (_descriptor(upper, opened), _descriptor(work, opened))
        volatile = volatile and above is not None
        if volatile and above is not None:
            _forget_volatile(above[1])
        try:
            return _appending(below, above, volatile)
        except OSError as error:
            # Linux before 6.7 has no `lowerdir+`, and before 6.5 no overlay through fsconfig.
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            if above is None:
                raise
            return in_one_string(below, *above, volatile=volatile)
    finally:
        for fd in opened:
            os.close(fd)


def _descriptor(layer: str | int, opened: list[int]) -> int:
    if isinstance(layer, int):
        return layer
    opened.append(os.open(layer, _DIRECTORY))
    return opened[-1]


def _forget_volatile(work: int) -> None:
    """Remove the mark that makes the kernel refuse a volatile layer after a crash: there was no crash."""
    for name in ("work/incompat/volatile", "work/incompat"):
        try:
            os.rmdir(name, dir_fd=work)
        except OSError:
            return  # it was never mounted


def _appending(lowers: Sequence[int], above: tuple[int, int] | None, volatile: bool = False) -> int:
    context = call("fsopen", b"overlay", _FSOPEN_CLOEXEC)
    try:

        def set_string(key: bytes, value: str) -> None:
            call("fsconfig", context, _SET_STRING, key, value.encode(), 0)

        for lower in lowers:
            set_string(b"lowerdir+", path_of(lower))
        if above is not None:
            set_string(b"upperdir", path_of(above[0]))
            set_string(b"workdir", path_of(above[1]))
        set_string(b"index", "off")  # a frozen layer is a lower layer of several mounts
        call("fsconfig", context, _SET_FLAG, b"userxattr", None, 0)
        if volatile:
            call("fsconfig", context, _SET_FLAG, b"volatile", None, 0)
        call("fsconfig", context, _CREATE, None, None, 0)
        return call("fsmount", context, _FSMOUNT_CLOEXEC, ATTR_NOSUID | ATTR_NODEV)
    finally:
        os.close(context)


def in_one_string(lowers: Sequence[int], upper: int, work: int, *, volatile: bool = False) -> int:
    """Make the mount on older kernels, with mount(2), from up to some 200 layers.

    It is mounted for a moment on the work directory, which is ours alone, and copied from there.
    """
    text = options(lowers, upper, work, volatile=volatile)
    if len(text) > _OPTION_PAGE:
        raise OSError(errno.E2BIG, f"{len(lowers)} layers are too many for this kernel: squash them")
    place = os.readlink(path_of(work))  # by name: the mount covers the directory of the descriptor
    mount("overlay", place, "overlay", options=text)
    try:
        tree = call("open_tree", _AT_FDCWD, os.fsencode(place), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    finally:
        umount(place)
    set_attributes(tree, ATTR_NOSUID | ATTR_NODEV, recursive=False)
    return tree


def options(lowers: Sequence[int], upper: int, work: int, *, volatile: bool) -> str:
    """Return the mount options for these open directories."""
    return (
        f"lowerdir={':'.join(path_of(lower) for lower in lowers)},"
        f"upperdir={path_of(upper)},workdir={path_of(work)},index=off,userxattr"
        f"{',volatile' if volatile else ''}"
    )


def put_beneath(tree: int, target: int) -> None:
    """Mount the detached `tree` beneath the mount whose root is open as `target` (Linux 6.5).

    It appears when the mount on top is removed, without a moment of nothing in between.
    """
    call("move_mount", tree, b"", target, b"", _FROM_DESCRIPTOR | _TO_DESCRIPTOR | _BENEATH)


def exchange_together(several: Sequence[tuple[int, str, str]]) -> None:
    """Replace mounts with detached trees, given as (tree, target, aside): all of them, or none.

    A target is never empty, and a process whose directory is in the old mount stays in it. Before Linux 6.5,
    a target is empty for a moment, and there is no way back. The old mount of a target is moved to its
    directory `aside`, which no other process knows. The caller unmounts all of them at once, because the
    kernel waits for every processor at each unmount.
    """
    placed: list[tuple[str, str, int]] = []
    try:
        try:
            for tree, target, aside in several:
                old = os.open(target, _DIRECTORY)
                try:
                    put_beneath(tree, old)
                except BaseException:
                    os.close(old)
                    raise
                placed.append((target, aside, old))
        except OSError as error:
            for target, aside, old in reversed(placed):
                _take_from_beneath(target, old, aside)
            if placed or error.errno != errno.EINVAL:
                raise
            for tree, target, aside in several:
                _move(os.open(target, _DIRECTORY), aside, close=True)
                _move(tree, target)
        else:
            for _, aside, old in placed:
                _move(old, aside)
    finally:
        for _, _, old in placed:
            os.close(old)


def _take_from_beneath(target: str, top: int, aside: str) -> None:
    """Remove the tree that was mounted beneath the mount at `target`, whose root is open as `top`."""
    _move(top, aside)
    umount(target, MNT_DETACH)
    _move(top, target)


def _move(tree: int, place: str, *, close: bool = False) -> None:
    directory = os.open(place, _DIRECTORY)
    try:
        attach(tree, directory)
    finally:
        os.close(directory)
        if close:
            os.close(tree)
