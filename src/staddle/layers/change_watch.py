"""The changes of one command: scan the upper layer before and after it, and compare.

A scan costs a stat for every entry of the layer, so it stops at a limit. Entries that are new in the layer
are compared with the layers below, by content. Entries that were there before are compared by inode, times
and size, because their older content no longer exists. So a file that was rewritten with equal content is
reported as modified here. `diff` is exact.
"""

from __future__ import annotations

import os
import stat
import time
from functools import partial

from ..files.tree import Tree, directories, is_whiteout, opacity
from ..interrupts import owned
from ..linux.file_room import refuse_if_full
from .changes import Change, change_of, type_of
from .differences import Selection, differences
from .frozen_base import FrozenBase, signatures
from .host_directory import reach
from .merged_view import LayerView, OpenLayers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .baseline import Baseline, Copied
    from .differences import Kind

#: Nanoseconds in which the time of a file may not move although it is changed.
_STANDSTILL = 50_000_000
#: A layer with more entries is not scanned after every command.
MOST_ENTRIES = 20_000

#: (inode, permissions and type, size, mtime, ctime). A directory has only the first two, and whether it is
#: opaque; a whiteout has nothing.
Mark = tuple[int, ...]
_GONE: Mark = ()


def are_untouched(watches: Iterable[ChangeWatch]) -> bool:
    """Whether these layers, which were empty, are still empty. On every command's path.

    Decided by the time of the layer itself. False if that is not known; then a scan decides.
    """
    for watch in watches:  # noqa: SIM110
        # Not the mtime, which overlayfs restores when it copies up a file.
        if os.lstat(watch._top).st_ctime_ns != watch._changed:
            return False
    return True


class ChangeWatch:
    """Follows the top layer of a view. The first scan is at creation."""

    def __init__(
        self,
        view: LayerView,
        *,
        baseline: Baseline | None = None,
        at: str = "",
        most: int = MOST_ENTRIES,
        elsewhere: bool = False,
    ) -> None:
        self.baseline, self._at, self._most, self._elsewhere = baseline, at, most, elsewhere
        self.follow(view)

    def follow(self, view: LayerView) -> None:
        """Follow the top layer of another view from now on, as after a snapshot or a restore."""
        self._view = view.replace(layers=view.layers[:1], bases=(*view.layers[1:], *view.bases))
        self._top = view.layers[0]
        lowest = view.bases[-1]
        self._host = lowest.origin if isinstance(lowest, FrozenBase) else lowest
        #: The time of the layer when it was seen to be empty; -1 if it was not empty, or changed just then.
        self._changed = -1
        # Usually it is new and empty.
        self._seen = _scan(self._top, self._most) if os.listdir(self._top) else {}

    def look(self) -> tuple[Change, ...] | None:
        """Return the changes since the last call, by path; None if the layer is too large to scan.

        TooManyOpenFiles if this process has too many files open: the next call reports the changes.
        """
        before = self._seen
        try:
            if not before and before is not None and self._is_untouched():
                return ()
            self._changed = -1
            return owned(partial(self._scanned, before))  # it opens directories
        except BaseException as error:
            self._seen = before
            refuse_if_full(error)
            raise

    def _scanned(self, before: dict[str, Mark] | None) -> tuple[Change, ...] | None:
        self._seen = _scan(self._top, self._most)
        return self._found(before, self._seen)

    def _found(
        self, before: dict[str, Mark] | None, now: dict[str, Mark] | None
    ) -> tuple[Change, ...] | None:
        if before is None or now is None:
            return None
        changed = [path for path, mark in now.items() if before.get(path) != mark]
        if self.baseline is not None:
            begun = [path for path in changed if path not in before]
            _note(self.baseline, self._host, begun, signatures(self._view.bases))
        found = [
            change
            for path in changed
            if (mark := before.get(path)) is not None
            and (change := self._known(path, mark, now[path])) is not None
        ]
        found += [
            self._made("deleted", path, mark, _GONE)
            for path, mark in before.items()
            if mark and path not in now
        ]
        found += [
            self._made("added", path, _GONE, now[path])
            for path in changed
            if now[path] and path not in before and _was_hidden(path, before)
        ]
        fresh = [
            path for path in changed if path not in before or _is_another_directory(before[path], now[path])
        ]
        if fresh:
            found += self._compared(fresh, before)
        return tuple(sorted(found, key=lambda change: change.path.split("/")))

    def _is_untouched(self) -> bool:
        """Whether a layer that was empty is still empty."""
        changed = os.lstat(self._top).st_ctime_ns
        if changed == self._changed:
            return True
        # The clock of files stands still for some milliseconds: a time so new could hide a change to come.
        self._changed = changed if time.time_ns() - changed > _STANDSTILL else -1
        return not os.listdir(self._top)

    def _compared(self, fresh: list[str], before: dict[str, Mark]) -> list[Change]:
        """Return the changes of entries that are new in the layer, compared with the layers below."""
        found = []
        with OpenLayers(self._view, waits=False) as opened:
            for item in differences(opened, Selection(fresh)):
                # Entries that were in the layer, or hidden by it, are reported without a comparison.
                if item.path not in before and not _was_hidden(item.path, before):
                    found.append(change_of(opened, item, self._at, elsewhere=self._elsewhere))
        return found

    def _known(self, path: str, before: Mark, now: Mark) -> Change | None:
        """Return the change of a path that was in the layer before."""
        kind: Kind
        if not before or not now:
            kind = "added" if now else "deleted"
        elif stat.S_IFMT(before[1]) != stat.S_IFMT(now[1]):
            kind = "type"
        elif stat.S_ISDIR(now[1]):
            if before[1] == now[1]:
                return None  # another directory of the same name: its contents are reported
            kind = "mode"
        elif before[:1] + before[2:4] == now[:1] + now[2:4]:
            if before[1] == now[1]:
                return None  # only a link, an owner or an attribute changed
            kind = "mode"
        else:
            kind = "modified"
        return self._made(kind, path, before, now)

    def _made(self, kind: Kind, path: str, before: Mark, now: Mark) -> Change:
        return Change(
            kind,
            self._name(path),
            type=_type(now),
            size=_size(now),
            mode=stat.S_IMODE(now[1]) if now else None,
            old_type=_type(before),
            old_size=_size(before),
            old_mode=stat.S_IMODE(before[1]) if before else None,
            elsewhere=self._elsewhere,
        )

    def _name(self, path: str) -> str:
        return f"{self._at.rstrip('/')}/{path}" if self._at else path


def _note(baseline: Baseline, host: str, paths: list[str], copied: Copied | None) -> None:
    """Record the host's files in the baseline where the sandbox has just begun to differ."""
    root = os.open(reach(host), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        baseline.note(root, paths, copied)
    finally:
        os.close(root)


def _scan(layer: str, most: int) -> dict[str, Mark] | None:
    """Return every entry of a layer; None if there are too many."""
    found: dict[str, Mark] = {}
    with Tree(layer, ours=True) as tree:
        for path, fd, entries in directories(tree):
            opaque = opacity(fd)
            if opaque == b"y" and path:
                found[path] = (*found[path][:2], 1)
            marked = fd if opaque == b"x" else -1
            for below, status in entries:
                found[below] = _mark(status, marked, below.rpartition("/")[2])
            if len(found) > most:
                return None
    return found


def _mark(status: os.stat_result, marked: int, name: str) -> Mark:
    if is_whiteout(status, marked, name):
        return _GONE
    if stat.S_ISDIR(status.st_mode):
        return (status.st_ino, status.st_mode, 0)
    return (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_another_directory(before: Mark, now: Mark) -> bool:
    """Whether the visible lower entries below this path may have changed."""
    either = any(mark and stat.S_ISDIR(mark[1]) for mark in (before, now))
    return either and before[:1] != now[:1]


def _was_hidden(path: str, before: dict[str, Mark]) -> bool:
    """Whether an entry above `path` in the layer hid the lower layers."""
    above = path.rpartition("/")[0]
    while above:
        mark = before.get(above)
        if mark is not None and (not mark or not stat.S_ISDIR(mark[1]) or mark[2]):
            return True
        above = above.rpartition("/")[0]
    return False


def _type(mark: Mark) -> str | None:
    return type_of(mark[1]) if mark else None


def _size(mark: Mark) -> int | None:
    return mark[2] if mark and stat.S_ISREG(mark[1]) else None
