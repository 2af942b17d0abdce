"""Read and write descriptors without a file object: small files, files of /proc, memory files."""

from __future__ import annotations

import errno
import os
import stat
import sys

from .syscalls import ctypes, number


def read_text(path: str, most: int, flags: int = 0) -> str:
    """Return the beginning of a regular file; "" if it is none, or cannot be read. Never blocks."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, most).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(fd)


def read_whole(path: str) -> bytes:
    """Return the contents of a file of ours, or of the kernel."""
    data = bytearray()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := os.read(fd, 1 << 16):
            data += chunk
    finally:
        os.close(fd)
    return bytes(data)


def read_if_there(path: str) -> bytes:
    """Return the contents of such a file; empty if it cannot be read."""
    try:
        return read_whole(path)
    except OSError:
        return b""


def current_directory() -> str | None:
    """Return the working directory of this process, if it still exists."""
    try:
        here = os.getcwd()
    except OSError:
        return None
    return here if here.startswith("/") else None


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, however many calls it takes."""
    done = os.write(fd, data) if data else 0
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])


def memory_file(data: bytes) -> int:
    """Make a memory file with these contents, and return its descriptor. Its offset is at the end."""
    fd = os.memfd_create("staddle", os.MFD_CLOEXEC)
    try:
        write_all(fd, data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def put(fd: int, data: bytes) -> None:
    """Write the whole of `data` at the beginning of a file."""
    done = os.pwrite(fd, data, 0)
    while done < len(data):
        done += os.pwrite(fd, data[done : done + (1 << 20)], done)


def resize_pipe(fd: int, size: int) -> None:
    """Set the capacity of a pipe to `size` bytes, if this user may have that."""
    import fcntl  # not in every process that reads files

    try:
        fcntl.fcntl(fd, 1031, size)  # F_SETPIPE_SZ
    except OSError:
        pass  # its capacity stays unchanged


def unread_bytes(fd: int) -> int:
    """Return how many bytes wait in a pipe."""
    import fcntl

    return int.from_bytes(fcntl.ioctl(fd, 0x541B, bytes(4)), sys.byteorder)  # FIONREAD


# Conditional renames, and syncing a whole file system: one function each, no policy.


_NOREPLACE, _EXCHANGE = 1, 2
#: Not every file system supports the conditions (NFS, some FUSE file systems).
_UNKNOWN = (errno.EINVAL, errno.ENOSYS)

# A separate binding with declared types, because a commit renames ten thousand files. It releases the GIL,
# which syncing a disk would otherwise hold for its whole duration.
_libc = ctypes.CDLL(None, use_errno=True)
_rename = _libc["syscall"]
_rename.restype = ctypes.c_long
_rename.argtypes = (
    ctypes.c_long,
    ctypes.c_long,
    ctypes.c_char_p,
    ctypes.c_long,
    ctypes.c_char_p,
    ctypes.c_ulong,
)
_sync = _libc["syscall"]
_sync.restype = ctypes.c_long
_sync.argtypes = (ctypes.c_long, ctypes.c_long)


def rename_new(source_directory: int, source: str, directory: int, name: str) -> None:
    """Rename; FileExistsError if anything has the new name.

    If the file system does not support this, we check first. Then another process could still create the name
    in between.
    """
    try:
        _renameat2(source_directory, source, directory, name, _NOREPLACE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(source, name, src_dir_fd=source_directory, dst_dir_fd=directory)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None


def exchange_names(one_directory: int, one: str, other_directory: int, other: str) -> bool:
    """Swap two names in one step; False if the file system cannot."""
    try:
        _renameat2(one_directory, one, other_directory, other, _EXCHANGE)
        return True
    except OSError as error:
        if error.errno in _UNKNOWN:
            return False
        raise


def sync_file_system(descriptor: int) -> None:
    """Make everything durable that was written to the file system of `descriptor`."""
    if _sync(number("syncfs"), descriptor) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"syncfs: {os.strerror(error)}")


def _renameat2(source_directory: int, source: str, directory: int, name: str, flags: int) -> None:
    one, other = os.fsencode(source), os.fsencode(name)
    if _rename(number("renameat2"), source_directory, one, directory, other, flags) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), name)
