"""The file server: a process of the sandbox that opens, lists and writes files for the host program.

The agent forks it. It confines itself like every command, and then serves instead of running a program. It
has only the sandbox's view and the rights of the sandbox's user. So a link leads where it leads a command.
Through it, the host program can read and write only what a command may.

Nothing in it is a boundary. File contents travel by descriptor: it hands out files that it opened for
reading, and copies data to write from a pipe.
"""

from __future__ import annotations

import errno
import os
import stat

from ...errors import StaddleError
from ...files import beneath
from ...files.globs import Glob
from ...ipc import file_messages
from ...ipc.wire import Malformed
from ...linux.fileio import write_all
from ...linux.openat2 import allow_steps, open_without_symlinks
from ...linux.process import mount_id
from . import tar

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, NoReturn

    from ...ipc.file_messages import FileRow

_CHUNK = 1 << 18
#: A walk reports progress after so many directories.
_A_WHILE = 200
#: Placeholder where only name and kind are requested.
_NOTHING_MORE = (0, 0, 0, 0, b"")


def serve(socket: _socket.socket) -> NoReturn:
    """Answer requests until the socket is closed. Never returns."""
    allow_steps()
    server = FileServer(socket)
    while True:
        try:
            said = file_messages.receive_message(socket)
        except (Malformed, OSError):
            said = None
        if said is None:
            os._exit(0)
        try:
            server.answer(said)
        except OSError:
            os._exit(0)  # the host program does not read any more
        finally:
            said.close()


class FileServer:
    """Serves the requests of one socket, one at a time."""

    def __init__(self, socket: _socket.socket) -> None:
        self._socket = socket
        self._does: dict[bytes, tuple[Callable[..., Any], int, int]] = {
            file_messages.OPEN: (self._open, 1, 0),
            file_messages.LIST: (self._list, 1, 1),
            file_messages.TREE: (self._tree, 1, 0),
            file_messages.READLINK: (self._readlink, 1, 0),
            file_messages.REALPATH: (self._realpath, 1, 0),
            file_messages.CHMOD: (os.chmod, 1, 1),
            file_messages.COPY: (self._copy, 2, 1),
            file_messages.APPEND: (self._append, 2, 1),
            file_messages.STATUS: (self._status, 1, 1),
            file_messages.MAKE: (self._make, 1, 1),
            file_messages.RENAME: (self._rename, 2, 1),
            file_messages.REMOVE: (self._remove, 1, 1),
            file_messages.GLOB: (self._glob, 2, 0),
            file_messages.REAL: (self._real, 1, 0),
            file_messages.OPEN_BENEATH: (self._open_beneath, 2, 0),
            file_messages.REMOVE_BENEATH: (self._remove_beneath, 2, 0),
            file_messages.GLOB_BENEATH: (self._glob_beneath, 2, 0),
        }

    def answer(self, said: file_messages.Said) -> None:
        """Carry out one request and send the result. OSError if the host program does not read any more."""
        operation, words, numbers = said.fields
        if said.letter != file_messages.QUESTION or operation in (file_messages.ALL, file_messages.DROP):
            return  # the end of a request that has failed before
        try:
            rows, handed = self._done(operation, words, numbers, said)  # type: ignore[arg-type]
        except OSError as error:
            path = error.filename if isinstance(error.filename, str | bytes) else b""
            why = "" if error.strerror == os.strerror(error.errno or 0) else error.strerror or ""
            self._failed(file_messages.OF_KERNEL, error.errno or errno.EIO, os.fsencode(path), why, "")
        except StaddleError as error:
            kind = type(error).__name__.encode()
            kind = kind if kind in file_messages.KINDS else b"PolicyError"
            self._failed(kind, 0, _bytes(error.what), error.why, error.fix)
        except (Malformed, ValueError, MemoryError, RecursionError) as error:
            self._failed(file_messages.OF_KERNEL, errno.EINVAL, b"", str(error), "")
        else:
            try:
                file_messages.send_message(
                    self._socket, file_messages.LAST, rows, descriptors=() if handed < 0 else (handed,)
                )
            finally:
                if handed >= 0:
                    os.close(handed)

    def _done(
        self, operation: bytes, words: tuple[bytes, ...], numbers: tuple[int, ...], said: file_messages.Said
    ) -> tuple[tuple[object, ...], int]:
        """Carry out a request; return (the last rows, a descriptor to hand out or -1)."""
        if any(b"\0" in word for word in words[:1]):
            raise Malformed("a path has a NUL in it")
        if operation == file_messages.WRITE_MANY:
            self._write_many(words, numbers)
            return (), -1
        if operation in (file_messages.WRITE, file_messages.CREATE, file_messages.WRITE_BENEATH):
            self._write(operation, words, numbers, said)
            return (), -1
        if operation == file_messages.PACK:
            pipe, said.descriptor = said.descriptor, -1
            tar.pack(words[0], pipe)
            return (), -1
        if operation == file_messages.UNPACK:
            pipe, said.descriptor = said.descriptor, -1
            tar.unpack(words[0], pipe, self._confirmed, self._beat)
            return (), -1
        function, paths, count = self._does.get(operation, (None, 0, 0))
        if function is None or len(words) != paths or len(numbers) != count:
            raise Malformed(f"there is no {operation!r} of {len(words)} paths and {len(numbers)} numbers")
        result = function(*words, *numbers)
        if isinstance(result, int):
            return (), result
        return (tuple(result), -1) if result else ((), -1)

    def _failed(self, kind: bytes, number: int, what: bytes, why: str, fix: str) -> None:
        file_messages.send_message(
            self._socket, file_messages.ERROR, kind, number, what[:8192], _bytes(why), _bytes(fix)
        )

    def _say_rows(self, rows: Iterable[FileRow]) -> None:
        """Send many rows, in messages of a suitable size."""
        waiting: list[FileRow] = []
        size = 0
        for row in rows:
            size += len(row[0]) + 40
            waiting.append(row)
            if size > file_messages.ENOUGH:
                file_messages.send_message(self._socket, file_messages.MORE, tuple(waiting))
                waiting, size = [], 0
        if waiting:
            file_messages.send_message(self._socket, file_messages.MORE, tuple(waiting))

    def _beat(self) -> None:
        """Report that we are still working."""
        file_messages.send_message(self._socket, file_messages.MORE, ())

    # ---------------------------------------------------------------- files, as any program sees them

    def _open(self, path: bytes) -> int:
        _refuse_special(os.stat(path).st_mode)
        # It may have been replaced since. So we open it without waiting, and check again. We open the
        # resolved name, because following the links of /proc would lead to our own program.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(os.path.realpath(path), flags)
        try:
            _refuse_special(os.fstat(fd).st_mode)
            _refuse_ourselves(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _list(self, path: bytes, follow: int) -> None:
        def rows() -> Iterable[FileRow]:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        yield file_row(entry.name, _status(entry, bool(follow)))
                    except FileNotFoundError:
                        continue  # deleted meanwhile

        self._say_rows(rows())

    def _tree(self, path: bytes) -> None:
        self._say_rows(tree(path, self._sometimes()))

    def _sometimes(self) -> Callable[[], None]:
        """Return a function to call for each directory; it reports to the host program that we are alive."""
        looked = 0

        def beat() -> None:
            nonlocal looked
            looked += 1
            if not looked % _A_WHILE:
                self._beat()

        return beat

    def _readlink(self, path: bytes) -> list[FileRow]:
        return [file_row(os.readlink(path), os.lstat(path))]

    def _realpath(self, path: bytes) -> list[FileRow]:
        real = os.path.realpath(path, strict=True)
        return [file_row(real, os.lstat(real))]

    def _copy(self, source: bytes, target: bytes, replace: int) -> None:
        copy(source, target, bool(replace), self._sometimes())

    def _append(self, path: bytes, data: bytes, parents: int) -> None:
        if parents:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        append(path, data)

    def _status(self, path: bytes, follow: int) -> list[FileRow]:
        return [file_row(os.path.basename(path.rstrip(b"/")), os.stat(path, follow_symlinks=bool(follow)))]

    def _make(self, path: bytes, parents: int) -> None:
        if parents:
            os.makedirs(path, exist_ok=True)
        else:
            os.mkdir(path)

    def _rename(self, old: bytes, new: bytes, replace: int) -> None:
        if not replace and os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        os.rename(old, new)

    def _remove(self, path: bytes, whole: int) -> None:
        if whole and stat.S_ISDIR(os.lstat(path).st_mode):
            tar.remove_tree(path, self._beat)
        else:
            os.unlink(path)

    def _glob(self, directory: bytes, pattern: bytes) -> None:
        root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._say_matches(root, pattern, special=True)

    def _real(self, path: bytes) -> list[FileRow]:
        real = os.path.realpath(path, strict=True)
        found = os.stat(real)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return [file_row(real, found)]

    # ---------------------------------------------------------------- beneath a directory

    def _open_beneath(self, directory: bytes, path: bytes) -> int:
        root = _root(directory)
        try:
            fd = beneath.open_file(root, beneath.real_name(root, os.fsdecode(path)))
        finally:
            os.close(root)
        try:
            _refuse_ourselves(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _remove_beneath(self, directory: bytes, path: bytes) -> None:
        root = _root(directory)
        try:
            beneath.remove(root, os.fsdecode(path))
        finally:
            os.close(root)

    def _glob_beneath(self, directory: bytes, pattern: bytes) -> None:
        self._say_matches(_root(directory), pattern, special=False)

    def _say_matches(self, root: int, pattern: bytes, *, special: bool) -> None:
        """Send the names that match, each with only whether it is a directory. Closes `root`."""
        glob = Glob(os.fsdecode(pattern))
        depth, looked = len(glob.head), 0

        def enter(path: str) -> bool:
            nonlocal looked
            looked += 1
            if not looked % _A_WHILE:
                self._beat()
            return glob.deep or path.count("/") + 1 < depth

        def rows() -> Iterable[FileRow]:
            if glob.prefix and glob.matches(glob.prefix):  # `docs/**` matches docs too
                yield os.fsencode(glob.prefix), stat.S_IFDIR, *_NOTHING_MORE
            for path, is_directory in beneath.walk(root, glob.prefix, enter, special=special):
                if glob.matches(path):
                    yield os.fsencode(path), stat.S_IFDIR if is_directory else 0, *_NOTHING_MORE

        try:
            os.close(beneath.open_checked(root, glob.prefix or ".", os.O_PATH | os.O_DIRECTORY))
            self._say_rows(rows())
        except (FileNotFoundError, NotADirectoryError):
            return
        finally:
            os.close(root)

    # ---------------------------------------------------------------- writing

    def _write(
        self, operation: bytes, words: tuple[bytes, ...], numbers: tuple[int, ...], said: file_messages.Said
    ) -> None:
        paths = 2 if operation == file_messages.WRITE_BENEATH else 1
        by_pipe = said.descriptor >= 0
        if len(words) != paths + (not by_pipe) or len(numbers) != 1:
            raise Malformed("the request to write is malformed")
        if operation != file_messages.WRITE_BENEATH:
            target = _pending(words[0], make=bool(numbers[0]), new=operation == file_messages.CREATE)
        else:
            root = _root(words[0])
            try:
                target = beneath.pending(root, os.fsdecode(words[1]))
            finally:
                os.close(root)
        with target:
            if not by_pipe:
                target.write(words[-1])
                return
            while chunk := os.read(said.descriptor, _CHUNK):
                target.write(chunk)
            self._confirmed()

    def _write_many(self, words: tuple[bytes, ...], numbers: tuple[int, ...]) -> None:
        if len(words) % 2 or len(numbers) != 1 or any(b"\0" in path for path in words[::2]):
            raise Malformed("the request to write is malformed")
        for path, content in zip(words[::2], words[1::2], strict=True):
            try:
                with _pending(path, make=bool(numbers[0])) as target:
                    target.write(content)
            except OSError as error:
                error.filename = path
                raise

    def _confirmed(self) -> None:
        """Wait for the message that the pipe brought everything: its writer may have died."""
        said = file_messages.receive_message(self._socket)
        if said is not None:
            said.close()
        if said is None or said.fields[0] != file_messages.ALL:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))


class _InPlace:
    """A file that is written in place: no file can be created next to it, or it is a mount."""

    def __init__(self, path: bytes) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            _refuse_special(os.fstat(self._fd).st_mode)
            os.ftruncate(self._fd, 0)
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, data: bytes) -> int:
        write_all(self._fd, data)
        return len(data)

    def __enter__(self) -> _InPlace:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _pending(path: bytes, *, make: bool, new: bool = False) -> beneath.PendingFile | _InPlace:
    """Open a file to write at `path`, or at the target of a link there; it appears once it is complete.

    With `new`, fail if the path exists, even if it is created meanwhile.
    """
    if path.endswith(b"/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if new and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    real = os.path.realpath(path)
    before = _before(real)
    parent, name = os.path.split(real)
    if make:
        os.makedirs(parent, exist_ok=True)
    directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if before is not None and _is_mounted(directory, name):
        os.close(directory)
        return _InPlace(real)
    try:
        return beneath.PendingFile(directory, os.fsdecode(name), os.fsdecode(path), 0o644, before, new=new)
    except OSError as error:
        if before is None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return _InPlace(real)


def _before(path: bytes) -> os.stat_result | None:
    """Return the status of an existing, writable file; None if there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):  # realpath gave up on it
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    _refuse_special(found.st_mode)
    if not os.access(path, os.W_OK):
        # Let the kernel raise its own error.
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    return found


def _is_mounted(directory: int, name: bytes) -> bool:
    """Whether the file is a mount point, which cannot be replaced."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return False
    try:
        return mount_id(fd) != mount_id(directory)
    except OSError:
        return False
    finally:
        os.close(fd)


def _root(directory: bytes) -> int:
    return open_without_symlinks(os.fsdecode(directory), os.O_PATH | os.O_DIRECTORY)


def _refuse_special(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise PermissionError(errno.EPERM, "it is a pipe, a socket or a device, not a file")


def _refuse_ourselves(fd: int) -> None:
    """Refuse our own files in /proc: we are a fork of the agent, not a process of the sandbox."""
    try:
        where = os.readlink(f"/proc/self/fd/{fd}".encode())
    except OSError:
        return  # there is no /proc, and none of our files in it
    ours = {b"%d" % os.getpid(), os.readlink(b"/proc/self")}  # /proc may be that of an outer container
    if where.startswith(b"/proc/") and not ours.isdisjoint(where.split(b"/")):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _status(entry: os.DirEntry[bytes], follow: bool) -> os.stat_result:
    """Return the status of the entry, or with `follow` of a link's target, if that exists."""
    try:
        return entry.stat(follow_symlinks=follow)
    except OSError:
        return entry.stat(follow_symlinks=False)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape" if text.isprintable() else "backslashreplace")[:8192]


# Operations of the file server that need several calls: links, copies, trees, names of owners.
#
# They have the rights and the view of the sandbox's user, like the whole file server.


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
