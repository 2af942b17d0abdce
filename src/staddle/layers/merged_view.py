"""Layers as overlayfs merges them: the topmost entry of a name wins, and directories are merged.

Directories of one name are merged until a whiteout, an entry of another type or an opaque directory ends
that.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..files.tree import Tree, is_whiteout, listed, opacity
from ..linux.file_room import FILE_ROOM, refuse_if_full
from .host_directory import reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

#: Descriptors that a walk needs for each of its trees (the root and a directory), and for the rest: files to
#: compare or write, and directories on the way to them.
_EACH, _MORE = 2, 10
#: Seconds to wait for room for them.
_PATIENCE = 5.0


class LayerView(Value):
    """Layers, topmost first, and the bases to compare them with.

    `plain`: the one layer is a whole copy of the bases with changes, without overlayfs. `hidden` paths are
    skipped. If the layers were written over something else than the bases, that is `began_with`: entries that
    equal it are unchanged.
    """

    layers: tuple[str, ...]
    bases: tuple[str, ...]
    plain: bool = False
    hidden: tuple[str, ...] = ()
    began_with: tuple[str, ...] = ()


class OpenLayers:
    """The trees of a view, opened for one walk or one commit."""

    def __init__(self, view: LayerView, *, waits: bool = True) -> None:
        """Raise TooManyOpenFiles if this process has too many files open; after a while, if it `waits`."""
        self.view = view
        self.layers: list[Tree] = []
        self.bases: list[Tree] = []
        number = _EACH * (len(view.layers) + len(view.bases)) + _MORE
        self._room = FILE_ROOM.reserve_if_possible(number, _PATIENCE if waits else 0)
        try:
            self.layers.extend(Tree(path, ours=True) for path in view.layers)
            self.bases.extend(Tree(reach(path), ours=False) for path in view.bases)
        except BaseException:
            self.close()
            raise

    def give_back(self) -> None:
        """Withdraw the access that we granted ourselves in the layers."""
        for tree in self.layers:
            tree.give_back()

    def close(self) -> None:
        """Close the trees. Does nothing when called again."""
        try:
            for tree in (*self.layers, *self.bases):
                tree.close()
        finally:
            self._room.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
        refuse_if_full(error)


class Merged:
    """A name resolved on one side: the entry that wins, and its trees, topmost first.

    `ended`: lower trees have no part in it. False if no tree has the name, or a directory merges on.
    """

    __slots__ = ("ended", "status", "trees")

    def __init__(self, status: os.stat_result | None, trees: tuple[int, ...], ended: bool) -> None:
        self.status, self.trees, self.ended = status, trees, ended

    @property
    def is_directory(self) -> bool:
        """Whether a directory wins."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)


_NOTHING = Merged(None, (), False)


class Side:
    """The directories that make up one side of a pair, topmost first. Each is opened when it is needed."""

    def __init__(self, trees: list[Tree], which: tuple[int, ...], path: str, marks: bool) -> None:
        self.trees, self._path, self._marks = trees, path, marks
        #: (index of the tree, descriptor, descriptor if it has whiteouts by attribute, else -1)
        self._opened: list[tuple[int, int, int]] = []
        self._rest = [*reversed(which)]
        self._is_opaque = False

    @property
    def directories(self) -> list[tuple[int, int, int]]:
        """All the directories: index of the tree, descriptor, and descriptor for whiteouts or -1."""
        while self._rest:
            self._open_next()
        return self._opened

    @property
    def opaque(self) -> bool:
        """Whether one of them hides everything below."""
        return bool(self.directories) and self._is_opaque

    def _open_next(self) -> None:
        index = self._rest.pop()
        try:
            fd = self.trees[index].directory(self._path)
        except OSError:
            self._rest.clear()  # deleted or replaced meanwhile; or the host does not let us look
            return
        self._opened.append((index, fd, -1))
        mark = opacity(fd) if self._marks else b""
        if mark == b"x":
            self._opened[-1] = (index, fd, fd)
        elif mark == b"y":
            self._is_opaque = True
            self._rest.clear()

    def names(self) -> dict[str, None]:
        """Return every name in any of the directories, including whiteouts."""
        found: dict[str, None] = {}
        for _, fd, _ in self.directories:
            found.update(dict.fromkeys(listed(fd)))
        return found

    def resolve(self, name: str) -> Merged:
        """Resolve `name` in these directories together."""
        status: os.stat_result | None = None
        trees: tuple[int, ...] = ()
        at = 0
        while True:
            if at == len(self._opened):
                if not self._rest:
                    break
                self._open_next()
                continue
            index, fd, marked = self._opened[at]
            at += 1
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if self._marks and is_whiteout(found, marked, name):
                return Merged(status, trees, True)
            if not stat.S_ISDIR(found.st_mode):
                return Merged(status, trees, True) if status else Merged(found, (index,), True)
            status = status or found
            trees = (*trees, index)
        return Merged(status, trees, False) if self._opened else _NOTHING

    def descriptor(self, tree: int) -> int:
        """Return the directory of this side in that tree."""
        return next(fd for index, fd, _ in self._opened if index == tree)

    def close(self) -> None:
        for _, fd, _ in self._opened:
            os.close(fd)
        self._opened.clear()
        self._rest.clear()
