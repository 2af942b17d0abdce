"""Exchange the content of two directories, where nothing can be mounted."""

from __future__ import annotations

import os
import stat
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def exchange(directory: str, other: str) -> None:
    """Move the content of each into the other, all of it or nothing. Both are ours, and unused."""
    with _WritableDirectory(directory) as here, _WritableDirectory(other) as there:
        aside = f".{os.urandom(8).hex()}"
        os.mkdir(aside, 0o700, dir_fd=there)
        undo: list[Callable[[], None]] = []
        with _WritableDirectory(f"/proc/self/fd/{there}/{aside}") as waiting:
            moves = [(name, here, waiting) for name in os.listdir(here)]
            moves += [(name, there, here) for name in os.listdir(there) if name != aside]
            try:
                for name, source, target in moves:
                    _move(name, source, target)
                    undo.append(partial(_move, name, target, source))
            except BaseException:
                for step in reversed(undo):
                    step()
                raise
        modes = [stat.S_IMODE(os.fstat(fd).st_mode) for fd in (here, there)]
    os.chmod(directory, modes[1] & 0o777 | 0o700)


class _WritableDirectory:
    """A directory of ours, opened after its owner was given all permissions."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._fd = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
        if mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{self._fd}", mode | 0o700)
        self._listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        return self._listed

    def __exit__(self, *_: object) -> None:
        os.close(self._listed)
        os.close(self._fd)


def _move(name: str, source: int, target: int) -> None:
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:
        # Its owner, which is us, cannot move a directory without write permission.
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            os.chmod(f"/proc/self/fd/{handle}", mode | 0o700)
            try:
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
            finally:
                os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)
