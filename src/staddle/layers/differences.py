"""The differences between layers and the bases below them, computed from the layers without a mount.

Only names that appear in a layer are compared, so the cost is that of the changes. One directory is open at a
time, at any depth.
"""

from __future__ import annotations

import gc
import os
import stat
from contextlib import contextmanager

from ..errors import LayerError
from ..interrupts import breathe
from .merged_view import Merged, OpenLayers, Side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Literal

    Kind = Literal["added", "modified", "deleted", "renamed", "mode", "type", "link"]

#: More changes than this are refused, because the caller keeps them in memory.
MOST_DIFFERENCES = 1_000_000
#: Deeper directories are refused too: the kernel resolves the whole path to each of them, every time.
MOST_DEPTH = 1000
_CHUNK = 1 << 18


class Difference:
    """One path at which the two sides differ. `new` or `old` is None if nothing is there."""

    __slots__ = ("base", "kind", "layer", "new", "old", "old_path", "path")

    def __init__(self, kind: Kind, path: str, now: Merged, before: Merged) -> None:
        self.kind, self.path = kind, path
        self.new, self.old = now.status, before.status
        #: The trees that contain them; -1 for none.
        self.layer = now.trees[0] if now.trees else -1
        self.base = before.trees[0] if before.trees else -1
        #: The earlier path of a renamed file.
        self.old_path = ""


class Selection:
    """Some paths, everything below them, and the way to them. None means everything."""

    def __init__(self, paths: Collection[str] | None) -> None:
        self._chosen = None if paths is None else {path.strip("/") for path in paths}
        if self._chosen and "" in self._chosen:
            self._chosen = None
        self._above = {path[:at] for path in self._chosen or () for at in _slashes(path)}
        self.is_everything = self._chosen is None

    def has(self, path: str) -> bool:
        """Whether `path` itself is selected."""
        chosen = self._chosen
        return chosen is None or path in chosen or any(path[:at] in chosen for at in _slashes(path))

    def leads_to(self, path: str) -> bool:
        """Whether something at or below `path` may be selected."""
        return self.has(path) or path in self._above

    def below(self, directory: str) -> Selection:
        """Return the part of the selection below a directory, as relative paths."""
        start = f"{directory}/"
        return Selection([path[len(start) :] for path in self._chosen or () if path.startswith(start)])

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return the selected paths at, below or above which none of `paths` is."""
        if self._chosen is None:
            return []
        left = set(self._chosen)
        for path in paths:
            left.discard(path)
            left.difference_update(path[:at] for at in _slashes(path))
            if not left:
                break
        return sorted(left)


def _slashes(path: str) -> Iterator[int]:
    at = path.find("/")
    while at >= 0:
        yield at
        at = path.find("/", at + 1)


_EVERYTHING = Selection(None)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection in the block: it would search all differences again and again for cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def differences(opened: OpenLayers, selection: Selection = _EVERYTHING) -> Iterator[Difference]:
    """Yield every difference of the view, in any order, but parents before their contents."""
    everything = range(len(opened.layers)), range(len(opened.bases))
    todo = [_Pair("", tuple(everything[0]), tuple(everything[1]), not opened.view.plain)]
    count = 0
    while todo:
        breathe()
        pair = todo.pop()
        try:
            for found in _visit(opened, pair, selection, todo):
                count += 1
                if count > MOST_DIFFERENCES:
                    raise LayerError(
                        "there are too many changes to list",
                        why=f"more than {MOST_DIFFERENCES:,} files were added, changed or deleted",
                        fix="compare a part of it: name paths",
                    )
                yield found
        finally:
            opened.give_back()


class _Pair:
    """A directory on both sides: the trees that have it, and whether the bases show through the layers."""

    __slots__ = ("bases", "layers", "path", "through")

    def __init__(self, path: str, layers: tuple[int, ...], bases: tuple[int, ...], through: bool) -> None:
        self.path, self.layers, self.bases, self.through = path, layers, bases, through


def _visit(opened: OpenLayers, pair: _Pair, selection: Selection, todo: list[_Pair]) -> Iterator[Difference]:
    """Yield the differences of one directory; add the directories below it to `todo`."""
    marks = not opened.view.plain
    everything, hidden = selection.is_everything, opened.view.hidden
    prefix = f"{pair.path}/" if pair.path else ""
    if prefix.count("/") > MOST_DEPTH:
        raise LayerError(
            "a change lies too deep to be compared",
            why=f"directories are nested more than {MOST_DEPTH:,} deep",
            fix=f"remove them inside; they begin at {pair.path.partition('/')[0]!r}",
        )
    upper = Side(opened.layers, pair.layers, pair.path, marks)
    try:
        lower = Side(opened.bases, pair.bases, pair.path, True)
        try:
            through = pair.through and not upper.opaque
            names = upper.names()
            if not through:
                names.update(lower.names())  # names that are only there have been deleted
            for name in names:
                path = prefix + name
                if (not everything and not selection.leads_to(path)) or path in hidden:
                    continue
                now, before = upper.resolve(name), lower.resolve(name)
                if now.status is None and through and not now.ended:
                    continue  # deleted meanwhile
                kind = _compared(name, now, before, (upper, lower))
                if kind is not None and (everything or selection.has(path)):
                    yield Difference(kind, path, now, before)
                if now.is_directory:
                    below = before.trees if before.is_directory else ()
                    todo.append(_Pair(path, now.trees, below, through and not now.ended))
                elif before.is_directory:
                    todo.append(_Pair(path, (), before.trees, False))  # everything below is gone
        finally:
            lower.close()
    finally:
        upper.close()


def _compared(name: str, now: Merged, before: Merged, sides: tuple[Side, Side]) -> Kind | None:
    """Return the kind of difference between the two, or None."""
    new, old = now.status, before.status
    if new is None:
        return None if old is None else "deleted"
    if old is None:
        return "added"
    if stat.S_IFMT(new.st_mode) != stat.S_IFMT(old.st_mode):
        return "type"
    if stat.S_ISLNK(new.st_mode):
        links = [
            _link(side.descriptor(one.trees[0]), name) for side, one in zip(sides, (now, before), strict=True)
        ]
        return None if links[0] == links[1] else "link"
    if new.st_rdev != old.st_rdev:
        return "modified"
    if stat.S_ISREG(new.st_mode) and not _same_content(name, now, before, sides):
        return "modified"
    return "mode" if stat.S_IMODE(new.st_mode) != stat.S_IMODE(old.st_mode) else None


def _link(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _same_content(name: str, now: Merged, before: Merged, sides: tuple[Side, Side]) -> bool:
    """Compare byte by byte. The sandbox can set times, so these prove nothing."""
    new, old = now.status, before.status
    if new is None or old is None or new.st_size != old.st_size:
        return False
    if new.st_size == 0 or (new.st_dev, new.st_ino) == (old.st_dev, old.st_ino):
        return True
    opened: list[int] = []
    try:
        for side, one in zip(sides, (now, before), strict=True):
            tree = one.trees[0]
            opened.append(side.trees[tree].file(side.descriptor(tree), name))
        return _same_bytes(opened[0], opened[1], new.st_size)
    except OSError:
        return False  # report what cannot be compared
    finally:
        for fd in opened:
            os.close(fd)


def _same_bytes(one: int, other: int, size: int) -> bool:
    chunk = min(size + 1, _CHUNK)  # one byte more, so that a file that has grown differs
    while size >= 0:
        left, right = os.read(one, chunk), os.read(other, chunk)
        if left != right:
            return False  # at worst a short read in the middle of a file that is being written
        if len(left) < chunk:
            return len(left) == size
        size -= len(left)
    return False
