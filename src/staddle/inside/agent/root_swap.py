"""Replace the root of a sandbox while it runs. Its first process, which may mount, runs this.

The root is one mount, and everything else is mounted in it. At first it is the template's root, which all
sandboxes of a plan share and none can write. A root of layers replaces it when the sandbox may create
directories in `/`, and another one at each snapshot and restore. The new root is mounted over the old one,
where no path leads. The mounts in the old root are moved over. Then pivot_root(2) makes it the root, and the
working directory, of every process that was in the old root.

A directory of the new root on the way to a mount is pinned: it is a mount of itself. So a process inside
cannot rename it, or replace it by a link, where this process will look for the mount.
"""

from __future__ import annotations

import errno
import os
import stat

from ...linux import mounts
from ...linux.fileio import read_whole
from ...linux.openat2 import open_beneath
from ...linux.process import mount_id
from ...linux.syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RootMount:
    """The root of one sandbox. `control` is the root of our mount in it, under its cover."""

    def __init__(self) -> None:
        self._pins: dict[bytes, str] = {}  # by mount id
        self._is_layered = False

    def seal(self, closed: list[int], opened: list[int]) -> None:
        """Make the root read-only before it is frozen; EBUSY if a file in it is open for writing.

        Adds the sealed mounts to `closed`, and every descriptor to `opened`.
        """
        if not self._is_layered:
            return  # the template's root is always read-only
        for number, path in ((b"", "/"), *self._pins.items()):
            opened.append(os.open(path, _DIRECTORY))
            if number and mount_id(opened[-1]) != number:
                continue  # a tree has replaced it
            mounts.set_attributes(opened[-1], mounts.ATTR_RDONLY, recursive=False)
            closed.append(opened[-1])

    def check(self, tree: int, control: int) -> None:
        """Raise OSError unless `tree` has a mount point for each mount in the root."""
        root = os.open("/", _DIRECTORY)
        inner, _ = self._mounted(root, control)
        try:
            for path, mounted in inner.items():
                place = open_beneath(tree, path, os.O_PATH)
                try:
                    kinds = [stat.S_ISDIR(os.fstat(fd).st_mode) for fd in (place, mounted)]
                finally:
                    os.close(place)
                if kinds[0] != kinds[1]:
                    raise OSError(errno.ENOTDIR, f"something else is at /{path}")
        finally:
            _close([root, *inner.values()])

    def exchange(self, tree: int, control: int) -> tuple[int, bool]:
        """Make the detached `tree` the root; return (the old root, whether mounts are left in it).

        The old root is then mounted over the new one: the caller moves it away.
        """
        root = os.open("/", _DIRECTORY)
        inner, left = self._mounted(root, control)
        moved: list[str] = []
        try:
            mounts.attach(tree, root)
            try:
                pins = _pinned(tree, inner)
                for path, mounted in inner.items():
                    _move(mounted, tree, path)
                    moved.append(path)
                os.fchdir(tree)
                call("pivot_root", b".", b".")
            except BaseException:
                for path in reversed(moved):
                    _move(inner[path], root, path)
                os.chdir("/")
                mounts.umount(mounts.path_of(tree))
                raise
        except BaseException:
            os.close(root)
            raise
        finally:
            _close(inner.values())
        self._pins, self._is_layered = pins, True
        return root, left

    def _mounted(self, root: int, control: int) -> tuple[dict[str, int], bool]:
        """Return the mounts in the root, by relative path, parents first; and whether there are covered ones.

        The caller closes the descriptors.
        """
        around, ours = {mount_id(root), *self._pins}, mount_id(control)
        found: dict[str, int] = {}
        left = False
        try:
            for row in read_whole("/proc/self/mountinfo").splitlines():
                number, parent, _, _, path, *_ = row.split(b" ")
                if parent not in around or number in around:
                    continue
                name = _plain(path).lstrip("/")
                try:
                    mounted = os.dup(control) if number == ours else open_beneath(root, name, os.O_PATH)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise
                    left = True
                    continue
                if mount_id(mounted) == number:
                    found[name] = mounted
                else:  # a mount covers a directory above it
                    os.close(mounted)
                    left = True
            return dict(sorted(found.items())), left
        except BaseException:
            _close(found.values())
            raise


def _pinned(tree: int, paths: Iterable[str]) -> dict[bytes, str]:
    """Pin the directories of `tree` on the way to `paths`, parents first."""
    ways = {path[:at] for path in paths for at, char in enumerate(path) if char == "/"}
    pins: dict[bytes, str] = {}
    for way in sorted(ways.difference(paths)):
        if any(way.startswith(f"{path}/") for path in paths):
            continue  # it is inside a mount
        place = open_beneath(tree, way, os.O_PATH | os.O_DIRECTORY)
        try:
            pin = mounts.clone_tree(place)
            try:
                mounts.attach(pin, place)
                pins[mount_id(pin)] = f"/{way}"
            finally:
                os.close(pin)
        finally:
            os.close(place)
    return pins


def _move(mounted: int, directory: int, path: str) -> None:
    place = open_beneath(directory, path, os.O_PATH)
    try:
        mounts.attach(mounted, place)
    finally:
        os.close(place)


def _plain(path: bytes) -> str:
    """Decode a path of mountinfo, in which some characters are octal numbers."""
    first, *rest = path.split(b"\\")
    return os.fsdecode(first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest))


def _close(opened: Iterable[int]) -> None:
    for fd in opened:
        os.close(fd)
