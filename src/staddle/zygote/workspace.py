"""The last part of a sandbox's view: the directory that it is for.

Taken from the host by who can: the zygote, for an ordinary user, from the old root that it
has kept aside; root's own program, for root. Mounted by the sandbox's first process.
"""

from __future__ import annotations

import errno
import os

from ..layout.building import Builder
from ..layout.operations import Bind
from ..linux import mounts, overlay
from ..linux.openat2 import open_beneath
from .sharing import ASIDE, LENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..layout.operations import Operation
    from .blueprint import Request


_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Moved(Exception):
    """The zygote sees something else at this path: the host's mounts have changed since it was made."""


def take(request: Request, old_root: int, lent: int | None) -> int:
    """The workspace as the sandbox is to see it, attached nowhere yet. Run by the zygote.

    Found below the old root through no link, or `lent` by root, and taken from there; with its
    layers on it, if it has any.
    """
    if not request.upper:
        return _taken(request, old_root) if lent is None else lent
    opened = [_found(request, old_root) if lent is None else lent]
    try:
        for path in (*request.lowers, request.upper, request.work):
            opened.append(_beneath(old_root, path))
        base, *lowers, upper, work = opened
        if lent is None:
            return overlay.overlay([*lowers, base], upper, work)
        # What is to be a layer must be mounted somewhere in our namespace.
        return _mounted_for(lent, lambda: overlay.overlay([*lowers, LENT], upper, work))
    finally:
        for fd in opened:
            os.close(fd)


def _mounted_for(tree: int, work: Callable[[], int]) -> int:
    place = _free_place()
    try:
        mounts.attach(tree, place)
    finally:
        os.close(place)
    made = -1
    try:
        made = work()
    finally:
        try:
            mounts.umount(LENT)
        except OSError:
            if made >= 0:
                os.close(made)
            raise
    return made


def _free_place() -> int:
    """The directory to mount a layer on, without one that could not be taken away the last time."""
    if os.stat(LENT).st_dev != os.stat(ASIDE).st_dev:
        mounts.umount(LENT)
    return os.open(LENT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _found(request: Request, old_root: int) -> int:
    """The workspace on the host, opened."""
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


def _taken(request: Request, old_root: int) -> int:
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


class Workspace:
    """The mounted workspace of one sandbox. Belongs to its first process.

    `aside` is a directory of ours that nobody inside can look into.
    """

    def __init__(self, owner: int, aside: int) -> None:
        self._owner, self._aside = owner, aside
        self._operations: Sequence[Operation] = ()

    def mount(self, operations: Sequence[Operation], tree: int) -> None:
        """Show `tree` at the workspace's place and do what else is to be done there."""
        place = operations[0]
        if not isinstance(place, Bind):
            raise ValueError("a workspace begins with what is shown")
        if len(operations) > 1:
            Builder.extending("/", owner=self._owner, taken={place: tree}).build(operations)
        else:  # as it mostly is: what is not run is not in every sandbox's memory
            target = os.open(place.path, _DIRECTORY)
            try:
                mounts.attach(tree, target)
            finally:
                os.close(target)
        self._operations = operations

    def swap(self, tree: int, alone: bool) -> int:
        """Put `tree` in the place of what is there, with nothing in between to be seen.

        With `alone`, EBUSY when a file there is open for writing. The descriptor that is returned
        holds the old one together.
        """
        if not self._operations:
            raise OSError(errno.EINVAL, "this sandbox has no workspace")
        path = self._operations[0].path
        old = os.open(path, _DIRECTORY)
        try:
            if alone:
                mounts.set_attributes(old, mounts.ATTR_RDONLY, recursive=False)
            try:
                overlay.exchange(self._prepared(tree, path), path)
            except BaseException:
                if alone:
                    mounts.clear_attributes(old, mounts.ATTR_RDONLY)
                raise
        except BaseException:
            os.close(old)
            raise
        return old

    def _prepared(self, tree: int, path: str) -> int:
        """The same tree with all done in it that is done in a workspace, mounted where nobody looks."""
        below = [op.replace(path=op.path[len(path) :]) for op in self._operations[1:]]
        if not below:
            return tree
        try:
            os.mkdir("next", 0o700, dir_fd=self._aside)
        except FileExistsError:
            pass
        place = os.open("next", _DIRECTORY, dir_fd=self._aside)
        try:
            mounts.attach(tree, place)
        finally:
            os.close(place)
        Builder.extending(f"{mounts.path_of(self._aside)}/next", owner=self._owner).build(below)
        return tree
