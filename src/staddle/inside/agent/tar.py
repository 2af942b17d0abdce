"""Directories as tar, and tar as directories. The file server runs this inside, with its rights.

An archive is first unpacked next to its destination, by the same strict reader as layers (files/unpack.py).
Its files are moved into place only once all of them are complete and nothing is in their way. So an archive
that is refused, or ends early, changes nothing.
"""

from __future__ import annotations

import errno
import os
import stat

from ...errors import ArchiveRefused
from ...files.tar import END, Member, UnpackBounds, Unpacker, members, padding, write
from ...files.tree import open_deep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

_CHUNK = 1 << 18
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
#: Steps between two progress reports.
_A_WHILE = 500


# ---------------------------------------------------------------- to tar


def pack(path: bytes, pipe: int) -> None:
    """Write the contents of the directory, or the file, at `path` to `pipe`, and close it.

    Links are kept as links. Pipes, sockets and devices are left out.
    """
    with open(pipe, "wb", buffering=_CHUNK) as out:
        try:
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                root = os.open(path, _DIRECTORY | os.O_CLOEXEC)
                try:
                    _Packing(root, out).all()
                finally:
                    os.close(root)
            elif stat.S_ISREG(found.st_mode):
                parent, name = os.path.split(os.path.realpath(path))
                root = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    _Packing(root, out).entry(root, os.fsdecode(name), os.fsdecode(name))
                finally:
                    os.close(root)
            else:
                raise PermissionError(errno.EPERM, "it is a pipe, a socket or a device, not a file", path)
            out.write(END)
            out.flush()
        except BaseException:
            # Discard the buffer, as flushing it might block.
            os.dup2(null := os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC), pipe, inheritable=False)
            os.close(null)
            raise


class _Packing:
    def __init__(self, root: int, out: IO[bytes]) -> None:
        self._root, self._out = root, out
        self._linked: dict[tuple[int, int], str] = {}
        self._todo: list[str] = []

    def all(self) -> None:
        """Pack everything below the root."""
        self._todo = [""]
        while self._todo:
            path = self._todo.pop()
            try:
                here = open_deep(self._root, path, _DIRECTORY)
            except FileNotFoundError:
                continue  # deleted meanwhile
            try:
                for name in sorted(os.listdir(here)):
                    self.entry(here, name, f"{path}/{name}" if path else name)
            finally:
                os.close(here)

    def entry(self, here: int, name: str, path: str) -> None:
        """Pack the file called `name` in the directory `here`."""
        try:
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            kind = stat.S_IFMT(found.st_mode)
            if kind == stat.S_IFDIR:
                self._header(Member("directory", path), found)
                self._todo.append(path)
            elif kind == stat.S_IFLNK:
                self._header(Member("symlink", path, target=os.readlink(name, dir_fd=here)), found)
            elif kind == stat.S_IFREG:
                self._file(here, name, path)
        except FileNotFoundError:
            pass  # deleted meanwhile
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from None

    def _file(self, here: int, name: str, path: str) -> None:
        fd = os.open(name, _READ, dir_fd=here)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return
            if found.st_nlink > 1:
                first = self._linked.setdefault((found.st_dev, found.st_ino), path)
                if first != path:
                    self._header(Member("link", path, target=first), found)
                    return
            self._header(Member("file", path, size=found.st_size), found)
            left = found.st_size
            while left and (data := os.read(fd, min(left, _CHUNK))):
                self._out.write(data)
                left -= len(data)
            while left:  # it has become shorter, but its size is already in the header
                left -= self._out.write(bytes(min(left, _CHUNK)))
            self._out.write(padding(found.st_size))
        finally:
            os.close(fd)

    def _header(self, member: Member, found: os.stat_result) -> None:
        known = member.replace(mode=stat.S_IMODE(found.st_mode) & 0o777, mtime=found.st_mtime)
        write(known, self._out.write)


# ---------------------------------------------------------------- from tar


def unpack(path: bytes, pipe: int, confirmed: Callable[[], None], beat: Callable[[], None]) -> None:
    """Unpack the tar in `pipe`, which is closed, into the directory `path`, all of it or nothing.

    Existing files are replaced; directories are merged. `confirmed` is called at the end of the pipe, and
    raises if the archive is incomplete. `beat` is called now and then.
    """
    with open(pipe, "rb", buffering=_CHUNK) as source:
        destination = os.open(path, _DIRECTORY | os.O_CLOEXEC)
        aside = f".staddle-{os.urandom(8).hex()}.tmp"
        try:
            os.mkdir(aside, 0o700, dir_fd=destination)
            try:
                # By descriptor: the directory may be renamed meanwhile.
                made = open_deep(destination, aside, _DIRECTORY)
                try:
                    _make(f"/proc/self/fd/{made}/.", source)
                    _rest(source)
                    confirmed()
                    _move(made, destination, beat)
                finally:
                    os.close(made)
            finally:
                remove_tree(os.fsencode(aside), beat, directory=destination)
        finally:
            os.close(destination)


def _make(aside: str, source: IO[bytes]) -> None:
    unpacking = Unpacker(aside, UnpackBounds(), layer=False)
    there: dict[str, bool] = {}  # directories, and whether the archive itself lists them
    try:
        for member, content in members(source):
            path = plain_name(member.path)
            if not path:
                continue  # the directory itself
            if member.kind == "symlink":
                _check_link(path, member.target)
            parts = path.split("/")[:-1]
            for count in range(1, len(parts) + 1):
                above = "/".join(parts[:count])
                if above not in there:
                    there[above] = False
                    unpacking.add(Member("directory", above, 0o755, member.mtime), above, content)
            if member.kind == "directory":
                if there.get(path) is False:
                    there[path] = True  # already made, for its contents
                    continue
                there[path] = True
            unpacking.add(member, path, content)
        unpacking.finish()
    finally:
        unpacking.close()


def plain_name(path: str) -> str:
    """Normalize the name of a member. ArchiveRefused if it leads out. Pure."""
    if path.startswith("/"):
        raise _refused(f"{path!r} is an absolute path")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _refused(f"{path!r} has a .. in it")
    return "/".join(parts)


def _check_link(path: str, target: str) -> None:
    depth = path.count("/")
    if target.startswith("/"):
        raise _refused(f"the link {path!r} points out of the tree, to {target!r}")
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            raise _refused(f"the link {path!r} points out of the tree, to {target!r}")


def _rest(source: IO[bytes]) -> None:
    while data := source.read(_CHUNK):
        if data.strip(b"\0"):
            raise _refused("there are bytes after the end")


def _move(made: int, destination: int, beat: Callable[[], None]) -> None:
    """Move everything into place, after a check of the existing files."""
    moves: list[tuple[str, str]] = []
    merged = [""]
    while merged:
        path = merged.pop()
        here, there = open_deep(made, path, _DIRECTORY), open_deep(destination, path, _DIRECTORY)
        try:
            if not os.access(f"/proc/self/fd/{there}", os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path or ".")
            for name in os.listdir(here):
                below = f"{path}/{name}" if path else name
                if _decide(here, there, name, below):
                    merged.append(below)
                else:
                    moves.append((path, name))
        finally:
            os.close(here)
            os.close(there)
    for count, (path, name) in enumerate(moves):
        if count % _A_WHILE == _A_WHILE - 1:
            beat()
        here, there = open_deep(made, path, _DIRECTORY), open_deep(destination, path, _DIRECTORY)
        try:
            _rename(here, there, name)
        finally:
            os.close(here)
            os.close(there)


def _decide(here: int, there: int, name: str, path: str) -> bool:
    """Whether this directory is merged into an existing directory; otherwise it is moved."""
    ours = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
    try:
        theirs = os.stat(name, dir_fd=there, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(ours) and not stat.S_ISDIR(theirs):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if stat.S_ISDIR(theirs) and not stat.S_ISDIR(ours):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISDIR(ours):
        os.chmod(name, 0o700, dir_fd=here)  # ours, and removed at the end: its contents are moved out
    return stat.S_ISDIR(ours)


def _rename(here: int, there: int, name: str) -> None:
    found = os.stat(name, dir_fd=here, follow_symlinks=False)
    mode = stat.S_IMODE(found.st_mode)
    closed = stat.S_ISDIR(found.st_mode) and mode & 0o700 != 0o700
    if closed:  # a directory that cannot be written cannot be moved
        os.chmod(name, mode | 0o700, dir_fd=here)
    os.rename(name, name, src_dir_fd=here, dst_dir_fd=there)
    if closed:
        os.chmod(name, mode, dir_fd=there)


# ---------------------------------------------------------------- away with it


def remove_tree(path: bytes, beat: Callable[[], None], *, directory: int | None = None) -> None:
    """Remove a directory with its contents. Follows no link; uses one descriptor at any depth."""
    here = _opened(path, directory)
    above: list[tuple[str, list[str], tuple[int, int]]] = []
    try:
        names, steps = os.listdir(here), 0
        while names or above:
            steps += 1
            if not steps % _A_WHILE:
                beat()
            if names:
                name = names.pop()
                if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                    below = _opened(os.fsencode(name), here)
                    above.append((name, names, _identity(here)))
                    os.close(here)
                    here, names = below, os.listdir(below)
                else:
                    os.unlink(name, dir_fd=here)
            else:
                up = os.open("..", _DIRECTORY | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = up
                name, names, identity = above.pop()
                if _identity(here) != identity:
                    raise OSError(errno.ESTALE, "it was moved at the same time", name)
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(path, dir_fd=directory)


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _opened(name: bytes, directory: int | None) -> int:
    """Open a directory to remove entries from; grant ourselves access if we own it."""
    flags = _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
        if os.fstat(fd).st_mode & 0o300 == 0o300:
            return fd
        os.close(fd)
    except PermissionError:
        pass
    try:
        os.chmod(name, 0o700, dir_fd=directory)
    except PermissionError:
        pass  # not ours: the kernel decides whether it can be removed
    return os.open(name, flags, dir_fd=directory)


def _refused(why: str) -> ArchiveRefused:
    return ArchiveRefused("the archive is refused", why=why, fix="nothing was changed; make it again")
