"""Operations of the file server that need several calls: links, copies, trees, names of owners.

They have the rights and the view of the sandbox's user, like the whole file server.
"""

from __future__ import annotations

import errno
import os
import stat

from ...linux.fileio import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...ipc.file_messages import FileRow

_CHUNK = 1 << 18
#: The most bytes to read from the sandbox's /etc/passwd.
_LONGEST = 1 << 20
#: The deepest nesting of directories that a copy or a tree enters.
_DEEPEST = 500


class Owners:
    """The names of the users inside, from /etc/passwd."""

    def __init__(self) -> None:
        self._as_of: tuple[int, int] | None = None
        self._names: dict[int, bytes] = {}

    def name(self, uid: int) -> bytes:
        """Return the name of a user; empty if it has none."""
        try:
            found = os.stat("/etc/passwd")
            as_of = (found.st_mtime_ns, found.st_ino)
            if as_of != self._as_of:
                self._names, self._as_of = _accounts(), as_of
        except OSError:
            return b""
        return self._names.get(uid, b"")


def _accounts() -> dict[int, bytes]:
    fd = os.open("/etc/passwd", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(fd, _LONGEST)
    finally:
        os.close(fd)
    names: dict[int, bytes] = {}
    for line in data.split(b"\n"):
        row = line.split(b":")
        if len(row) > 3 and row[2].isdigit() and len(row[2]) < 10:
            names.setdefault(int(row[2]), row[0])
    return names


OWNERS = Owners()


def file_row(name: bytes, found: os.stat_result) -> FileRow:
    """Return the row of a file for an answer."""
    most = (1 << 63) - 1
    modified = max(-most, min(found.st_mtime_ns, most))
    size, owner = min(found.st_size, most), OWNERS.name(found.st_uid)
    return name, found.st_mode, size, modified, found.st_uid, found.st_gid, owner


def append(path: bytes, data: bytes) -> None:
    """Append to a file; create it if it is missing."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PermissionError(errno.EPERM, "it is a pipe, a socket or a device, not a file")
        write_all(fd, data)
    finally:
        os.close(fd)


def copy(source: bytes, target: bytes, replace: bool, beat: Callable[[], None]) -> None:
    """Copy a file, or a directory with its contents. Links inside a directory are copied as links."""
    if os.path.isdir(source):
        real, inside = os.path.realpath(source), os.path.realpath(os.path.dirname(target) or b".")
        if f"{os.fsdecode(inside)}/".startswith(f"{os.fsdecode(real)}/"):
            raise OSError(errno.EINVAL, "it would be copied into itself", target)
        os.mkdir(target)
        _copy_tree(source, target, beat, 0)
        os.chmod(target, stat.S_IMODE(os.stat(source).st_mode))
    else:
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        _copy_file(source, target, replace)


def _copy_tree(source: bytes, target: bytes, beat: Callable[[], None], depth: int) -> None:
    if depth > _DEEPEST:
        raise OSError(errno.ELOOP, f"it is more than {_DEEPEST} directories deep", source)
    beat()
    with os.scandir(source) as entries:
        for entry in entries:
            there = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), there)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(there)
                _copy_tree(entry.path, there, beat, depth + 1)
                os.chmod(there, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode))
            elif entry.is_file(follow_symlinks=False):
                _copy_file(entry.path, there, False)


def _copy_file(source: bytes, target: bytes, replace: bool) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(reading).st_mode
        if not stat.S_ISREG(mode):
            raise PermissionError(errno.EPERM, "it is a pipe, a socket or a device, not a file", source)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        writing = os.open(target, flags | (os.O_TRUNC if replace else os.O_EXCL), 0o600)
        try:
            while data := os.read(reading, _CHUNK):
                write_all(writing, data)
            os.fchmod(writing, stat.S_IMODE(mode) & 0o777)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def tree(top: bytes, beat: Callable[[], None]) -> Iterator[FileRow]:
    """Yield every entry below a directory, by its relative path. Links are not followed."""
    waiting = [b""]
    while waiting:
        below = waiting.pop()
        beat()
        try:
            entries = os.scandir(os.path.join(top, below) if below else top)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            if not below:
                raise
            continue
        with entries:
            for entry in entries:
                name = os.path.join(below, entry.name)
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(found.st_mode) and name.count(b"/") < _DEEPEST:
                    waiting.append(name)
                yield file_row(name, found)
