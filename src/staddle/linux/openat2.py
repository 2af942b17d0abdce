"""Opening a name without being led elsewhere by a link somebody planted (openat2, Linux 5.6).

Whoever can write a directory can put a symbolic link in it. A trusted process that opens a
path through that directory would follow the link with its own rights. Here the kernel
refuses instead, at every component. There is no second try by another call: ENOSYS (an old
kernel, or a filter that hides the call) and EAGAIN (a rename raced with the look-up) reach
the caller as what they are, refusals.
"""

from __future__ import annotations

import os
import struct

from .syscalls import call

AT_FDCWD = -100
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08

_HOW = struct.Struct("QQQ")  # struct open_how: flags, mode, resolve


def open_beneath(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` below the open `directory`, following no link and never leaving it.

    The descriptor is close-on-exec. ELOOP: a component is a link. EXDEV: the path leads out.
    """
    return _openat2(
        directory, path, flags, mode, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    )


def open_without_symlinks(path: str, flags: int, mode: int = 0) -> int:
    """Open an absolute `path` in which no component is a link; ELOOP when one is."""
    return _openat2(AT_FDCWD, path, flags, mode, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)


def _openat2(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    try:
        return call("openat2", directory, os.fsencode(path), how, _HOW.size)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
