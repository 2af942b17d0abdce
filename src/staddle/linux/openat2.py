"""Open a name without following a planted link out of the tree (openat2, Linux 5.6).

A process that can write a directory can put a symbolic link in it. A trusted process that opens a path
through that directory would follow the link with its own rights. Here the kernel refuses instead, at every
component. There is no fallback to another call. ENOSYS (an old kernel, or a filter that hides the call) and
EAGAIN (a rename raced with the lookup) reach the caller as refusals.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from .syscalls import call

AT_FDCWD = -100
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10

_HOW = struct.Struct("QQQ")  # struct open_how: flags, mode, resolve


def open_beneath(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` below the open `directory`, following no link and never leaving it.

    The descriptor is close-on-exec. ELOOP: a component is a link. EXDEV: the path leads out.
    """
    if _by_steps:
        return _opened_by_steps(directory, path, flags, mode)
    return _openat2(
        directory, path, flags, mode, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    )


def how_without_symlinks(flags: int) -> bytes:
    """Return the struct open_how with which the kernel follows no link in any component."""
    return _HOW.pack(flags, 0, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)


def open_in_root(directory: int, path: str, flags: int) -> int:
    """Open `path` as if `directory` were the root: links are followed, and none leads out."""
    return _openat2(directory, path, flags, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)


def open_without_symlinks(path: str, flags: int, mode: int = 0) -> int:
    """Open an absolute `path` without links in any component; ELOOP if there is one."""
    if _by_steps:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _opened_by_steps(root, path.lstrip("/"), flags, mode)
        finally:
            os.close(root)
    return _openat2(AT_FDCWD, path, flags, mode, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)


# ---------------------------------------------------------------- in a confined process

_by_steps: list[bool] = []


def allow_steps() -> None:
    """If a filter hides openat2 from this process, open one component after the other from now on.

    Only for a process that is itself confined, and whose rights cannot be misused. It is as strict about
    links, but may find a file at its old place while it is renamed.
    """
    try:
        os.close(_openat2(AT_FDCWD, "/", os.O_PATH, 0, RESOLVE_NO_MAGICLINKS))
    except OSError as error:
        if error.errno == errno.ENOSYS:
            _by_steps.append(True)


def _opened_by_steps(directory: int, path: str, flags: int, mode: int) -> int:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    if not parts:
        return os.open(".", flags | os.O_CLOEXEC, mode, dir_fd=directory)
    here = os.dup(directory)
    try:
        for name in parts[:-1]:
            below = _step(here, name, os.O_PATH | os.O_DIRECTORY, 0)
            above, here = here, below
            os.close(above)
        return _step(here, parts[-1], flags, mode)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
    finally:
        os.close(here)


def _step(directory: int, name: str, flags: int, mode: int) -> int:
    """Open one component, which must not be a link."""
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return fd


def _openat2(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    try:
        return call("openat2", directory, os.fsencode(path), how, _HOW.size)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
