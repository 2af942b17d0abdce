"""Merge trees of layers, three-way: by file, and by line where both sides changed a text.

    with OpenSides(views) as opened:                     the views of all sides
        found = ThreeWay(opened, ours, [(base, theirs)]).run()
        write_layer(opened, ours, found.outcomes, layer)  the result, to be mounted over `ours`

Each side is a frozen snapshot, but a sandbox chose its names, types and contents. Files are opened as in
every walk over layers (`files.tree`): beneath a descriptor, without following a link. Directories that are in
the same trees on every side are skipped, so the cost is that of the changes.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import LayerError
from ..files.tree import Tree, open_deep
from ..interrupts import breathe
from ..linux.file_room import FILE_ROOM, refuse_if_full
from .changes import type_of
from .differences import MOST_DEPTH, Selection
from .host_directory import reach
from .layer_writer import LayerWriter
from .line_merge import Effort, LineConflict, TooDifferent, joined, merge_lines
from .merged_view import Merged, Side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Literal, Self

    from .merged_view import LayerView

    ConflictKind = Literal["content", "binary", "mode", "type", "delete"]

#: A larger file is not merged by line.
MOST_BYTES = 4 << 20
#: Merged texts are kept in memory until they are written.
MOST_TEXT = 128 << 20
#: More paths than this are refused, because the caller keeps them in memory.
MOST_PATHS = 300_000
_CHUNK = 1 << 18
_WAYS = 10  # descriptors for the way to a file
_EVERYTHING = Selection(None)


class Version:
    """A path on one side, or the result of a merge, whose content is then `text`."""

    __slots__ = ("mode", "path", "status", "text", "tree")

    def __init__(
        self,
        path: str,
        status: os.stat_result,
        tree: Tree,
        text: bytes | None = None,
        mode: int | None = None,
    ) -> None:
        self.path, self.status, self.tree, self.text = path, status, tree, text
        #: Permissions. Set-ID and sticky bits are not merged, as a commit does not copy them either.
        self.mode = stat.S_IMODE(status.st_mode) & 0o777 if mode is None else mode

    @property
    def type(self) -> str:
        """Type in one word, as in a Change."""
        return "file" if self.text is not None else type_of(self.status.st_mode)

    @property
    def size(self) -> int:
        """Size of the content."""
        return self.status.st_size if self.text is None else len(self.text)

    def having(self, *, text: bytes | None = None, mode: int | None = None) -> Version:
        """Return it with another content or mode."""
        text = self.text if text is None else text
        return Version(self.path, self.status, self.tree, text, self.mode if mode is None else mode)

    def read(self, limit: int) -> bytes:
        """Return the content of a file, or the target of a link; at most `limit` + 1 bytes."""
        if self.text is not None:
            return self.text[: limit + 1]
        if self.type == "symlink":
            return os.fsencode(self.tree.link_target(self.path))
        with open(self.open(), "rb") as file:
            return file.read(limit + 1)

    def again(self, limit: int) -> bytes:
        """Return the content after the trees were closed. OSError if it has more than `limit` bytes."""
        if self.text is not None:
            data = self.text
        else:
            with self.tree.reopened() as tree:
                data = Version(self.path, self.status, tree).read(limit)
        if len(data) > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self.path)
        return data

    def open(self) -> int:
        """Open the file."""
        parent, _, name = self.path.rpartition("/")
        directory = self.tree.directory(parent)
        try:
            return self.tree.file(directory, name)
        finally:
            os.close(directory)


class OpenSides:
    """The trees of several views, each opened once. `sides` has the indices of each view's trees."""

    def __init__(self, views: Sequence[LayerView]) -> None:
        self.trees: list[Tree] = []
        self.sides: list[tuple[int, ...]] = []
        self.marks = not any(view.plain for view in views)
        places = [
            [*((path, True) for path in view.layers), *((path, False) for path in view.bases)]
            for view in views
        ]
        number = len({place for each in places for place in each}) + sum(map(len, places)) + _WAYS
        self._room = FILE_ROOM.reserve_if_possible(number, 5.0)
        known: dict[tuple[str, bool], int] = {}
        try:
            for each in places:
                for path, ours in each:
                    if (path, ours) not in known:
                        known[path, ours] = len(self.trees)
                        self.trees.append(Tree(path if ours else reach(path), ours=ours))
                self.sides.append(tuple(known[place] for place in each))
        except BaseException:
            self.close()
            raise

    def differing(
        self, pairs: Sequence[tuple[int, int]], selection: Selection = _EVERYTHING
    ) -> Iterator[tuple[str, list[Merged]]]:
        """Yield each selected path at which the sides of a pair are not the same object, parents first.

        It comes with side 0 and those of the pairs. Where a pair's second side has no directory, everything
        that side 0 has there is included.
        """
        todo = [("", [self.sides[side] for side in (0, *(side for pair in pairs for side in pair))])]
        count = 0
        while todo:
            breathe()
            path, which = todo.pop()
            if path.count("/") >= MOST_DEPTH:
                raise LayerError(
                    "a change lies too deep to be merged",
                    why=f"directories are nested more than {MOST_DEPTH:,} deep",
                    fix=f"remove them inside; they begin at {path.partition('/')[0]!r}",
                )
            opened: dict[tuple[int, ...], Side] = {}
            try:
                for trees in which:
                    if trees not in opened:
                        opened[trees] = Side(self.trees, trees, path, self.marks)
                names: dict[str, None] = {}
                for side in opened.values():
                    names.update(side.names())
                for name in sorted(names):
                    below = f"{path}/{name}" if path else name
                    if not selection.leads_to(below):
                        continue
                    resolved = {trees: side.resolve(name) for trees, side in opened.items()}
                    found = [resolved[trees] for trees in which]
                    known = [_identity(each) for each in found]
                    if known[1::2] == known[2::2] and (known[0] is None or all(which[2::2])):
                        continue
                    # The way to a selected path is included if side 0 lacks it.
                    if selection.has(below) or not found[0].is_directory:
                        count += 1
                        if count > MOST_PATHS:
                            raise LayerError(
                                "there are too many changes to merge",
                                why=f"the sides differ at more than {MOST_PATHS:,} paths",
                                fix="merge a part of it: name paths",
                            )
                        yield below, found
                    if any(each.is_directory for each in found):
                        todo.append((below, [each.trees if each.is_directory else () for each in found]))
            finally:
                for side in opened.values():
                    side.close()
                self.give_back()

    def version(self, path: str, found: Merged) -> Version | None:
        """Return a resolved path as a version; None if nothing is there."""
        return None if found.status is None else Version(path, found.status, self.trees[found.trees[0]])

    def mode_of(self, side: int, path: str) -> int:
        """Return the permissions of a directory that exists on this side."""
        for index in self.sides[side]:
            status = self.trees[index].status(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                return stat.S_IMODE(status.st_mode) & 0o777
        return 0o755

    def give_back(self) -> None:
        """Withdraw the access that we granted ourselves in the layers."""
        for tree in self.trees:
            tree.give_back()

    def close(self) -> None:
        """Close the trees. Does nothing when called again."""
        try:
            for tree in self.trees:
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


def _identity(found: Merged) -> object:
    """Return a value that is equal only for the same object."""
    if found.status is None:
        return None
    if found.is_directory:
        return found.trees
    return found.status.st_dev, found.status.st_ino


class Clash:
    """A path that two sides changed, each in its own way. `merged` has the lines of both, if there are."""

    def __init__(
        self,
        kind: ConflictKind,
        why: str,
        sides: tuple[Version | None, Version | None, Version | None],
        merged: list[bytes | LineConflict] | None = None,
    ) -> None:
        self.kind, self.why, self.merged = kind, why, merged
        self.base, self.ours, self.theirs = sides

    def choice(self, side: Literal["ours", "theirs"]) -> Version | None:
        """Return the version of a side; of a text, only the lines in conflict are that side's."""
        chosen: Version | None = getattr(self, side)
        if self.merged is None or chosen is None:
            return chosen
        return chosen.having(text=joined(self.merged, side))


def merge_versions(
    base: Version | None, ours: Version | None, theirs: Version | None, effort: Effort
) -> Version | Clash | None:
    """Merge one path, three-way. The contents of directories are merged by their own paths."""
    if equal(theirs, base) or equal(ours, theirs):
        return ours
    if equal(ours, base):
        return theirs
    sides = (base, ours, theirs)
    if ours is None or theirs is None:
        there = ours or theirs
        if there is not None and there.type == "directory":
            return None  # it stays if something in it stays
        return Clash("delete", "one side deleted it, the other changed it", sides)
    if ours.type != theirs.type or ours.type not in ("file", "directory", "symlink"):
        return Clash("type", f"it is a {ours.type} here and a {theirs.type} there", sides)
    if ours.type == "symlink":
        return Clash("content", "both sides changed where the link points to", sides)
    before = base if base is not None and base.type == ours.type else None
    if before is None and ours.mode != theirs.mode:
        mode = None
    else:
        mode = _one_of(before.mode if before else ours.mode, ours.mode, theirs.mode)
    if ours.type == "directory":
        return ours.having(mode=mode) if mode is not None else Clash("mode", _modes(ours, theirs), sides)
    merged = _merge_contents(before, ours, theirs, effort)
    if isinstance(merged, Clash):
        return Clash(merged.kind, merged.why, sides, merged.merged)
    if mode is None:
        return Clash("mode", _modes(ours, theirs), (base, merged, merged.having(mode=theirs.mode)))
    return merged.having(mode=mode)


def _modes(ours: Version, theirs: Version) -> str:
    return f"its permissions are {ours.mode:04o} here and {theirs.mode:04o} there"


def _one_of(base: int, ours: int, theirs: int) -> int | None:
    if ours in (theirs, base):
        return theirs
    return ours if theirs == base else None


def _merge_contents(base: Version | None, ours: Version, theirs: Version, effort: Effort) -> Version | Clash:
    if _same_content(ours, theirs) or (base is not None and _same_content(base, theirs)):
        return ours
    if base is not None and _same_content(base, ours):
        return theirs
    sides = (base, ours, theirs)
    if max(version.size for version in (base or ours, ours, theirs)) > MOST_BYTES:
        return Clash("content", f"both sides changed it, and it has more than {MOST_BYTES:,} bytes", sides)
    texts = [b"" if version is None else version.read(MOST_BYTES) for version in sides]
    if any(b"\0" in text for text in texts):
        return Clash("binary", "both sides changed it, and it is no text", sides)
    try:
        pieces = merge_lines(texts[0], texts[1], texts[2], effort)
    except TooDifferent:
        return Clash("content", "both sides changed it, too much to be compared by line", sides)
    count = sum(isinstance(piece, LineConflict) for piece in pieces)
    if count:
        places = "1 place" if count == 1 else f"{count} places"
        return Clash("content", f"both sides changed the same lines, in {places}", sides, pieces)
    return ours.having(text=joined(pieces))


def equal(one: Version | None, other: Version | None) -> bool:
    """Whether both have the same type, permissions, and content or target."""
    if one is None or other is None:
        return one is other
    if one.type != other.type or (one.mode != other.mode and one.type != "symlink"):
        return False
    if one.type == "directory":
        return True
    if one.type == "symlink":
        return one.read(0) == other.read(0)
    if one.type == "file":
        return _same_content(one, other)
    return one.status.st_rdev == other.status.st_rdev


def _same_content(one: Version, other: Version) -> bool:
    """Compare byte by byte. The sandbox can set times, so these prove nothing."""
    if one.size != other.size:
        return False
    if one.text is not None or other.text is not None:
        return one.size <= MOST_BYTES and one.read(MOST_BYTES) == other.read(MOST_BYTES)
    if (one.status.st_dev, one.status.st_ino) == (other.status.st_dev, other.status.st_ino):
        return True
    with open(one.open(), "rb", 0) as first, open(other.open(), "rb", 0) as second:
        while data := first.read(_CHUNK):
            if data != second.read(_CHUNK):
                return False
        return not second.read(1)


class ThreeWay:
    """A merge of the changes of several sides into one. `theirs` are pairs of sides: base and changed."""

    def __init__(
        self,
        opened: OpenSides,
        theirs: Sequence[tuple[int, int]],
        resolve: Callable[[str, int, Clash], Version | Clash | None],
        selection: Selection,
    ) -> None:
        """Merge into side 0. `resolve` gets each path, the index in `theirs`, and the clash."""
        self._opened, self._theirs, self._resolve, self._selection = opened, theirs, resolve, selection
        self._effort, self._room = Effort(), MOST_TEXT
        #: The present version and the outcome of each path where sides differ.
        self._found: dict[str, tuple[Version | None, Version | None]] = {}
        self._directories: dict[str, Version] = {}
        self._changed_by: dict[str, int] = {}
        self._asked: set[str] = set()
        self.conflicts: list[tuple[str, int, Clash]] = []
        #: Pipes, sockets and devices of other sides: they are not merged.
        self.left_out: list[str] = []

    def run(self) -> dict[str, Version | None]:
        """Return the outcome of each path that changes; None for a deleted one."""
        for path, found in self._opened.differing(self._theirs, self._selection):
            versions = [self._opened.version(path, each) for each in found]
            self._found[path] = (versions[0], self._merged(path, versions))
            for each in versions:
                if each is not None and each.type == "directory":
                    self._directories.setdefault(path, each)
        self._have_parents()
        return {path: after for path, (before, after) in self._found.items() if not _is(before, after)}

    def _merged(self, path: str, versions: list[Version | None]) -> Version | None:
        outcome = versions[0]
        for index in range(len(self._theirs)):
            base, theirs = versions[1 + 2 * index], versions[2 + 2 * index]
            if theirs is not None and theirs.type not in ("file", "directory", "symlink"):
                if not equal(base, theirs):
                    self.left_out.append(path)
                continue
            merged = merge_versions(base, outcome, theirs, self._effort)
            before, outcome = (
                outcome,
                self._decided(path, index, merged) if isinstance(merged, Clash) else merged,
            )
            if outcome is not before:
                self._changed_by[path] = index
        if outcome is not None and outcome.text is not None:
            self._room -= len(outcome.text)
            if self._room < 0:
                raise LayerError(
                    "the merged texts are too large",
                    why=f"together they have more than {MOST_TEXT >> 20} MiB",
                    fix="merge a part of it: name paths",
                )
        return outcome

    def _decided(self, path: str, index: int, clash: Clash) -> Version | None:
        self._asked.add(path)
        decision = self._resolve(path, index, clash)
        if isinstance(decision, Clash):
            self.conflicts.append((path, index, clash))
            return clash.ours
        return decision

    def _have_parents(self) -> None:
        """Keep a deleted directory in which something stays. A file in its place is a conflict."""
        for path in sorted(self._found, reverse=True):
            if self._found[path][1] is None:
                continue
            parent = path.rpartition("/")[0]
            while parent in self._found:
                before, outcome = self._found[parent]
                if outcome is None:
                    self._found[parent] = (before, self._directories.get(parent))
                elif outcome.type != "directory":
                    if parent not in self._asked:
                        why = f"it is a {outcome.type} on one side, and the other has {path!r} in it"
                        there = self._directories.get(parent)
                        sides = (outcome, there) if outcome is before else (there, outcome)
                        clash = Clash("type", why, (None, *sides))
                        outcome = self._decided(parent, self._changed_by.get(parent, 0), clash)
                    self._found[parent] = (before, outcome)
                    if outcome is None or outcome.type != "directory":
                        self._drop_below(parent)
                parent = parent.rpartition("/")[0]

    def _drop_below(self, directory: str) -> None:
        for path, (before, _) in self._found.items():
            if path.startswith(f"{directory}/"):
                self._found[path] = (before, None)


def _is(before: Version | None, after: Version | None) -> bool:
    return before is after or (before is not None and after is not None and equal(before, after))


def write_layer(
    opened: OpenSides,
    outcomes: dict[str, Version | None],
    destination: str,
    owner: tuple[int, int] | None,
) -> None:
    """Fill the empty `destination` with a layer that shows these outcomes over side 0.

    If we are root, `owner` owns everything in it.
    """
    root = os.open(destination, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        writer = LayerWriter(root, owner)
        hidden: str | None = None
        for path in sorted(outcomes, key=lambda path: path.split("/")):
            breathe()
            if hidden is not None and path.startswith(hidden):
                continue
            outcome = outcomes[path]
            _make_way(opened, writer, root, path.rpartition("/")[0], outcomes)
            if outcome is None or outcome.type != "directory":
                hidden = f"{path}/"
            _put(writer, root, path, outcome)
            opened.give_back()
        writer.finish()
    finally:
        os.close(root)


def _make_way(
    opened: OpenSides, writer: LayerWriter, root: int, path: str, outcomes: dict[str, Version | None]
) -> None:
    """Create the parent directories as they are on side 0."""
    if not path or writer.has_mode(path):
        return
    parent = path.rpartition("/")[0]
    _make_way(opened, writer, root, parent, outcomes)
    here = open_deep(root, parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        writer.mkdir(here, path, opened.mode_of(0, path))
    finally:
        os.close(here)


def _put(writer: LayerWriter, root: int, path: str, outcome: Version | None) -> None:
    parent, _, name = path.rpartition("/")
    here = open_deep(root, parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if outcome is None:
            writer.whiteout(here, name)
        elif outcome.type == "directory":
            writer.mkdir(here, path, outcome.mode)
        elif outcome.text is not None:
            fd = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=here
            )
            with open(fd, "wb", 0) as file:
                data = memoryview(outcome.text)
                while data:
                    data = data[file.write(data) :]
                os.fchmod(file.fileno(), outcome.mode)
            writer.chown(here, name)
        else:
            source = outcome.tree.directory(outcome.path.rpartition("/")[0])
            try:
                status = outcome.status  # as it was before we granted ourselves access
                writer.copy(outcome.tree, source, here, name, status.st_mode, frozen=status)
            finally:
                os.close(source)
            if outcome.type == "file" and outcome.mode != stat.S_IMODE(outcome.status.st_mode) & 0o777:
                os.chmod(name, outcome.mode, dir_fd=here)
    finally:
        os.close(here)
