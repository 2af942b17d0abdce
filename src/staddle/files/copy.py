"""One file copied to another, with its holes, and by reference where the file system can.

Everything is by descriptor: the caller has opened both ends safely.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import LayerError
from ..linux.fileio import write_all

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_CHUNK = 1 << 20
_SMALL = 1 << 16
#: Attributes that a copy has too. Never security.* (capabilities, labels) nor trusted.*.
_CARRIED = "user."


def copy_content(source: int, destination: int, status: os.stat_result) -> None:
    """All bytes of `source`, as `status` describes it, into the empty `destination`. Stops at its end."""
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
    """`source`, as `status` describes it, as the new file `name` in `here`: content, mode and times."""
    copy = os.open(name, _NEW, 0o600, dir_fd=here)
    try:
        copy_content(source, copy, status)
        os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(copy)


def copy_attributes(source: int, destination: int, *, leave_out: str = "\0") -> None:
    """The user.* attributes, but for those that begin with `leave_out`."""
    try:
        names = os.listxattr(source)
    except OSError:
        return  # a file system without any
    for name in names:
        if name.startswith(_CARRIED) and not name.startswith(leave_out):
            os.setxattr(destination, name, os.getxattr(source, name))


def unchanged(before: os.stat_result, source: int) -> None:
    """LayerError when the file was written, or replaced, since `before`."""
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
