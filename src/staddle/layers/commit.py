"""Committing changes to the host: all of them, or none, even if we are killed halfway.

A commit reviews the changes (`review`), writes them next to the target (`Staging`), makes them durable at
once, and renames them into place (`journal`).

Only content and names come out of a layer. Permissions lose their set-ID bits, owners come from the
destination directory, and attributes from the replaced file. So `Staging`, which writes files of the host,
does not use `LayerWriter`: a layer has whiteouts, one owner and no attributes to keep.
"""

from __future__ import annotations

import os
import stat
import time
from functools import partial

from ..errors import CommitFailed, LayerError
from ..files.remove_tree import copy_content, unchanged
from ..files.tree import LastDirectory, Tree, open_deep
from ..interrupts import breathe, interruptible, uninterrupted
from ..linux.file_room import refuse_if_full
from ..linux.process import mount_id
from .baseline import Baseline
from .changes import change_of
from .commit_dir import CommitDirectory
from .differences import Difference, Selection
from .fingerprint import SlotDigests
from .host_directory import HostDirectory
from .journal import Clear, CreatedMeanwhile, Permit, Put, Remove, Step, changed_meanwhile
from .merged_view import LayerView, OpenLayers
from .review import Allowed, Committed, changed_since, decided, review

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .review import ApprovalOptions, Choice, OnConflict, Review

    class CommitOptions(ApprovalOptions, total=False):
        """The options of a commit of a sandbox, the review that it is bound to, and its path inside."""

        reviewed: Review | None
        at: str


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ACL = "system.posix_acl_access"
#: How often a commit restarts because a file was created in its way.
_MOST_TRIES = 5


class Staging:
    """Turns differences, in order, into steps; everything new is then in `slots` (an open directory)."""

    def __init__(self, opened: OpenLayers, target: int, slots: int) -> None:
        self._opened, self._target, self._slots = opened, target, slots
        self._serial = 0
        #: New directories: their path in the target, and their place in the slots.
        self._staged: dict[str, str] = {}
        #: Directories of the target below which everything is removed anyway.
        self._gone: str | None = None
        self._finish: list[tuple[str, os.stat_result, tuple[int, int] | None, bool]] = []
        #: Steps before all others, steps after them, and steps for directories that cannot be renamed.
        self._opens: list[Step] = []
        self._closes: list[Step] = []
        self._clears: list[Step] = []
        self._late: list[Step] = []
        self._renames_directories = not is_overlay(target)
        #: The slot of each new file and link, by its path.
        self.written: dict[str, str] = {}
        #: For a file with several names in a layer: the place of the first name.
        self._linked: dict[tuple[int, int], str] = {}
        self._source: tuple[tuple[int, str], int] | None = None
        self._place = LastDirectory(slots, os.O_RDONLY | os.O_DIRECTORY)
        self._replaced = LastDirectory(target)
        self._root = os.geteuid() == 0
        self._ours = (os.geteuid(), os.getegid())
        #: The owner of new entries, by directory.
        self._owners: dict[str, tuple[int, int]] = {}

    def stage(
        self, found: Sequence[Difference], progress: Callable[[int, int], object] | None = None
    ) -> list[Step]:
        """Write all of it. If this raises, unfinished work is in the slots, and nowhere else."""
        steps: list[Step] = []
        parts = [(item.path, item, False) for item in found]
        # A rename has two parts, each with its place in the order of paths.
        if moved := [(item.old_path, item, True) for item in found if item.old_path]:
            parts = sorted(parts + moved, key=lambda part: part[0].split("/"))
        try:
            for count, (path, item, only_remove) in enumerate(parts):
                step = self._removed(path, item) if only_remove else self._put(item)
                if step is not None:
                    steps.append(step)
                if count % 64 == 0:
                    breathe()
                    if progress is not None:
                        interruptible(partial(progress, count, len(parts)))
        finally:
            self._close_source()
            self._place.close()
            self._replaced.close()
        for place, status, owner, closed in reversed(self._finish):
            fd = open_deep(self._slots, place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _finish(fd, status, owner)
                if closed:
                    os.fchmod(fd, 0o700)
            finally:
                os.close(fd)
        if progress is not None:
            progress(len(parts), len(parts))
        return [*self._opens, *steps, *reversed(self._clears), *self._late, *self._closes]

    def _removed(self, path: str, item: Difference) -> Step | None:
        if item.old is None or (self._gone is not None and path.startswith(self._gone)):
            return None
        self._goes(path, item.old)
        if stat.S_ISDIR(item.old.st_mode) and not self._renames_directories:
            self._clears.append(_clear(path, item.old))
            return None
        return Remove(path, self._slot(), item.old.st_ino, item.old.st_ctime_ns)

    def _put(self, item: Difference) -> Step | None:
        new = item.new
        if new is None:
            return self._removed(item.path, item)
        old = None if item.old_path else item.old
        if old and stat.S_ISDIR(new.st_mode) and stat.S_ISDIR(old.st_mode):
            modes = (stat.S_IMODE(old.st_mode), stat.S_IMODE(new.st_mode))
            # A directory is opened up before the steps inside it, and closed after them.
            (self._opens if _can_change(new) else self._closes).append(Permit(item.path, old.st_ino, *modes))
            return None
        parent, _, name = item.path.rpartition("/")
        above = self._staged.get(parent)
        slot = f"{above}/{name}" if above is not None else self._slot()
        place = slot.rpartition("/")[0]
        here = self._place.at(place)
        inode = self._write(item, new, old, here, slot)
        if above is not None:
            return None
        if old is not None:
            self._goes(item.path, old)
            if stat.S_ISDIR(old.st_mode) and not self._renames_directories:
                self._clears.append(_clear(item.path, old))
                self._late.append(Put(item.path, slot, inode, 0))
                return None
        if stat.S_ISDIR(new.st_mode) and not _can_change(new):
            self._closes.append(Permit(item.path, inode, 0o700, stat.S_IMODE(new.st_mode)))
        return Put(item.path, slot, inode, old.st_ino if old else 0, old.st_ctime_ns if old else 0)

    def _goes(self, path: str, old: os.stat_result) -> None:
        """Record that the entry at `path` will be moved away. A directory moves with its contents."""
        if stat.S_ISDIR(old.st_mode):
            if self._renames_directories:
                self._gone = f"{path}/"
            if not _can_change(old):
                mode = stat.S_IMODE(old.st_mode)
                self._opens.append(Permit(path, old.st_ino, mode, mode | 0o700))

    def _write(
        self, item: Difference, new: os.stat_result, old: os.stat_result | None, here: int, slot: str
    ) -> int:
        """Create the new file, link or directory of `item` in its slot; return its inode."""
        name = slot.rpartition("/")[2]
        owner = self._owner(item.path, old)
        if not stat.S_ISDIR(new.st_mode):
            self.written[item.path] = slot
        if stat.S_ISDIR(new.st_mode):
            os.mkdir(name, 0o700, dir_fd=here)
            self._staged[item.path] = slot
            # A directory must be writable to its owner to be moved, so its permissions are set last.
            closed = "/" not in slot and not _can_change(new)
            self._finish.append((slot, new, owner, closed))
        elif stat.S_ISLNK(new.st_mode):
            _, source = self._from(item)
            os.symlink(os.readlink(item.path.rpartition("/")[2], dir_fd=source), name, dir_fd=here)
            if owner is not None:
                os.chown(name, *owner, dir_fd=here, follow_symlinks=False)
        elif new.st_nlink > 1 and (first := self._linked.get((item.layer, new.st_ino))):
            os.link(first, name, src_dir_fd=self._slots, dst_dir_fd=here, follow_symlinks=False)
        else:
            if new.st_nlink > 1 and len(slot) < 1000:
                self._linked[item.layer, new.st_ino] = slot
            copy = os.open(name, _NEW, new.st_mode & 0o777, dir_fd=here)  # in a directory of ours alone
            try:
                self._copy(item, new, copy)
                if old is not None and stat.S_ISREG(old.st_mode):
                    self._keep_attributes(item.path, copy)
                return _finish(copy, new, owner)
            finally:
                os.close(copy)
        return os.stat(name, dir_fd=here, follow_symlinks=False).st_ino

    def _copy(self, item: Difference, new: os.stat_result, copy: int) -> None:
        tree, source = self._from(item)
        fd = tree.file(source, item.path.rpartition("/")[2])
        try:
            copy_content(fd, copy, new)
            unchanged(new, fd)  # since the review, including its identity
        finally:
            os.close(fd)

    def _from(self, item: Difference) -> tuple[Tree, int]:
        """Return the tree with the new file, and its open directory there."""
        tree = self._opened.layers[item.layer]
        wanted = (item.layer, item.path.rpartition("/")[0])
        if self._source is None or self._source[0] != wanted:
            self._close_source()
            self._source = (wanted, tree.directory(wanted[1]))
        return tree, self._source[1]

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            os.close(source[1])
        self._opened.give_back()

    def _owner(self, path: str, old: os.stat_result | None) -> tuple[int, int] | None:
        """Return the owner of the new file: the old file's, else the directory's. None: we own it anyway."""
        if old is not None and not stat.S_ISDIR(old.st_mode):
            owner = (old.st_uid, old.st_gid)
        else:
            parent = path.rpartition("/")[0]
            if parent not in self._owners:
                directory = self._nearest(path)
                group = directory.st_gid if self._root or directory.st_mode & stat.S_ISGID else -1
                self._owners[parent] = (directory.st_uid if self._root else -1, group)
            owner = self._owners[parent]
        return None if owner in ((-1, -1), self._ours) else owner

    def _nearest(self, path: str) -> os.stat_result:
        """Return the directory of the target that will contain the path, or the nearest existing parent."""
        while path:
            path = path.rpartition("/")[0]
            if path in self._staged:
                continue
            try:
                fd = open_deep(self._target, path, os.O_PATH | os.O_DIRECTORY)
            except OSError as error:
                refuse_if_full(error)
                continue
            try:
                return os.fstat(fd)
            finally:
                os.close(fd)
        return os.fstat(self._target)

    def _keep_attributes(self, path: str, copy: int) -> None:
        """Copy the attributes and the access list of the replaced file, but not its capabilities."""
        parent, _, name = path.rpartition("/")
        try:
            directory = self._replaced.at(parent)
            place = f"/proc/self/fd/{directory}/{name}"
            for attribute in os.listxattr(place, follow_symlinks=False):
                if attribute.startswith("user.") or attribute == _ACL:
                    value = os.getxattr(place, attribute, follow_symlinks=False)
                    os.setxattr(copy, attribute, value)
        except OSError:
            pass  # a file system without attributes, or none that we may read: as after any rewrite

    def _slot(self) -> str:
        self._serial += 1
        return str(self._serial)


def is_overlay(directory: int) -> bool:
    """Whether the open directory is itself on an overlay mount, as in a container."""
    mount = mount_id(directory)
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            if line.split(b" ", 1)[0] == mount:
                return line.partition(b" - ")[2].startswith(b"overlay ")
    return False


def _clear(path: str, old: os.stat_result) -> Clear:
    return Clear(path, stat.S_IMODE(old.st_mode), old.st_uid, old.st_gid)


def _can_change(status: os.stat_result) -> bool:
    """Whether the owner may change entries of the directory, and so move it elsewhere."""
    return status.st_mode & 0o300 == 0o300


def _finish(fd: int, status: os.stat_result, owner: tuple[int, int] | None) -> int:
    """Set owner (if we may), permissions without set-ID bits, and modification time; return the inode."""
    if owner is not None:
        try:
            os.fchown(fd, *owner)
        except PermissionError:
            pass  # it stays ours, as after any rewrite by an ordinary user
    made = os.fstat(fd)
    mode = status.st_mode & 0o777
    if stat.S_IMODE(made.st_mode) != mode:
        os.fchmod(fd, mode)
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    return made.st_ino


def commit(
    view: LayerView,
    *,
    paths: Collection[str] | None = None,
    baseline: Baseline | None = None,
    on_conflict: OnConflict = "refuse",
    allow_protected: bool = False,
    allow: Collection[str] = (),
    progress: Callable[[int, int], object] | None = None,
    only: Choice | None = None,
    durable: bool = True,
    reviewed: Review | None = None,
    at: str = "",
) -> Committed:
    """Commit the changes of `view`, at and below `paths`, to its base, whole or not at all.

    `allow` lists changes that need a second look and are fine, as paths below the base or globs of them;
    `allow_protected` allows all. `only` chooses among the changes, one by one. Without `durable` the commit
    does not wait for the disk. With `reviewed`, it writes exactly the reviewed changes, or CommitRefused
    lists those that have changed since. `at` prefixes the paths of the result, as in `diff`.

    CommitRefused before anything is written: the host changed the same files (according to `baseline`), or a
    change needs a second look. CommitFailed: the host refused a step, and every earlier step was undone.
    Nothing may write to the layers meanwhile. Owners, set-ID bits, attributes, devices, pipes and sockets are
    not committed.
    """
    if len(view.bases) != 1:
        raise LayerError(
            "there is no single directory to commit to",
            why=f"the base is {view.bases!r}",
            fix="commit(to=DIRECTORY) writes to one that you name",
        )
    allowed, created = Allowed(allow), ""
    for _ in range(1 if baseline is None else _MOST_TRIES):
        since = time.time_ns()
        with OpenLayers(view) as opened:
            target = opened.bases[0]
            if isinstance(view.bases[0], HostDirectory):
                view.bases[0].check(os.fstat(target.root))
                view.bases[0].check()  # do not write where no one would look
            asked = paths if reviewed is None or paths is not None else reviewed.paths
            found = review(opened, asked, baseline, only)
            if reviewed is not None:
                found = reviewed.still(found, Selection(paths), all_of_it=paths is None)
            taken, kept = decided(found, on_conflict, allow_protected, allowed)
            changes = tuple(change_of(opened, item, at) for item in taken)
            try:
                if taken:
                    settle = tuple if baseline is None else partial(baseline.settle, target.root, taken)
                    _carry_out(opened, taken, progress, since, reviewed, durable=durable, settle=settle)
            except CreatedMeanwhile as error:
                created = str(error)
                continue  # perhaps by another commit: decide once more
            return Committed(changes, kept, found.left_out, allowed.unused)
    raise changed_meanwhile(created)


def _carry_out(
    opened: OpenLayers,
    taken: Sequence[Difference],
    progress: Callable[[int, int], object] | None,
    since: int,
    reviewed: Review | None,
    *,
    durable: bool,
    settle: Callable[[], object],
) -> None:
    """Write the chosen changes to the base, which was reviewed at `since`; then call `settle`.

    Once everything is next to the base, signals are deferred: an interruption would undo the commit.
    """
    target = opened.bases[0]
    try:
        with CommitDirectory(target.path, target.root, durable=durable) as place:
            staging = Staging(opened, target.root, place.slots)
            steps = staging.stage(taken, progress)
            if reviewed is not None:
                _compare(staging, place.slots, reviewed)
            uninterrupted(partial(place.carry_out, target.root, steps, since, settle))
    except OSError as error:
        refuse_if_full(error)
        raise CommitFailed(
            "the changes could not be committed",
            why=f"{os.fsdecode(error.filename or '')}: {error.strerror}".lstrip(": "),
            fix="nothing was changed; make the place writable, or leave these paths out",
        ) from error


def _compare(staging: Staging, slots: int, reviewed: Review) -> None:
    """Raise CommitRefused if the copied files are not the reviewed ones."""
    digests, changed = SlotDigests(slots), {}
    try:
        for path, slot in staging.written.items():
            if digests.of(slot) != (reviewed.seen or {})[path].content:
                changed[path] = "its content changed since the review"
    finally:
        digests.close()
    if changed:
        raise changed_since(changed)
