"""Merge layers into one with the same meaning: copy one, squash several, leave out some paths.

The result is a layer: whiteouts stay whiteouts, because there is more below. Linked files must be frozen on
both sides, because one file then has two names.
"""

from __future__ import annotations

import errno
import os
import stat

from ..files.remove_tree import copy_attributes, copy_content, unchanged
from ..files.tree import MARKS, OPAQUE, Tree, is_whiteout, opacity, open_deep
from .layer_writer import LayerWriter
from .merged_view import LayerView, OpenLayers, Side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .differences import Selection

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def merge(
    layers: Sequence[str],
    destination: str,
    *,
    link: bool = False,
    without: Selection | None = None,
    rest: Callable[[], object] | None = None,
) -> None:
    """Fill the empty directory `destination` with a layer that means the same as `layers` (topmost first).

    With `link`, files are linked, which takes no space. `without` is left out. Sockets and devices are not
    copied, except for whiteouts: nothing would listen on them in a new mount. A background caller passes
    `rest`, which is called between steps.
    """
    with OpenLayers(LayerView(tuple(layers), ()), waits=rest is None) as opened:
        _LayerMerge(destination, opened.layers, link, without, rest=rest).run()


def prune(
    layer: str,
    bases: Sequence[str],
    between: Sequence[str] = (),
    *,
    rest: Callable[[], object] | None = None,
) -> None:
    """Remove the whiteouts from a `layer` that hide nothing in `bases` or in the layers `between`.

    In a directory without lower directories, overlayfs would list their names. `rest`: see `merge`.
    """
    with OpenLayers(LayerView((layer, *between), tuple(bases)), waits=rest is None) as opened:
        tree, *others = opened.layers
        lowers = [*others, *opened.bases]
        todo = [("", tuple(range(len(lowers))))]
        while todo:
            path, trees = todo.pop()
            fd = tree.directory(path)
            mark = opacity(fd)
            lower = Side(lowers, () if mark == b"y" else trees, path, True)
            try:
                for name in os.listdir(fd):
                    if rest is not None:
                        rest()
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        below = lower.resolve(name)
                        place = f"{path}/{name}" if path else name
                        todo.append((place, below.trees if below.is_directory else ()))
                        continue
                    if not is_whiteout(status, fd if mark == b"x" else -1, name):
                        continue
                    if lower.resolve(name).status is None:
                        os.unlink(name, dir_fd=fd)
            finally:
                lower.close()
                os.close(fd)
                opened.give_back()


def copy_of(
    directory: str,
    destination: str,
    *,
    ours: bool = False,
    without: Selection | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Fill the empty `destination` with a copy of `directory`, to be changed without overlayfs.

    Files are copied by reference if the file system can. `without` is left out. An unreadable file is an
    error, because its absence would count as a deletion. `ours`: the directory is itself a copy, in which we
    may grant ourselves access. If we are root, `owner` gets the entries of the owner of `directory`. Compare
    the copy with `LayerView((destination,), (directory,), plain=True)`.
    """
    view = LayerView((directory,), (), plain=True) if ours else LayerView((), (directory,), plain=True)
    with OpenLayers(view) as opened:
        trees = opened.layers or opened.bases
        _LayerMerge(destination, trees, False, without, marks=False, owner=owner).run()


def flatten(layers: Sequence[str], base: str, destination: str, *, without: Selection | None = None) -> None:
    """Fill the empty `destination` with a copy of the view of `layers` (topmost first) over `base`."""
    with OpenLayers(LayerView(tuple(layers), (base,))) as opened:
        trees = [*opened.layers, *opened.bases]
        _LayerMerge(destination, trees, False, without, plain=True).run()


class _LayerMerge:
    def __init__(
        self,
        destination: str,
        trees: list[Tree],
        link: bool,
        without: Selection | None,
        *,
        marks: bool = True,
        plain: bool = False,
        rest: Callable[[], object] | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._destination, self._trees = destination, trees
        self._link, self._without, self._marks, self._rest = link, without, marks, rest
        #: Whether the result is no layer, and has no marks.
        self._plain = plain or not marks
        #: The first place of a file with several names in one layer: (tree, inode) to path.
        self._linked: dict[tuple[int, int], str] = {}
        #: Directories get their own permissions once they are complete.
        self._finish: list[tuple[str, os.stat_result]] = []
        #: (path, trees, whether it must be opaque, its status before we granted ourselves access)
        self._todo: list[tuple[str, tuple[int, ...], bool, os.stat_result]] = []
        self._chown, self._owner = os.geteuid() == 0, owner

    def run(self) -> None:
        self._root = os.open(self._destination, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._writer = LayerWriter(self._root)
        try:
            self._top = os.fstat(self._trees[0].root)
            self._todo.append(("", tuple(range(len(self._trees))), False, self._top))
            while self._todo:
                self._directory(*self._todo.pop())
                for tree in self._trees:
                    tree.give_back()
            for path, status in reversed(self._finish):
                fd = open_deep(self._root, path, _DIRECTORY)
                try:
                    _finish(fd, status, self._owners(status))
                finally:
                    os.close(fd)
        finally:
            os.close(self._root)

    def _directory(self, path: str, trees: tuple[int, ...], opaque: bool, status: os.stat_result) -> None:
        side = Side(self._trees, trees, path, self._marks)
        try:
            if not side.directories:
                if not self._marks:
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
                return  # deleted meanwhile
            here = open_deep(self._root, path, _DIRECTORY)
            try:
                top = side.directories[0][1]
                self._finish.append((path, status))
                copy_attributes(top, here, leave_out=MARKS if self._plain else "\0")
                opaque = opaque or side.opaque
                if opaque and not self._plain:
                    os.setxattr(here, OPAQUE, b"y")
                for name in side.names():
                    if self._rest is not None:
                        self._rest()
                    below = f"{path}/{name}" if path else name
                    if self._without is None or not self._without.has(below):
                        self._entry(side, below, here, opaque)
            finally:
                os.close(here)
        finally:
            side.close()

    def _entry(self, side: Side, path: str, here: int, opaque: bool) -> None:
        name = path.rpartition("/")[2]
        found = side.resolve(name)
        status = found.status
        if status is None:
            if found.ended and not opaque and not self._plain:
                self._writer.whiteout(here, name)
            return
        if stat.S_ISDIR(status.st_mode):
            self._writer.mkdir(here, path)
            # A directory that hides lower ones must hide them in the result too.
            self._todo.append((path, found.trees, found.ended and not opaque, status))
            return
        tree = found.trees[0]
        source = side.descriptor(tree)
        if self._link:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=here, follow_symlinks=False)
        elif stat.S_ISREG(status.st_mode):
            self._file(side, tree, path, status, here)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=here)
            self._own(name, status, here)
        elif stat.S_ISFIFO(status.st_mode):
            os.mkfifo(name, stat.S_IMODE(status.st_mode), dir_fd=here)
            self._own(name, status, here)

    def _file(self, side: Side, tree: int, path: str, status: os.stat_result, here: int) -> None:
        name = path.rpartition("/")[2]
        again = (tree, status.st_ino)
        if status.st_nlink > 1 and again in self._linked:
            self._writer.link(self._linked[again], here, name)
            return
        source = side.trees[tree].file(side.descriptor(tree), name)
        try:
            before = os.fstat(source)
            if not stat.S_ISREG(before.st_mode):
                return  # replaced meanwhile
            destination = os.open(name, _NEW, 0o600, dir_fd=here)
            try:
                copy_content(source, destination, before)
                unchanged(before, source)
                copy_attributes(source, destination, leave_out=MARKS if self._plain else "\0")
                _finish(destination, status, self._owners(status))
            finally:
                os.close(destination)
        finally:
            os.close(source)
        if status.st_nlink > 1:
            self._linked[again] = path

    def _own(self, name: str, status: os.stat_result, here: int) -> None:
        if (owners := self._owners(status)) is not None:
            os.chown(name, *owners, dir_fd=here, follow_symlinks=False)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=here, follow_symlinks=False)

    def _owners(self, status: os.stat_result) -> tuple[int, int] | None:
        """Return user and group for the copy of an entry; None if we own it."""
        if not self._chown:
            return None
        if self._owner is None:
            return status.st_uid, status.st_gid
        uid = self._owner[0] if status.st_uid == self._top.st_uid else status.st_uid
        return uid, self._owner[1] if status.st_gid == self._top.st_gid else status.st_gid


def _finish(fd: int, status: os.stat_result, owners: tuple[int, int] | None) -> None:
    """Set owner (as root), permissions and times, in an order in which none undoes another."""
    if owners is not None:
        os.fchown(fd, *owners)
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
