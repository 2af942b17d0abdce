"""Undo the last commit of a kept sandbox, as long as nobody has changed its files since.

Before a commit, the files that it will replace or remove are copied. After it, a record lists each path with
the present entry. An undo compares these entries with the record, changes nothing if one differs, and then
puts the copies back one by one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat

from ..errors import CommitRefused, LayerError
from ..linux.openat2 import open_beneath
from .review import Conflict
from .trash import FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    #: ("file", mode, digest), ("link", target), ("directory", mode), or None if there is nothing.
    Entry = list[object] | None

_RECORD = "record.json"
#: A commit of more files, or over larger ones, cannot be undone.
MOST_FILES, MOST_BYTES = 20_000, 1 << 30
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Undo:
    """The copies for one commit to `target`, in the directory `place`, which belongs to staddle."""

    def __init__(self, place: str, target: str) -> None:
        self._place, self._next, self._target = place, f"{place}.next", target

    def copy(self, paths: Iterable[str]) -> bool:
        """Copy the present entries at `paths`, below the target. False if they need too much room."""
        try:
            return self._copied(paths)
        except OSError as error:
            if error.errno not in FULL:
                raise
            shutil.rmtree(self._next, ignore_errors=True)
            return False  # a commit must be possible without room for copies

    def _copied(self, paths: Iterable[str]) -> bool:
        shutil.rmtree(self._next, ignore_errors=True)
        os.mkdir(self._next, 0o700)
        self._before: dict[str, tuple[Entry, str]] = {}
        left = MOST_BYTES
        pending = sorted(set(paths), reverse=True)
        while pending:
            path = pending.pop()
            entry, copy = _entry(self._target, path), str(len(self._before))
            if entry is not None and entry[0] == "directory":
                pending += [f"{path}/{name}" for name in os.listdir(f"{self._target}/{path}")]
            elif entry is not None and entry[0] == "file":
                left -= os.lstat(f"{self._target}/{path}").st_size
                if left < 0 or len(self._before) >= MOST_FILES:
                    shutil.rmtree(self._next)
                    return False
                shutil.copyfile(f"{self._target}/{path}", f"{self._next}/{copy}")
            self._before[path] = entry, copy
        return True

    def settle(self, changed: Iterable[str]) -> None:
        """Record the committed paths with their entries as they are now."""
        touched = set(changed)
        rows = [
            (path, entry, _entry(self._target, path), copy)
            for path, (entry, copy) in self._before.items()
            if any(path == each or path.startswith(f"{each}/") for each in _and_above(path, touched))
        ]
        with open(f"{self._next}/{_RECORD}", "w") as file:
            json.dump({"target": self._target, "rows": rows}, file)
        shutil.rmtree(self._place, ignore_errors=True)
        os.rename(self._next, self._place)

    def forget(self) -> None:
        """Remove the copies of the commit before: it is not the last one any more."""
        shutil.rmtree(self._place, ignore_errors=True)

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
                why="nothing was committed, it was undone, or it was too large to keep a copy",
                fix="use git or a backup",
            ) from None
        # An undo that was killed has restored some of them.
        changed = [row[0] for row in rows if _entry(self._target, row[0]) not in row[1:3]]
        if changed:
            raise CommitRefused(
                "nothing was undone",
                why="files were changed since the commit",
                fix="put them back, or take the old content by hand",
                conflicts=tuple(
                    Conflict(path, "changed", "was changed since the commit") for path in changed
                ),
            )
        self.copy(path for path, *_ in rows)
        for path, before, after, _ in sorted(rows, reverse=True):  # files before their directories
            if after is not None and (before is None or before[0] != after[0]):
                _remove(self._target, path, is_directory=after[0] == "directory")
        for path, before, _, copy in sorted(rows):
            if before is not None:
                self._put(path, before, copy)
        self.settle(path for path, *_ in rows)
        return [path for path, *_ in rows]

    def _put(self, path: str, entry: list[object], copy: str) -> None:
        above, name = _parent(self._target, path)
        try:
            if entry[0] == "directory":
                try:
                    os.mkdir(name, dir_fd=above)
                except FileExistsError:
                    pass
                os.chmod(name, int(str(entry[1])), dir_fd=above)
                return
            new = f".{name}.staddle-undo"
            if entry[0] == "link":
                os.symlink(str(entry[1]), new, dir_fd=above)
            else:
                made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=above)
                with open(made, "wb") as file, open(f"{self._place}/{copy}", "rb") as source:
                    shutil.copyfileobj(source, file)
                    os.fchmod(made, int(str(entry[1])))
            os.rename(new, name, src_dir_fd=above, dst_dir_fd=above)
        finally:
            os.close(above)


def _and_above(path: str, touched: set[str]) -> list[str]:
    parts = path.split("/")
    return [each for count in range(1, len(parts) + 1) if (each := "/".join(parts[:count])) in touched]


def _parent(target: str, path: str) -> tuple[int, str]:
    """Open the directory of `path` below the target, without following a link. Returns it with the name."""
    top = os.open(target, _DIRECTORY)
    try:
        return open_beneath(top, os.path.dirname(path) or ".", _DIRECTORY), os.path.basename(path)
    finally:
        os.close(top)


def _entry(target: str, path: str) -> Entry:
    try:
        above, name = _parent(target, path)
    except OSError:
        return None
    try:
        status = os.stat(name, dir_fd=above, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return ["link", os.readlink(name, dir_fd=above)]
        if stat.S_ISDIR(status.st_mode):
            return ["directory", stat.S_IMODE(status.st_mode)]
        if not stat.S_ISREG(status.st_mode):
            return ["other"]
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above), "rb") as file:
            return ["file", stat.S_IMODE(status.st_mode), hashlib.file_digest(file, "sha256").hexdigest()]
    except FileNotFoundError:
        return None
    finally:
        os.close(above)


def _remove(target: str, path: str, *, is_directory: bool) -> None:
    above, name = _parent(target, path)
    try:
        if not is_directory:
            os.unlink(name, dir_fd=above)
        else:
            try:
                os.rmdir(name, dir_fd=above)
            except OSError:
                pass  # others have put files into it
    finally:
        os.close(above)
