"""What the launcher is handed by descriptor: files to show, texts, its arguments, the filter.

A descriptor cannot be swapped for something else between the check and the start, and what
it holds is on no command line. bwrap closes every one of these before the command begins.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ...errors import LaunchFailed
from ...linux.openat2 import open_without_symlinks

_CHANGED = "if it moved on purpose, try again; otherwise see what else is changing it"


class Descriptors:
    """Open descriptors that belong to one launch, closed together."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def keep(self, descriptor: int) -> int:
        """Close this one too. Never one of the standard three, should our caller have closed those."""
        if descriptor <= 2:
            low, descriptor = descriptor, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(low)
        self._open.append(descriptor)
        return descriptor

    def holding(self, data: bytes) -> int:
        """A nameless file in memory with `data`, to be read from its start."""
        descriptor = self.keep(os.memfd_create("staddle"))
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:] if written else data, written)
        return descriptor

    def naming(self, path: str) -> int:
        """The file or directory at `path`, in which no component may be a link."""
        return self.keep(open_named(path))

    def all(self) -> tuple[int, ...]:
        """Every descriptor to pass on."""
        return tuple(self._open)

    def close(self) -> None:
        """Close them all. Never raises, and a second time does nothing."""
        while self._open:
            try:
                os.close(self._open.pop())
            except OSError:
                continue


def open_named(path: str) -> int:
    """Open what is at `path` to mount or check it; LaunchFailed when it is not as it was planned."""
    try:
        return open_without_symlinks(path, os.O_PATH)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise LaunchFailed(
                "paths cannot be opened without following links",
                why="the kernel is older than 5.6, or a filter around this process hides openat2",
                fix="run staddle outside that sandbox",
            ) from None
        why = "there is a link in it now" if error.errno == errno.ELOOP else (error.strerror or "").lower()
        raise LaunchFailed(
            f"{path!r} is not as it was when the policy was compiled", why=why, fix=_CHANGED
        ) from None


def check_place(path: str, *, directory: bool) -> None:
    """Nothing may be created at this place of the host: it must be there, of that kind, without links."""
    descriptor = open_named(path)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) != directory:
            kind = "directory" if directory else "file"
            raise LaunchFailed(
                f"{path!r} is not as it was when the policy was compiled",
                why=f"it is no longer a {kind}",
                fix=_CHANGED,
            )
    finally:
        os.close(descriptor)
