"""The steps of a commit: renames that can be done, undone, and told apart after a crash.

Every new file waits in a slot, on the target's own file system, before the first step. A step exchanges a
slot with a name of the target, or moves one to the other. Afterwards the slot contains the earlier entry.
Nothing is overwritten and nothing deleted until all is done:

    nothing recorded yet     the target is unchanged; the slots are thrown away
    recorded                 each step is done or not, which the inode in its slot shows
    record removed           all is done; the slots contain replaced entries, and are thrown away

So after a kill at any point, going forward or going back is possible, and `recover` does it.
"""

from __future__ import annotations

import errno
import os
import stat

from .._value import Value
from ..errors import CommitRefused
from ..files.tree import LastDirectory, open_deep
from ..linux.fileio import exchange_names, rename_new

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DIRECTORY = os.O_PATH | os.O_DIRECTORY


class Put(Value):
    """Rename `slot` (inode `new`) to `path`; the entry with that name (inode `old`) goes to the slot.

    An inode of 0 means nothing.
    """

    path: str
    slot: str
    new: int
    old: int
    #: The ctime of the replaced entry at the time of the review.
    changed: int = 0


class Remove(Value):
    """Rename `path` (inode `old`) to the empty `slot`."""

    path: str
    slot: str
    old: int
    changed: int = 0


class Clear(Value):
    """Remove the directory at `path`, after other steps have moved everything out of it.

    For a directory that cannot be renamed: overlayfs refuses that for directories of a lower layer.
    """

    path: str
    mode: int
    uid: int
    gid: int


class Permit(Value):
    """Change the permissions of the directory at `path` (inode `inode`)."""

    path: str
    inode: int
    old: int
    new: int


Step = Put | Remove | Clear | Permit
KINDS: dict[str, type[Step]] = {
    "put": Put,
    "remove": Remove,
    "clear": Clear,
    "permit": Permit,
}


def rows(steps: Iterable[Step]) -> list[list[object]]:
    """Return the steps as plain data; `KINDS` leads back."""
    names = {kind: name for name, kind in KINDS.items()}
    return [[names[type(step)], *(getattr(step, field) for field in step._fields)] for step in steps]


class CreatedMeanwhile(Exception):
    """An entry was created at a path that was empty at the review. Every step was undone."""


class Steps:
    """The steps on the open directory `target`, with the slots in the open directory `slots`."""

    def __init__(self, target: int, slots: int, steps: Iterable[Step]) -> None:
        self._slots = slots
        self._steps = tuple(steps)
        self._cleared = {step.path for step in self._steps if isinstance(step, Clear)}
        self._last = LastDirectory(target)
        #: Inodes that have been moved away: the move changes the ctime of their other names.
        self._moved: set[int] = set()

    def do(self, *, afresh: bool = False) -> None:
        """Do the steps that are not done, in order (`afresh`: none is). Stops at the first failure."""
        # One after the other: a step can make the next one possible.
        left = (step for step in self._steps if afresh or not self._is_done(step))
        self._all(left, lambda step, directory, name: self._do(step, directory, name, afresh))

    def undo(self) -> None:
        """Undo the steps that are done, the last first."""
        self._all((step for step in self._steps[::-1] if self._is_begun(step)), self._undo)

    def check_removed(self, since: int) -> None:
        """Raise CommitRefused if something in a removed directory changed after `since`."""
        for step in self._steps:
            if isinstance(step, Remove):
                newer = _newer_than(since, self._slots, step.slot)
                if newer is not None:
                    raise changed_meanwhile(f"{step.path}/{newer}")

    def can_go_on(self) -> bool:
        """Whether every entry that is still to be replaced is as it was at the review."""
        try:
            return all(self._is_done(step) or self._is_as_before(step) for step in self._steps)
        finally:
            self._last.close()

    def can_go_back(self) -> bool:
        """Whether every entry that was put in place is still there."""
        try:
            return all(
                not self._is_done(step) or not isinstance(step, Put) or self._inode_at(step.path) == step.new
                for step in self._steps
            )
        finally:
            self._last.close()

    def _all(self, steps: Iterable[Step], work: Callable[[Step, int, str], None]) -> None:
        try:
            for step in steps:
                parent, _, name = step.path.rpartition("/")
                work(step, self._last.at(parent), name)
                if isinstance(step, Clear):
                    self._last.close()  # another directory may have the name from now on
        finally:
            self._last.close()

    def _do(self, step: Step, directory: int, name: str, afresh: bool) -> None:
        if isinstance(step, Permit):
            _permit(step, directory, name, step.new, must=afresh)
        elif isinstance(step, Clear):
            _clear(step, directory, name)
        elif isinstance(step, Put):
            if afresh or self._in_slot(step.slot) == step.new:
                self._put(step, directory, name, afresh)
        elif afresh or not self._in_slot(step.slot):
            self._unchanged(directory, name, step)
            rename_new(directory, name, self._slots, step.slot)

    def _put(self, step: Put, directory: int, name: str, afresh: bool) -> None:
        if not step.old:
            try:
                rename_new(self._slots, step.slot, directory, name)
            except FileExistsError:
                if not afresh:
                    raise
                raise CreatedMeanwhile(step.path) from None
            return
        if afresh or not self._in_slot(f"{step.slot}.old"):
            self._unchanged(directory, name, step)
            if exchange_names(self._slots, step.slot, directory, name):
                return
            rename_new(directory, name, self._slots, f"{step.slot}.old")
        rename_new(self._slots, step.slot, directory, name)

    def _unchanged(self, directory: int, name: str, step: Put | Remove) -> None:
        """Check, right before an entry is moved away, that it is the reviewed one."""
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            raise changed_meanwhile(step.path) from None
        # A directory's time moves with changes in it, including those of this commit.
        any_time = not step.changed or stat.S_ISDIR(found.st_mode) or step.old in self._moved
        if found.st_ino != step.old or (found.st_ctime_ns != step.changed and not any_time):
            raise changed_meanwhile(step.path)
        self._moved.add(step.old)

    def _undo(self, step: Step, directory: int, name: str) -> None:
        if isinstance(step, Permit):
            _permit(step, directory, name, step.old, must=False)
        elif isinstance(step, Clear):
            _make_again(step, directory, name)
        elif isinstance(step, Put):
            self._take_back(step, directory, name)
        elif self._in_slot(step.slot):
            rename_new(self._slots, step.slot, directory, name)

    def _take_back(self, step: Put, directory: int, name: str) -> None:
        waiting, aside = self._in_slot(step.slot), self._in_slot(f"{step.slot}.old")
        if aside:  # in two moves: the file system cannot exchange
            if waiting != step.new:
                rename_new(directory, name, self._slots, step.slot)
            rename_new(self._slots, f"{step.slot}.old", directory, name)
        elif waiting == step.new:
            return
        elif step.old:
            exchange_names(self._slots, step.slot, directory, name)
        else:
            rename_new(directory, name, self._slots, step.slot)

    def _is_done(self, step: Step) -> bool:
        if isinstance(step, Put):
            return self._in_slot(step.slot) != step.new
        if isinstance(step, Remove):
            return bool(self._in_slot(step.slot))
        # If another step has moved the directory away, nothing is left to do.
        return not self._is_directory(step.path)

    def _is_begun(self, step: Step) -> bool:
        """Whether the step has an effect to undo; otherwise its directory need not even exist."""
        if isinstance(step, Put) and self._in_slot(f"{step.slot}.old"):
            return True
        return isinstance(step, Clear) or self._is_done(step) is not isinstance(step, Permit)

    def _is_as_before(self, step: Step) -> bool:
        if isinstance(step, Permit | Clear):
            return True
        if isinstance(step, Put) and self._in_slot(f"{step.slot}.old"):
            return True
        if step.path in self._cleared:
            return self._is_directory(step.path) or not self._inode_at(step.path)
        return self._inode_at(step.path) == step.old

    def _is_directory(self, path: str) -> bool:
        found = self._status_at(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _inode_at(self, path: str) -> int:
        found = self._status_at(path)
        return 0 if found is None else found.st_ino

    def _status_at(self, path: str) -> os.stat_result | None:
        try:
            return self._last.status(path)
        except OSError:
            return None

    def _in_slot(self, slot: str) -> int:
        try:
            return os.stat(slot, dir_fd=self._slots, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return 0


def _clear(step: Clear, directory: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        pass  # done before
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise changed_meanwhile(step.path) from None
        raise


def _make_again(step: Clear, directory: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return  # it was never removed
    if os.geteuid() == 0:
        os.chown(name, step.uid, step.gid, dir_fd=directory, follow_symlinks=False)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    os.fchmod(fd, step.mode)
    os.close(fd)


def _permit(step: Permit, directory: int, name: str, mode: int, *, must: bool) -> None:
    """Set permissions; skip a directory that another step has moved away, unless it `must` exist."""
    try:
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        if must:
            raise changed_meanwhile(step.path) from None
        return
    try:
        found = os.fstat(fd)
        if found.st_ino == step.inode:
            # Keep the set-ID and sticky bits of the host's directory, which the sandbox does not decide.
            kept = found.st_mode & 0o7000
            os.chmod(f"/proc/self/fd/{fd}", mode & 0o777 | kept)
        elif must:
            raise changed_meanwhile(step.path)
    finally:
        os.close(fd)


def _newer_than(since: int, slots: int, slot: str) -> str | None:
    """Return a path below the directory in `slot` that changed after `since`, except the directory itself."""
    todo = [""] if stat.S_ISDIR(os.stat(slot, dir_fd=slots, follow_symlinks=False).st_mode) else []
    while todo:
        path = todo.pop()
        fd = open_deep(slots, f"{slot}/{path}".rstrip("/"), os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    below = f"{path}/{entry.name}" if path else entry.name
                    if entry.stat(follow_symlinks=False).st_ctime_ns > since:
                        return below
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(below)
        finally:
            os.close(fd)
    return None


def changed_meanwhile(path: str) -> CommitRefused:
    from .review import Conflict

    return CommitRefused(
        f"{path!r} was changed on the host during the commit",
        why="everything was put back",
        fix="try again",
        conflicts=(Conflict(path, "modified", "it was changed on the host during the commit"),),
    )
