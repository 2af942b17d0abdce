"""The tree of a copied workspace, where nothing can be mounted: condense it to a layer, and exchange it."""

from __future__ import annotations

import os
import stat
from functools import partial

from ..files.tree import LastDirectory
from .layer_writer import LayerWriter
from .merged_view import OpenLayers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .differences import Difference


def condense(
    opened: OpenLayers, found: Iterable[Difference], destination: str, owner: tuple[int, int] | None = None
) -> None:
    """Fill the empty `destination` with a layer of the differences `found` in the one layer of a plain view.

    If we are root, `owner` owns everything in it.
    """
    root = os.open(destination, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = _DiffLayer(opened, root, owner)
    try:
        for item in sorted(found, key=lambda item: item.path.split("/")):
            made.add(item)
        made.finish()
    finally:
        made.close()
        os.close(root)


class _DiffLayer:
    """The layer in the making."""

    def __init__(self, opened: OpenLayers, root: int, owner: tuple[int, int] | None) -> None:
        self._tree, self._writer = opened.layers[0], LayerWriter(root, owner)
        self._last = LastDirectory(root, os.O_RDONLY | os.O_DIRECTORY)
        #: The first place of a file with several names.
        self._linked: dict[int, str] = {}
        #: Below this path nothing more has to be recorded.
        self._hidden: str | None = None

    def add(self, item: Difference) -> None:
        if self._hidden is not None and item.path.startswith(self._hidden):
            return
        parent, _, name = item.path.rpartition("/")
        self._way(parent)
        here = self._last.at(parent)
        new, old = item.new, item.old
        if old is not None and stat.S_ISDIR(old.st_mode) and not (new and stat.S_ISDIR(new.st_mode)):
            self._hidden = f"{item.path}/"
        if new is None:
            self._writer.whiteout(here, name)
        elif stat.S_ISDIR(new.st_mode):
            self._directory(item.path, here, new)
        elif new.st_nlink > 1 and (first := self._linked.get(new.st_ino)):
            self._writer.link(first, here, name)
        else:
            self._linked[new.st_ino] = item.path
            source = self._tree.directory(parent)
            try:
                self._writer.copy(self._tree, source, here, name, new.st_mode, frozen=new)
            finally:
                os.close(source)
                self._tree.give_back()

    def _way(self, path: str) -> None:
        """Create the parent directories as they are in the copy."""
        if not path or self._writer.has_mode(path):
            return
        self._way(path.rpartition("/")[0])
        status = self._tree.status(path)
        if status is not None:
            self._directory(path, self._last.at(path.rpartition("/")[0]), status)

    def _directory(self, path: str, here: int, status: os.stat_result) -> None:
        if not self._writer.has_mode(path):
            self._writer.mkdir(here, path, status.st_mode)

    def finish(self) -> None:
        self._last.close()
        self._writer.finish()

    def close(self) -> None:
        self._last.close()


def exchange(directory: str, other: str) -> None:
    """Move the contents of each into the other, all or nothing. Both are ours, and unused."""
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
        # Even its owner cannot move a directory without write permission.
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
