"""`LayerWriter`: write entries into a layer of ours that is not mounted, by descriptor."""

from __future__ import annotations

import os
import stat

from ..files.remove_tree import copy_file, unchanged
from ..files.tree import OPAQUE, open_deep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..files.tree import Tree

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class LayerWriter:
    """Writes below the open directory `root`. If we are root, `owner` owns every entry.

    `here` is always the open directory of the layer for the entry. A directory is created with mode 0700, and
    `finish` sets its own permissions when it is complete.
    """

    def __init__(self, root: int, owner: tuple[int, int] | None = None) -> None:
        self._root, self._owner = root, owner
        self._modes: dict[str, int] = {}

    def whiteout(self, here: int, name: str) -> None:
        """Hide the entry `name` of lower layers."""
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=here)
        self.chown(here, name)

    def mkdir(self, here: int, path: str, mode: int | None = None, *, opaque: bool = False) -> None:
        """Create the directory `path`. With `opaque`, it hides the entries of lower layers."""
        name = path.rpartition("/")[2]
        os.mkdir(name, 0o700, dir_fd=here)
        self.chown(here, name)
        if opaque:
            fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.setxattr(fd, OPAQUE, b"y")
            os.close(fd)
        if mode is not None:
            self.set_mode(path, mode)

    def set_mode(self, path: str, mode: int) -> None:
        """Have `finish` give the directory `path` these permissions, without set-ID bits."""
        self._modes[path] = mode & 0o1777

    def has_mode(self, path: str) -> bool:
        """Whether the directory `path` was created here, or its permissions are set."""
        return path in self._modes

    def link(self, first: str, here: int, name: str) -> None:
        """Give the file at the path `first` of the layer another name."""
        parent, _, other = first.rpartition("/")
        place = open_deep(self._root, parent, os.O_PATH | os.O_DIRECTORY)
        try:
            os.link(other, name, src_dir_fd=place, dst_dir_fd=here, follow_symlinks=False)
        finally:
            os.close(place)

    def copy(
        self,
        tree: Tree,
        source: int,
        here: int,
        name: str,
        kind: int,
        *,
        frozen: os.stat_result | None = None,
    ) -> None:
        """Copy the link, file or pipe `name` (its mode is `kind`) from the directory `source` of `tree`.

        Sockets and devices are not copied. LayerError if a file differs from `frozen`.
        """
        if stat.S_ISLNK(kind):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=here)
        elif stat.S_ISREG(kind):
            fd = tree.file(source, name)
            try:
                copy_file(fd, here, name, frozen or os.fstat(fd))
                if frozen is not None:
                    unchanged(frozen, fd)
            finally:
                os.close(fd)
        elif stat.S_ISFIFO(kind):
            os.mkfifo(name, stat.S_IMODE(kind) & 0o777, dir_fd=here)
        else:
            return
        self.chown(here, name)

    def chown(self, here: int, name: str, like: os.stat_result | None = None) -> None:
        """Give an entry to the owner, if there is one, or to the owner of `like`."""
        if self._owner is not None:
            owner = self._owner if like is None else (like.st_uid, like.st_gid)
            os.chown(name, *owner, dir_fd=here, follow_symlinks=False)

    def finish(self) -> None:
        """Set the permissions of directories, the deepest first."""
        for path, mode in sorted(self._modes.items(), reverse=True):
            fd = open_deep(self._root, path, _DIRECTORY)
            os.fchmod(fd, mode)
            os.close(fd)
