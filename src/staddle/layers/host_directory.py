"""`HostDirectory`: the path of a host directory, bound to that very directory.

A workspace can be renamed or deleted while a sandbox works on it, and another directory can take its path.
The mount inside still shows the first directory. So comparing, saving and committing must use that one too.
"""

from __future__ import annotations

import os
from weakref import WeakValueDictionary

from ..errors import LayerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class HostDirectory(str):
    """A path, with an open descriptor of the directory that was there first."""

    _fd = -1
    _identity: tuple[int, int]

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the directory that is at `path` now. Objects for one directory share a descriptor."""
        if isinstance(path, cls):
            return path
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            key = (path, found.st_dev, found.st_ino)
            known = _known.get(key)
            if isinstance(known, cls):
                return known
            made = cls(path)
            made._fd, fd = fd, -1
            made._identity = key[1:]
            _known[key] = made
            return made
        finally:
            if fd >= 0:
                os.close(fd)

    def is_there(self) -> bool:
        """Whether its path still leads to it."""
        try:
            found = os.stat(self)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode, which identify this directory wherever it is now."""
        return self._identity

    def is_same(self, other: HostDirectory) -> bool:
        """Whether `other` is this very directory, even by another path."""
        return self._identity == other._identity

    @property
    def reachable(self) -> str:
        """A path that leads to it in this process, wherever it is now."""
        return str(self) if self.is_there() else f"/proc/self/fd/{self._fd}"

    def check(self, found: os.stat_result | None = None) -> None:
        """Raise LayerError if its path leads elsewhere now, or if `found`, opened by it, is another."""
        if self.is_there() if found is None else (found.st_dev, found.st_ino) == self._identity:
            return
        gone = not os.path.exists(self)
        raise LayerError(
            f"the workspace {str(self)!r} is {'deleted' if gone else 'another directory now'}",
            why="it was moved or deleted on the host since the sandbox was opened",
            fix="put it back; or take the work elsewhere: diff() lists it, snapshot().save(FILE) keeps it, "
            "commit(to=DIRECTORY) writes it to another directory",
        )

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone by then
        if self._fd >= 0:
            close(self._fd)


_known: WeakValueDictionary[tuple[str, int, int], HostDirectory] = WeakValueDictionary()


def reach(path: str) -> str:
    """Return the path itself, or for a HostDirectory a path that leads to it now."""
    return path.reachable if isinstance(path, HostDirectory) else path
