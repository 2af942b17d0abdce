"""A copy that was worked in, made into the layer that it would have been: only what is different."""

from __future__ import annotations

import os
import stat

from ..files.copy import copy_file, unchanged
from ..files.tree import LastDirectory, open_deep
from .merged_view import OpenLayers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .differences import Difference


def condense(
    opened: OpenLayers, found: Iterable[Difference], destination: str, owner: tuple[int, int] | None = None
) -> None:
    """Make the empty `destination` a layer that says what is `found` in the one layer of a plain view.

    `owner` gets everything in it, when we are root.
    """
    made = _DiffWriter(opened, destination, owner)
    try:
        for item in sorted(found, key=lambda item: item.path.split("/")):
            made.add(item)
        made.finish()
    finally:
        made.close()


class _DiffWriter:
    def __init__(self, opened: OpenLayers, destination: str, owner: tuple[int, int] | None) -> None:
        self._tree, self._owner = opened.layers[0], owner
        self._root = os.open(destination, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._last = LastDirectory(self._root, os.O_RDONLY | os.O_DIRECTORY)
        #: Directories get their own permissions when everything is in them.
        self._modes: dict[str, int] = {"": -1}
        #: Where a file with several names has been put first.
        self._linked: dict[int, str] = {}
        #: Below this nothing has to be said any more.
        self._hidden: str | None = None

    def add(self, item: Difference) -> None:
        if self._hidden is not None and item.path.startswith(self._hidden):
            return
        parent, _, name = item.path.rpartition("/")
        self._way(parent)
        here = self._last.at(parent)
        new, old = item.new, item.old
        if old is not None and stat.S_ISDIR(old.st_mode) and not (new and stat.S_ISDIR(new.st_mode)):
            self._hidden = f"{item.path}/"
        if new is None:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=here)
        elif stat.S_ISDIR(new.st_mode):
            self._directory(item.path, here, new)
            return
        elif new.st_nlink > 1 and (first := self._linked.get(new.st_ino)):
            self._link(first, name, here)
            return
        else:
            self._linked[new.st_ino] = item.path
            self._file(parent, name, new, here)
        self._own(name, here)

    def _link(self, first: str, name: str, here: int) -> None:
        parent, _, other = first.rpartition("/")
        place = open_deep(self._root, parent, os.O_PATH | os.O_DIRECTORY)
        try:
            os.link(other, name, src_dir_fd=place, dst_dir_fd=here, follow_symlinks=False)
        finally:
            os.close(place)

    def _way(self, path: str) -> None:
        """The directories that lead to something, as they are in the copy."""
        if path in self._modes:
            return
        self._way(path.rpartition("/")[0])
        status = self._tree.status(path)
        if status is not None:
            self._directory(path, self._last.at(path.rpartition("/")[0]), status)

    def _directory(self, path: str, here: int, status: os.stat_result) -> None:
        if path not in self._modes:
            name = path.rpartition("/")[2]
            os.mkdir(name, 0o700, dir_fd=here)
            self._own(name, here)
            self._modes[path] = stat.S_IMODE(status.st_mode) & 0o777

    def _file(self, parent: str, name: str, new: os.stat_result, here: int) -> None:
        source = self._tree.directory(parent)
        try:
            if stat.S_ISLNK(new.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=here)
            elif stat.S_ISREG(new.st_mode):
                fd = self._tree.file(source, name)
                try:
                    copy_file(fd, here, name, new)
                    unchanged(new, fd)
                finally:
                    os.close(fd)
            elif stat.S_ISFIFO(new.st_mode):
                os.mkfifo(name, stat.S_IMODE(new.st_mode) & 0o777, dir_fd=here)
        finally:
            os.close(source)
            self._tree.give_back()

    def _own(self, name: str, here: int) -> None:
        if self._owner is not None:
            try:
                os.chown(name, *self._owner, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
                pass  # a socket or a device, which does not come along

    def finish(self) -> None:
        self._last.close()
        for path, mode in sorted(self._modes.items(), reverse=True):
            if path:
                fd = open_deep(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
                os.fchmod(fd, mode)
                os.close(fd)

    def close(self) -> None:
        self._last.close()
        os.close(self._root)
