"""A copy that was worked in, condensed to the layer it would have been: only the differences."""

from __future__ import annotations

import os
import stat

from ..files.tree import LastDirectory
from .layer_writer import LayerWriter
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
    root = os.open(destination, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = _DiffLayer(opened, root, owner)
    try:
        for item in sorted(found, key=lambda item: item.path.split("/")):
            made.add(item)
        made.finish()
    finally:
        made.close()
        os.close(root)


class _DiffLayer:
    """The layer in the making."""

    def __init__(self, opened: OpenLayers, root: int, owner: tuple[int, int] | None) -> None:
        self._tree, self._writer = opened.layers[0], LayerWriter(root, owner)
        self._last = LastDirectory(root, os.O_RDONLY | os.O_DIRECTORY)
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
            self._writer.whiteout(here, name)
        elif stat.S_ISDIR(new.st_mode):
            self._directory(item.path, here, new)
        elif new.st_nlink > 1 and (first := self._linked.get(new.st_ino)):
            self._writer.link(first, here, name)
        else:
            self._linked[new.st_ino] = item.path
            source = self._tree.directory(parent)
            try:
                self._writer.copy(self._tree, source, here, name, new.st_mode, frozen=new)
            finally:
                os.close(source)
                self._tree.give_back()

    def _way(self, path: str) -> None:
        """Make the directories that lead to something, as they are in the copy."""
        if not path or self._writer.has_mode(path):
            return
        self._way(path.rpartition("/")[0])
        status = self._tree.status(path)
        if status is not None:
            self._directory(path, self._last.at(path.rpartition("/")[0]), status)

    def _directory(self, path: str, here: int, status: os.stat_result) -> None:
        if not self._writer.has_mode(path):
            self._writer.mkdir(here, path, status.st_mode)

    def finish(self) -> None:
        self._last.close()
        self._writer.finish()

    def close(self) -> None:
        self._last.close()
