"""Renames with conditions, and a whole file system made durable: one function each, no policy."""

from __future__ import annotations

import errno
import os

from .syscalls import call

_NOREPLACE, _EXCHANGE = 1, 2
#: Not every file system knows the conditions (NFS, some of FUSE).
_UNKNOWN = (errno.EINVAL, errno.ENOSYS)


def rename_new(source_directory: int, source: str, directory: int, name: str) -> None:
    """Rename; FileExistsError when something has the new name, whatever it is.

    Where the file system knows no such rename, it is looked up first: somebody who is quick
    could then still come in between.
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
    """Let each have the other's name, in one step; False where the file system cannot."""
    try:
        _renameat2(one_directory, one, other_directory, other, _EXCHANGE)
        return True
    except OSError as error:
        if error.errno in _UNKNOWN:
            return False
        raise


def sync_file_system(descriptor: int) -> None:
    """Make everything that was written to the file system of `descriptor` durable."""
    call("syncfs", descriptor)


def _renameat2(source_directory: int, source: str, directory: int, name: str, flags: int) -> None:
    try:
        call("renameat2", source_directory, os.fsencode(source), directory, os.fsencode(name), flags)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), name) from None
