"""The host's directories, as the layout sees them. Reads, never follows a link."""

from __future__ import annotations

import errno
import os
import stat

from .._value import Value
from ..errors import LaunchFailed
from ..linux.openat2 import open_without_symlinks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol

    Kind = Literal["directory", "file", "link"]

    class View(Protocol):
        """The questions the layout asks; tests answer them from a dictionary."""

        def kind(self, path: str) -> Kind | None:
            """The kind of the entry at `path`; None when it is missing or a link leads to it."""

        def entries(self, path: str) -> tuple[Entry, ...]:
            """The entries of a directory."""

        def searchable(self, path: str) -> bool:
            """Whether names in this directory can be reached at all."""


_CHANGED = "if it moved on purpose, try again; otherwise see what else is changing it"


class Entry(Value):
    """One name in a directory. `target` is where a link points."""

    name: str
    kind: Kind
    target: str = ""


class Host:
    """The real one."""

    def kind(self, path: str) -> Kind | None:
        """The entry at `path`, reached without any link; the last component may be a link."""
        try:
            fd = open_without_symlinks(path, os.O_PATH | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return _kind(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def entries(self, path: str) -> tuple[Entry, ...]:
        """The names in `path`, sorted. Raises OSError when it cannot be listed."""
        fd = open_without_symlinks(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = []
            for name in sorted(os.listdir(fd)):
                try:
                    kind = _kind(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
                    target = os.readlink(name, dir_fd=fd) if kind == "link" else ""
                except FileNotFoundError:
                    continue  # it went while we looked
                found.append(Entry(name, kind, target))
            return tuple(found)
        finally:
            os.close(fd)

    def searchable(self, path: str) -> bool:
        """Whether we may look names up in `path`; what we may not, the sandbox may not either."""
        try:
            os.close(open_without_symlinks(f"{path}/.", os.O_PATH))
        except PermissionError:
            return False
        except OSError:
            return True
        return True


def _kind(mode: int) -> Kind:
    return "directory" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


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
