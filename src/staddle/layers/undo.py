"""Undo the last commit of a kept sandbox, as long as nobody has changed its files since.

Before a commit, the files that it will replace or remove are copied. After it, a record lists each path with
the present entry. An undo compares these entries with the record, changes nothing if one differs, and then
puts the copies back one by one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from contextlib import contextmanager, suppress

from ..errors import CommitRefused, LayerError
from ..interrupts import uninterrupted
from ..linux.openat2 import open_beneath
from .review import Conflict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    #: ("file", mode, digest), ("link", target), ("directory", mode), or None if there is nothing.
    Entry = list[object] | None
    #: (path, entry before the commit, entry after it, name of the copy)
    Row = tuple[str, Entry, Entry, str]

_RECORD = "record.json"
#: A commit of more files, or over larger ones, cannot be undone.
MOST_FILES, MOST_BYTES = 20_000, 1 << 30
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Name of an entry until it is whole.
_NEW = ".staddle-undo"


class Undo:
    """The copies for one commit to `target`, in the directory `place`, which belongs to staddle."""

    def __init__(self, place: str, target: str) -> None:
        self._place, self._next, self._target = place, f"{place}.next", target

    def copy(self, paths: Iterable[str]) -> bool:
        """Copy the present entries at `paths`, below the target. False if that fails, or takes much room."""
        try:
            is_copied = self._copied(paths)
        except OSError:
            is_copied = False  # a commit must be possible without copies: no room, an unreadable file
        if not is_copied:
            shutil.rmtree(self._next, ignore_errors=True)
        return is_copied

    def _copied(self, paths: Iterable[str]) -> bool:
        shutil.rmtree(self._next, ignore_errors=True)
        os.mkdir(self._next, 0o700)
        self._before: dict[str, tuple[Entry, str]] = {}
        left = MOST_BYTES
        pending = sorted(set(paths), reverse=True)
        while pending:
            path = pending.pop()
            if path in self._before:
                continue  # it is listed, and below a directory that is
            entry, copy = _entry(self._target, path), str(len(self._before))
            if len(self._before) >= MOST_FILES:
                return False
            if entry is not None and entry[0] == "directory":
                pending += [f"{path}/{name}" for name in os.listdir(f"{self._target}/{path}")]
            elif entry is not None and entry[0] == "file":
                status = os.lstat(f"{self._target}/{path}")
                left -= status.st_size
                if left < 0:
                    return False
                shutil.copy2(f"{self._target}/{path}", f"{self._next}/{copy}", follow_symlinks=False)
                if os.geteuid() == 0:
                    os.chown(f"{self._next}/{copy}", status.st_uid, status.st_gid, follow_symlinks=False)
            self._before[path] = entry, copy
        return True

    def settle(self, changed: Iterable[str]) -> None:
        """Record the committed paths with their entries as they are now."""
        touched = set(changed)
        try:
            rows = [
                (path, entry, _entry(self._target, path), copy)
                for path, (entry, copy) in self._before.items()
                if any(path == each or path.startswith(f"{each}/") for each in _and_above(path, touched))
            ]
            if any(before == ["other"] != after for _, before, after, _ in rows):
                return self.forget()  # a pipe or socket was replaced
            with open(f"{self._next}/{_RECORD}", "w") as file:
                json.dump({"target": self._target, "rows": rows}, file)
            shutil.rmtree(self._place, ignore_errors=True)
            os.rename(self._next, self._place)
        except OSError:
            self.forget()  # the commit itself is complete

    def forget(self) -> None:
        """Remove all copies: those of the commit before are not of the last one any more."""
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.rmtree(self._next, ignore_errors=True)

    def run(self) -> list[str]:
        """Put everything back. Returns the paths; CommitRefused lists those that have changed since.

        The next undo does the commit once more.
        """
        try:
            with open(f"{self._place}/{_RECORD}") as file:
                rows = [row for row in json.load(file)["rows"] if row[1] != row[2]]
        except (OSError, ValueError, KeyError):
            raise LayerError(
                "there is no commit to undo",
                why="nothing was committed, it was undone, or the replaced files could not be copied",
                fix="use git or a backup",
            ) from None
        # An undo that was killed has restored some of them, and removed one that has another type.
        changed = [
            path
            for path, before, after, _ in rows
            if (entry := _entry(self._target, path)) not in (before, after)
            and not (entry is None and before[0] != after[0])
        ]
        if changed:
            raise CommitRefused(
                "nothing was undone",
                why="files were changed since the commit",
                fix="put them back, or take the old content by hand",
                conflicts=tuple(
                    Conflict(path, "changed", "was changed since the commit") for path in changed
                ),
            )
        return uninterrupted(lambda: self._put_back(rows))

    def _put_back(self, rows: list[Row]) -> list[str]:
        is_copied = self.copy(path for path, *_ in rows)
        for path, before, after, _ in sorted(rows, reverse=True):  # files before their directories
            if after is not None and (before is None or before[0] != after[0]):
                _remove(self._target, path, is_directory=after[0] == "directory")
        for path, before, _, copy in sorted(rows):
            if before is not None:
                self._put(path, before, copy)
        if is_copied:
            self.settle(path for path, *_ in rows)
        else:
            self.forget()
        return [path for path, *_ in rows]

    def _put(self, path: str, entry: list[object], copy: str) -> None:
        with _parent(self._target, path) as (above, name):
            if entry[0] == "directory":
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=above)
                os.chmod(name, int(str(entry[1])), dir_fd=above)
                return
            with suppress(FileNotFoundError):
                os.unlink(_NEW, dir_fd=above)  # of an undo that was killed
            if entry[0] == "link":
                os.symlink(str(entry[1]), _NEW, dir_fd=above)
            else:
                made = os.open(_NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=above)
                with open(made, "wb") as file, open(f"{self._place}/{copy}", "rb") as source:
                    shutil.copyfileobj(source, file)
                    file.flush()
                    if os.geteuid() == 0:
                        status = os.fstat(source.fileno())
                        os.fchown(made, status.st_uid, status.st_gid)
                    shutil.copystat(f"{self._place}/{copy}", f"/proc/self/fd/{made}")
                    os.utime(made)  # newer than what was built from the commit
            os.rename(_NEW, name, src_dir_fd=above, dst_dir_fd=above)


def _and_above(path: str, touched: set[str]) -> list[str]:
    parts = path.split("/")
    return [each for count in range(1, len(parts) + 1) if (each := "/".join(parts[:count])) in touched]


@contextmanager
def _parent(target: str, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory of `path` below the target, without following a link, and make it writable for now.

    Gives its descriptor and the name.
    """
    with _directory(target, path) as above:
        mode = stat.S_IMODE(os.fstat(above).st_mode)
        is_writable = os.geteuid() == 0 or mode & 0o300 == 0o300
        try:
            if not is_writable:
                os.fchmod(above, mode | 0o300)
            yield above, os.path.basename(path)
        finally:
            if not is_writable:
                os.fchmod(above, mode)


@contextmanager
def _directory(target: str, path: str) -> Iterator[int]:
    top = os.open(target, _DIRECTORY)
    try:
        above = open_beneath(top, os.path.dirname(path) or ".", _DIRECTORY)
    finally:
        os.close(top)
    try:
        yield above
    finally:
        os.close(above)


def _entry(target: str, path: str) -> Entry:
    name = os.path.basename(path)
    try:
        with _directory(target, path) as above:
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return ["link", os.readlink(name, dir_fd=above)]
            if stat.S_ISDIR(status.st_mode):
                return ["directory", stat.S_IMODE(status.st_mode)]
            if not stat.S_ISREG(status.st_mode):
                return ["other"]
            with open(os.open(name, _FILE, dir_fd=above), "rb") as file:
                return ["file", stat.S_IMODE(status.st_mode), hashlib.file_digest(file, "sha256").hexdigest()]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # no directory above it
            raise
        return None


def _remove(target: str, path: str, *, is_directory: bool) -> None:
    with suppress(FileNotFoundError), _parent(target, path) as (above, name):
        if not is_directory:
            os.unlink(name, dir_fd=above)
        else:
            with suppress(OSError):  # others have put files into it
                os.rmdir(name, dir_fd=above)
