"""The state of the host's files when they became the base of a sandbox, as far as a commit needs it.

A signature of every file would cost a walk of the workspace at every start. But every change moves a file's
ctime, which no process can set. So the time of the start tells whether any file changed since. For files that
the sandbox has touched, we record a signature when the touch is first seen (see `change_watch`), and are
exact from then on.

After a commit the layer still contains the committed files. `settle` records them, so that a later edit on
the host does not count as a change of the sandbox.
"""

from __future__ import annotations

import os
import stat
import threading
import time

from ..files.tree import LastDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .differences import Difference, Selection

    Signature = tuple[int, ...]
    #: For a directory that was copied: returns the signature of a path at that time, None if it was missing.
    Copied = Callable[[str], Signature | None]

#: The length of the signature of a directory.
_DIRECTORY = 2
#: A signature that no file has.
ANOTHER: Signature = (-1,)


class Marks:
    """Signatures by path; None if nothing was there. Copies share their common part.

    Each snapshot has a copy. A plain dictionary would cost each snapshot memory for every path.

    The entries at the time of the last copy are in read-only dictionaries, the oldest first. Two are joined
    as soon as the newer one is as large. So a copy costs little more than its new entries.
    """

    def __init__(self, found: Mapping[str, Signature | None] | None = None) -> None:
        self._shared: tuple[dict[str, Signature | None], ...] = ()
        self._own = dict(found or {})
        self._lock = threading.Lock()

    def copy(self) -> Marks:
        """Return a copy; later changes to either do not show in the other."""
        with self._lock:
            self._freeze()
            other = Marks()
            other._shared = self._shared
            return other

    def _freeze(self) -> None:
        newest, shared = self._own, self._shared
        if not newest:
            return
        while shared and len(shared[-1]) <= len(newest):
            newest, shared = {**shared[-1], **newest}, shared[:-1]
        self._shared, self._own = (*shared, newest), {}

    def as_dict(self) -> dict[str, Signature | None]:
        """Return all entries."""
        found: dict[str, Signature | None] = {}
        for one in (*self._shared, self._own):
            found.update(one)
        return found

    def get(self, path: str, other: Signature | None = None) -> Signature | None:
        """Return the signature at `path`; `other` if it is unknown."""
        for one in (self._own, *reversed(self._shared)):
            if path in one:
                return one[path]
        return other

    def setdefault(self, path: str, mark: Signature | None) -> None:
        """Set the signature at `path`, if it is unknown."""
        if path not in self:
            self[path] = mark

    def __contains__(self, path: str) -> bool:
        return path in self._own or (bool(self._shared) and any(path in one for one in self._shared))

    def __getitem__(self, path: str) -> Signature | None:
        if path not in self:
            raise KeyError(path)
        return self.get(path)

    def __setitem__(self, path: str, mark: Signature | None) -> None:
        with self._lock:
            self._own[path] = mark

    def forget(self, paths: list[str]) -> None:
        """Forget the signatures of these paths."""
        with self._lock:
            found = self.as_dict()
            for path in paths:
                found.pop(path, None)
            self._shared, self._own = (), found

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __bool__(self) -> bool:
        return bool(self._own or self._shared)


class Baseline:
    """The base at this moment, for one host directory and one sandbox."""

    def __init__(self, taken: int | None = None) -> None:
        # The clock of file times may stand still for some milliseconds. A change in the very first of these
        # is found only if the file was noted.
        self.taken = time.time_ns() if taken is None else taken
        self._noted, self._settled = Marks(), Marks()

    def copy(self) -> Baseline:
        """Return a copy, to continue with from a snapshot."""
        other = type(self)(self.taken)
        other._noted, other._settled = self._noted.copy(), self._settled.copy()
        return other

    def with_commits_of(self, later: Baseline) -> Baseline:
        """Return a copy for a sandbox that is reset to it: commits of `later` are no conflict."""
        other = self.copy()
        for path in later._settled:
            if path in later._noted:
                other._noted[path] = later._noted[path]
        return other

    def facts(self) -> dict[str, object]:
        """Return the baseline as plain data; see `from_facts`."""
        return {"taken": self.taken, "noted": self._noted.as_dict(), "settled": self._settled.as_dict()}

    @classmethod
    def from_facts(cls, facts: object) -> Baseline:
        """Return the baseline from such data; ValueError for anything that `facts` does not return."""
        if not isinstance(facts, dict) or type(facts.get("taken")) is not int:
            raise ValueError("it has no time")
        made = cls(facts["taken"])
        made._noted, made._settled = _signatures(facts.get("noted")), _signatures(facts.get("settled"))
        return made

    def begin_again(self, root: int, touched: Iterable[str]) -> None:
        """From now on the sandbox sees the present base, except for the files that it has `touched` already.

        These are compared with the base at the time of the touch, so that host changes since then stay a
        conflict.
        """
        now = time.time_ns()
        touched = list(touched)
        self.note(root, touched)
        for path in touched:
            self._noted.setdefault(path, ANOTHER)
        self.taken = now

    def settled(self) -> dict[str, Signature]:
        """Return the marks that the layer had at the committed paths."""
        return {path: mark for path, mark in self._settled.as_dict().items() if mark is not None}

    def resettle(self, path: str, status: os.stat_result) -> None:
        """Treat `path` as unchanged since the commit, although its owner changed."""
        self._settled[path] = _mark(status)

    def is_as_settled(self, item: Difference) -> bool:
        """Whether the layer's entry at a path is the committed one, or missing in both."""
        return self._settled.get(item.path) == _upper(item)

    def expect(self, paths: Iterable[str]) -> None:
        """Record that these paths existed, so that their absence counts as a deletion."""
        for path in paths:
            self._settled.setdefault(path, ANOTHER)

    def forget(self, paths: Selection) -> None:
        """Forget the marks of the chosen paths."""
        for known in (self._noted, self._settled):
            known.forget([path for path in known if paths.has(path)])

    def is_settled(self, path: str, status: os.stat_result) -> bool:
        """Whether the layer's entry at `path` is the committed one."""
        return self._settled.get(path) == _mark(status)

    def note(self, root: int, paths: Iterable[str], copied: Copied | None = None) -> None:
        """Record signatures of `paths` below the open directory `root`, if there are none yet.

        With `copied`, the sandbox sees a copy of that directory: then the state at the time of the copy
        counts.
        """
        look = LastDirectory(root)
        for path in paths:
            if path in self._noted:
                continue
            if copied is not None:
                mark = copied(path)
                # A change after the start, but before the copy, is found by the time of the start.
                if mark is None or mark[-1] <= self.taken or len(mark) == _DIRECTORY:
                    self._noted[path] = mark
                continue
            found = _found(look, path)
            # A change before we looked is found by the time of the start.
            if found is None or found.st_ctime_ns <= self.taken or stat.S_ISDIR(found.st_mode):
                self._noted[path] = found and signature(found)
        look.close()

    def conflict(self, path: str, now: os.stat_result | None, copied: Copied | None = None) -> str:
        """Return why the host's entry at `path` differs from the base of the sandbox; empty if it does not.

        `copied` returns the signature of a path when the directory was copied, if the sandbox sees a copy.
        """
        if copied is not None and path not in self._noted:
            before = copied(path)
            if before is None and now is not None:
                return "it was created on the host since then"
            if before is not None and now is None:
                return "it was deleted on the host since then"
            if now is not None and signature(now) != before:
                return "it was changed on the host since then"
        if path in self._noted:
            before = self._noted[path]
            if before is None:
                return "" if now is None else "it was created on the host since then"
            if now is None:
                return "it was deleted on the host since then"
            return "" if signature(now) == before else "it was changed on the host since then"
        if now is None or stat.S_ISDIR(now.st_mode):
            # A directory's time moves with every name in it, and its entries are checked themselves.
            return ""
        return "it was changed on the host since then" if now.st_ctime_ns > self.taken else ""

    def conflicts(
        self, item: Difference, copied: Copied | None = None, host: LastDirectory | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield the paths of a difference that the host has changed meanwhile, and how.

        `copied` is as for `conflict`. `host` is the host's directory, if the difference is one from the copy.
        """
        for path, old in ((item.path, None if item.old_path else item.old), (item.old_path, item.old)):
            now = old if host is None or not path else _found(host, path)
            if not path or (now is None and item.new is None):
                continue  # both have deleted it
            if why := self.conflict(path, now, copied):
                yield path, why

    def outstanding(self, found: Iterable[Difference]) -> list[Difference]:
        """Return the differences that the sandbox made since they were last committed."""
        if not self._settled:
            return list(found)
        return [
            item
            for item in found
            if item.path not in self._settled or self._settled[item.path] != _upper(item)
        ]

    def settle(self, root: int, found: Iterable[Difference]) -> None:
        """Record that these differences have been committed to the open directory `root`."""
        look = LastDirectory(root)
        for item in found:
            self._settled[item.path] = _upper(item)
            status = _found(look, item.path)
            self._noted[item.path] = status and signature(status)
            if item.old_path:
                self._settled[item.old_path] = None
                status = _found(look, item.old_path)
                self._noted[item.old_path] = status and signature(status)
        look.close()


class CopyBaseline(Baseline):
    """The marks of the host's files when they were copied, and of the copies at that time."""

    def outstanding(self, found: Iterable[Difference]) -> list[Difference]:
        """Return the differences that the sandbox made; the host made those at paths it has not touched."""
        return [item for item in found if not self.is_as_settled(item)]


class OccupiedBaseline(Baseline):
    """The baseline of a directory that is not the sandbox's base: every file there is a conflict."""

    def conflict(self, path: str, now: os.stat_result | None, copied: Copied | None = None) -> str:
        """Return why `path` needs a decision; empty if it is missing or a directory."""
        return "" if now is None or stat.S_ISDIR(now.st_mode) else "it is there already"


def _found(look: LastDirectory, path: str) -> os.stat_result | None:
    try:
        return look.status(path)
    except OSError:
        return None


def signature(status: os.stat_result) -> Signature:
    """Return a mark that differs if the file was changed or replaced. For a directory, only its identity."""
    if stat.S_ISDIR(status.st_mode):
        return (status.st_dev, status.st_ino)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _signatures(rows: object) -> Marks:
    if not isinstance(rows, dict):
        raise ValueError("it lacks the list of files")
    for row in rows.values():
        if row is not None and not (isinstance(row, list | tuple) and all(type(n) is int for n in row)):
            raise ValueError(f"{row!r} is not a signature of a file")
    return Marks({str(path): None if row is None else tuple(row) for path, row in rows.items()})


def _upper(item: Difference) -> Signature | None:
    """Return the mark of the layer's entry at the path. A whiteout has one like any other."""
    return None if item.new is None else _mark(item.new)


def _mark(status: os.stat_result) -> Signature:
    # Without the ctime, which moves when another layer with a hard link to the same file is deleted. A
    # process that resets the mtime hides its change, which then stays inside.
    return (status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
