"""Private directories: made before the command starts and removed after it; and copies of files."""

from __future__ import annotations

import errno
import os
import stat

from ..errors import LayerError
from ..linux.fileio import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ATTEMPTS = 10


def make(directories: Sequence[bytes], uid: int = -1, gid: int = -1) -> None:
    """Make these directories, private to their owner. The first must be new: its name is secret until now."""
    for directory in directories:
        try:
            os.mkdir(directory, 0o700)
            if uid >= 0:
                os.chown(directory, uid, gid)
        except BaseException:
            if directory != directories[0]:
                remove(directories)
            raise


#: Removed after all other files of a directory.
LOCK = "lock"


def remove(directories: Sequence[bytes], rest: Callable[[], object] | None = None) -> None:
    """Remove the first directory with everything below. Never raises; never follows a link.

    `rest` is called now and then, so that background callers can pause. Entries that cannot be removed stay;
    everything else is removed.

    The command chose names, depth, number and modes of the entries. So nothing below the top is removed by
    path, and no directory is entered from another one. Each is moved up to the top first, so that depth costs
    neither stack nor descriptors.
    """
    if not directories:
        return
    for _ in range(_ATTEMPTS):
        try:
            top = _open_directory(directories[0])
            try:
                _empty(top, rest or _go_on)
            finally:
                os.close(top)
            os.rmdir(directories[0])
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                continue  # the kernel, or a process that still runs, added an entry
        return  # success, already gone, or a file system that refuses removal


def _go_on() -> None:
    pass


def _empty(top: int, rest: Callable[[], object]) -> None:
    # Names that the command cannot have used: it has ended.
    prefix, serial = os.urandom(8).hex(), 0
    stuck: dict[str, OSError] = {}
    # Remove the lock of a store last: without it, a partly removed store looks like a new one if we are
    # killed.
    while names := [name for name in os.listdir(top) if name not in stuck and name != LOCK] or (
        [LOCK] if not stuck and LOCK in os.listdir(top) else []
    ):
        for name in names:
            rest()
            try:
                if _unlink(top, name):
                    continue
                directory = _open_directory(name, top)
                try:
                    for inner in os.listdir(directory):
                        rest()
                        if not _unlink(directory, inner):
                            os.close(_open_directory(inner, directory))  # moving it requires rights on it
                            serial += 1
                            os.rename(inner, f"{prefix}-{serial}", src_dir_fd=directory, dst_dir_fd=top)
                finally:
                    os.close(directory)
                os.rmdir(name, dir_fd=top)
            except FileNotFoundError:
                continue  # removed by somebody else meanwhile
            except OSError as error:
                stuck[name] = error
    if stuck:
        raise next(iter(stuck.values()))


def _unlink(directory: int, name: str) -> bool:
    """Remove a file or an empty directory; False for a directory that is not empty."""
    try:
        os.unlink(name, dir_fd=directory)
        return True
    except IsADirectoryError:
        pass
    try:
        os.rmdir(name, dir_fd=directory)
        return True
    except OSError:
        return False


def _open_directory(name: str | bytes, parent: int | None = None) -> int:
    """Open a directory of ours, restoring the rights that the command removed."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, os.O_PATH | flags, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
    return os.open(name, os.O_RDONLY | flags, dir_fd=parent)


# Copy one file to another, with its holes, and by reference if the file system can.
# Everything works by descriptor: the caller has opened both ends safely.


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_CHUNK = 1 << 20
_SMALL = 1 << 16
#: Attributes to copy. Never security.* (capabilities, labels) nor trusted.*.
_CARRIED = "user."


def copy_content(source: int, destination: int, status: os.stat_result) -> None:
    """Copy all bytes of `source`, according to `status`, into the empty `destination`. Stops at its end."""
    size = status.st_size
    if size <= _SMALL:
        write_all(destination, os.read(source, size) if size else b"")
        return
    if _cloned(source, destination):
        return
    if status.st_blocks * 512 < size:
        _copy_with_holes(source, destination, size)
        return
    left = size
    while left > 0 and (data := os.read(source, min(left, _CHUNK))):
        write_all(destination, data)
        left -= len(data)


def copy_file(source: int, here: int, name: str, status: os.stat_result) -> None:
    """Copy `source`, according to `status`, to the new file `name` in `here`: content, mode and times."""
    copy = os.open(name, _NEW, 0o600, dir_fd=here)
    try:
        copy_content(source, copy, status)
        os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(copy)


def copy_attributes(source: int | str, destination: int | str, *, leave_out: str = "\0") -> None:
    """Copy the user.* attributes, except those that begin with `leave_out`."""
    try:
        names = os.listxattr(source)
    except OSError:
        return  # a file system without attributes
    for name in names:
        if name.startswith(_CARRIED) and not name.startswith(leave_out):
            os.setxattr(destination, name, os.getxattr(source, name))


def unchanged(before: os.stat_result, source: int) -> None:
    """Raise LayerError if the file was written or replaced since `before`."""
    now = os.fstat(source)
    if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        raise LayerError(
            "a file was changed while it was copied",
            why="something in the sandbox is still writing",
            fix="wait for its commands to end, or stop them, and try again",
        )


def _cloned(source: int, destination: int) -> bool:
    from fcntl import ioctl

    try:
        ioctl(destination, _FICLONE, source)
        return True
    except OSError:
        return False  # another file system, or one that cannot share blocks


def _copy_with_holes(source: int, destination: int, size: int) -> None:
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # a hole up to the end
            raise
        end = min(os.lseek(source, start, os.SEEK_HOLE), size)
        at = start
        while at < end:
            data = os.pread(source, min(end - at, _CHUNK), at)
            if not data:
                return
            at += os.pwrite(destination, data, at)
    os.ftruncate(destination, size)
