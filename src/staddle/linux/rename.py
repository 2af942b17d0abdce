"""Conditional renames, and syncing a whole file system: one function each, no policy."""

from __future__ import annotations

import errno
import os

from .syscalls import ctypes, number

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
