"""Files beneath an open directory: read, write, remove, make, list, and never anywhere else.

All this runs with our own rights in a tree that an agent can change meanwhile. So opening a file follows no
link, and a written file appears by a rename in a directory that we hold open. A reader can ask which file a
link names (`real_name`), and opens that file by its own name. The kernel refuses paths that lead out
(openat2); only `translated` turns its refusals into errors.

`open_for_write`, `safe_mkdir_all` and `safe_remove` take the path of an anchor, for code without a descriptor
of it. The caller vouches for the anchor, which may be a link; nothing beneath it may.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import PathEscape, PathNotAllowed, PolicyError
from ..linux.fileio import write_all
from ..linux.openat2 import open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_DIRECTORY = os.O_PATH | os.O_DIRECTORY
#: The kernel follows as many links in one path.
_MOST_LINKS = 40


def relative(path: AnyPath) -> str:
    """The normal form of `path`. PathEscape for an absolute path or one with `..`; does not read the disk."""
    text = os.fsdecode(path)
    if text.startswith("/"):
        raise PathEscape(
            f"{text!r} is an absolute path",
            why="files are named relative to the working directory",
            fix=f"use {os.path.basename(text) or '.'!r} if it lies there",
        )
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathEscape(
            f"{text!r} has a .. in it",
            why="it could leave the working directory",
            fix="name the file without it",
        )
    if "\0" in text:
        raise PolicyError(f"{text!r} has a NUL in it", why="no path can contain one", fix="take it out")
    try:
        os.fsencode(text)
    except UnicodeError:
        raise PolicyError(
            f"{text!r} is not a valid path",
            why="it has a lone surrogate in it, and cannot be encoded as UTF-8",
            fix="pass bytes through os.fsdecode()",
        ) from None
    if not parts or text.endswith(("/", "/.")):
        raise PathNotAllowed(
            f"{text!r} names a directory, not a file",
            fix="name a file",
            why="it ends in a slash, or is the directory itself",
        )
    return "/".join(parts)


def translated(error: OSError, path: str) -> Exception:
    """Map the kernel's refusal to our error. Ordinary errors stay Python's own."""
    if error.errno in (errno.EXDEV, errno.ELOOP):
        return PathEscape(
            f"{path!r} leads through a link or out of the working directory",
            why=os.strerror(error.errno),
            fix="name the real file",
        )
    if error.errno == errno.EAGAIN:
        return PathNotAllowed(
            f"{path!r} could not be looked up safely",
            why="the tree was changed at the same time",
            fix="try again",
        )
    if error.errno == errno.ENOSYS:
        return PathNotAllowed(
            f"{path!r} cannot be opened safely here",
            why="this kernel has no openat2, or a filter hides it",
            fix="use Linux 5.6 or newer",
        )
    return OSError(error.errno, os.strerror(error.errno or 0), path)


def open_checked(root: int, path: str, flags: int) -> int:
    """open_beneath, with refusals as our errors."""
    try:
        return open_beneath(root, path, flags)
    except OSError as error:
        raise translated(error, path) from None


def real_name(root: int, path: str) -> str:
    """The name, without links, of the file at `path` beneath `root`. PathEscape if a link leads out.

    An absolute link always leads out. The tree may change a moment later: check the returned name, and open
    it with a function that follows no link.
    """
    try:
        os.close(open_beneath(root, path, os.O_PATH))
        return path
    except OSError as error:
        if error.errno != errno.ELOOP:
            return path  # opening it will report the reason
    todo, found, links = path.split("/"), list[str](), 0
    try:
        while todo:
            name = todo.pop(0)
            if name in ("", "."):
                continue
            if name == "..":
                if not found:
                    raise OSError(errno.EXDEV, "")
                found.pop()
                continue
            target = _target(root, "/".join(found), name)
            if target is None:
                found.append(name)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, "")
            if target.startswith("/"):
                raise OSError(errno.EXDEV, "")
            todo[:0] = target.split("/")
    except OSError as error:
        raise translated(error, path) from None
    return "/".join(found) or "."


def _target(root: int, directory: str, name: str) -> str | None:
    """The target of the link `name` in `directory`, a path without links; None if it is not a link."""
    here = open_beneath(root, directory or ".", _DIRECTORY)
    try:
        return os.readlink(name, dir_fd=here)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None
    finally:
        os.close(here)


def open_file(root: int, path: str) -> int:
    """A regular file, opened for reading; the caller closes it."""
    _regular(root, path)
    # Something else may have replaced the file: open without blocking, and check its type again.
    fd = open_checked(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _refuse_special(os.fstat(fd).st_mode, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(root: int, path: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes."""
    with open(open_file(root, path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", path)
    return data


def make_directories(root: int, path: str, mode: int = 0o755) -> int:
    """Make `path` and its missing parents; return a descriptor (O_PATH), which the caller closes."""
    try:
        return open_beneath(root, path or ".", _DIRECTORY)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise translated(error, path) from None
    here = os.dup(root)
    try:
        for name in path.split("/"):
            try:
                below = open_beneath(here, name, _DIRECTORY)
            except FileNotFoundError:
                try:
                    os.mkdir(name, mode, dir_fd=here)
                except FileExistsError:
                    pass  # another process was faster; the next line opens its directory
                below = open_beneath(here, name, _DIRECTORY)
            above, here = here, below
            os.close(above)
        return here
    except OSError as error:
        os.close(here)
        raise translated(error, path) from None


def remove(root: int, path: str) -> None:
    """Remove a file, or a link itself. The target of a link is never touched."""
    parent, _, name = path.rpartition("/")
    directory = open_checked(root, parent or ".", _DIRECTORY)
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        raise translated(error, path) from None
    finally:
        os.close(directory)


class PendingFile:
    """A file being written. Closing it makes the whole file appear under its name.

    As a context manager it is discarded if the block raises. Other hard links to the previous file keep their
    old content.
    """

    def __init__(
        self,
        directory: int,
        name: str,
        path: str,
        mode: int,
        before: os.stat_result | None,
        *,
        new: bool = False,
    ) -> None:
        """With `new`, close() raises FileExistsError if the name exists by then."""
        self._directory, self._name, self._path, self._is_new = directory, name, path, new
        self._temporary = f".staddle-{os.urandom(8).hex()}.tmp"
        try:
            self._fd, self._named = _unnamed(directory, self._temporary, mode & 0o777)
        except BaseException as error:
            os.close(directory)
            if isinstance(error, OSError):
                raise translated(error, path) from None
            raise
        try:
            if before is not None:
                _take_over(self._fd, before)
        except BaseException:
            self.discard()
            raise

    def write(self, data: bytes | memoryview) -> int:
        """Add all of `data`."""
        if self._fd < 0:
            raise ValueError("the file has been closed")
        write_all(self._fd, data)
        return len(data)

    def fileno(self) -> int:
        """The descriptor that is written to."""
        return self._fd

    def close(self) -> None:
        """Put the file under its name. Does nothing after `discard` or a second time."""
        if self._fd < 0:
            return
        try:
            if not self._named:
                self._named = True
                here = f"/proc/self/fd/{self._fd}"
                os.link(here, self._temporary, dst_dir_fd=self._directory, follow_symlinks=True)
            fd, self._fd = self._fd, -1
            os.close(fd)  # first: some file systems report a full disk here
            if self._is_new:
                # link() refuses an existing name; rename() would replace it.
                at = self._directory
                os.link(self._temporary, self._name, src_dir_fd=at, dst_dir_fd=at)
                os.unlink(self._temporary, dir_fd=self._directory)
            else:
                os.rename(self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError as error:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                os.close(fd)
            self._drop()
            raise translated(error, self._path) from None
        os.close(self._directory)

    def discard(self) -> None:
        """Drop the written data."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._drop()

    def _drop(self) -> None:
        try:
            if self._named:
                os.unlink(self._temporary, dir_fd=self._directory)
        except OSError:
            pass  # the directory is gone, and the file with it
        os.close(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.discard()


def _unnamed(directory: int, name: str, mode: int) -> tuple[int, bool]:
    """(a new file, whether it needs the name). An unnamed file disappears if we are killed."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(".", flags | os.O_TMPFILE, mode, dir_fd=directory), False
    except OSError:
        pass  # some file systems lack it; a named file will report any other reason
    return os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=directory), True


def pending(root: int, path: str, mode: int = 0o644) -> PendingFile:
    """A file to write at `path`; makes missing parents. An existing file there must be regular."""
    before = _writable_target(root, path)
    parent, _, name = path.rpartition("/")
    return PendingFile(make_directories(root, parent), name, path, mode, before)


def _writable_target(root: int, path: str) -> os.stat_result | None:
    """The status of an existing, writable regular file; None if it is missing. Refuses anything else."""
    try:
        _regular(root, path)
        fd = open_checked(root, path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        _refuse_special(found.st_mode, path)
        return found
    finally:
        os.close(fd)


def _regular(root: int, path: str) -> None:
    """Check without opening: opening a device may act, and opening a pipe may block."""
    fd = open_checked(root, path, os.O_PATH)
    try:
        _refuse_special(os.fstat(fd).st_mode, path)
    finally:
        os.close(fd)


def _refuse_special(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise PathNotAllowed(
            f"{path!r} is not a regular file", why="it is a pipe, a socket or a device", fix="name a file"
        )


def _take_over(fd: int, before: os.stat_result) -> None:
    """Give the new file the permissions and, if allowed, the owner of the old one."""
    ours = os.fstat(fd)
    if (before.st_uid, before.st_gid) != (ours.st_uid, ours.st_gid):
        try:
            os.fchown(fd, before.st_uid, before.st_gid)
        except PermissionError:
            pass
        ours = os.fstat(fd)
    mode = before.st_mode & 0o777  # set-user-ID was for the old content
    if ours.st_mode & 0o7777 != mode:
        os.fchmod(fd, mode)


def walk(
    root: int, start: str, enter: Callable[[str], bool], *, special: bool = False
) -> Iterator[tuple[str, bool]]:
    """(path, is a directory) for files, links and directories below `start`; one directory is open at a time.

    Follows no link. Special files are left out unless `special` is set, because nothing here would open them.
    A directory that is gone, replaced or inaccessible by then counts as empty.
    """
    todo = [start]
    while todo:
        directory = todo.pop()
        try:
            fd = open_beneath(root, directory or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            with os.scandir(fd) as entries:
                found = [
                    (entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in entries
                    if special or _is_plain(entry)
                ]
        except OSError:
            continue
        finally:
            os.close(fd)
        for name, is_directory in sorted(found):
            path = f"{directory}/{name}" if directory else name
            yield path, is_directory
            if is_directory and enter(path):
                todo.append(path)


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() or entry.is_dir() or entry.is_file()


def open_for_write(anchor: AnyPath, rel_path: AnyPath, perm: int = 0o644) -> PendingFile:
    """A file to write beneath `anchor`; closing it makes the whole file appear."""
    path = relative(rel_path)
    root = _opened(anchor, path)
    try:
        return pending(root, path, perm)
    finally:
        os.close(root)


def safe_mkdir_all(anchor: AnyPath, rel_dir: AnyPath, perm: int = 0o755) -> None:
    """Make the directory `rel_dir` and its missing parents beneath `anchor`."""
    path = relative(os.fsdecode(rel_dir).rstrip("/") or os.fsdecode(rel_dir))
    root = _opened(anchor, path)
    try:
        os.close(make_directories(root, path, perm))
    finally:
        os.close(root)


def safe_remove(anchor: AnyPath, rel_path: AnyPath) -> None:
    """Remove a file beneath `anchor`; a link there is removed itself, never followed."""
    path = relative(rel_path)
    root = _opened(anchor, path)
    try:
        remove(root, path)
    finally:
        os.close(root)


def _opened(anchor: AnyPath, path: str) -> int:
    """Open the directory `anchor` for a change at `path` beneath it. Refuses staddle's own directories."""
    from .. import places  # not in a sandbox, where this module runs, too

    places.refuse(os.path.realpath(os.fsdecode(anchor)), path)
    return os.open(anchor, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
