"""One layer, opened. Every entry is accessed by descriptor, and no link is followed.

The sandbox that wrote a layer may still be running: it chooses names, depth, kinds and modes, and can change
them at any time. So a directory is opened beneath the layer's root (openat2), and its entries by single names
that must not be links.
"""

from __future__ import annotations

import os
import stat

from ..linux.openat2 import open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import TracebackType
    from typing import ParamSpec, Self, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

OPAQUE = "user.overlay.opaque"
_WHITEOUT = "user.overlay.whiteout"
#: The kernel's marks in a layer. Elsewhere they mean nothing, or something else.
MARKS = "user.overlay."

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
#: The kernel accepts paths of 4096 bytes; a character has at most four.
_LONGEST = 1000


def _told_if_full(opens: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that opens a file of a layer: TooManyOpenFiles if this process is at its limit.

    Callers treat most OSErrors as a missing file.
    """

    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return opens(*args, **kwargs)
            except OSError as error:
                from ..linux.file_room import is_room_made  # not in a sandbox, where this module runs, too

                if not is_room_made(error):
                    raise

    called.__doc__ = opens.__doc__
    return called


def open_deep(root: int, path: str, flags: int) -> int:
    """open_beneath for a `path` of any length: sandboxes can nest directories deeper than a path allows."""
    if len(path) <= _LONGEST:
        return open_beneath(root, path or ".", flags)
    here = os.dup(root)
    try:
        while len(path) > _LONGEST:
            cut = path.rfind("/", 0, _LONGEST)
            below = open_beneath(here, path[:cut], os.O_PATH | os.O_DIRECTORY)
            above, here, path = here, below, path[cut + 1 :]
            os.close(above)
        return open_beneath(here, path, flags)
    finally:
        os.close(here)


class LastDirectory:
    """Keeps the last used directory open: paths mostly come in order."""

    def __init__(self, root: int, flags: int = os.O_PATH | os.O_DIRECTORY) -> None:
        self._root, self._flags = root, flags
        self._path: str | None = None
        self._fd = -1

    @_told_if_full
    def at(self, path: str) -> int:
        """The directory at `path` below the root. The caller must not close it."""
        if path != self._path:
            self.close()
            self._fd = open_deep(self._root, path, self._flags)
            self._path = path
        return self._fd

    def status(self, path: str) -> os.stat_result:
        """The status of `path`, without following a link."""
        parent, _, name = path.rpartition("/")
        return os.stat(name, dir_fd=self.at(parent), follow_symlinks=False)

    def close(self) -> None:
        """Close the directory. A second call does nothing."""
        path, self._path = self._path, None
        if path is not None:
            os.close(self._fd)


class Tree:
    """The layer at `path`. With `ours` we may temporarily add rights for ourselves in it.

    A sandbox can make a file that its owner may not read. For an ordinary user that owner is us, so we could
    not read it either. The missing right is added while we read, and removed in `give_back`. The host's own
    files are never changed like this.
    """

    @_told_if_full
    def __init__(self, path: str, *, ours: bool) -> None:
        self.path = path
        self.root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lends = ours and os.geteuid() != 0
        self._lent: list[tuple[int, int]] = []

    def reopened(self) -> Tree:
        """The same layer, opened again."""
        return Tree(self.path, ours=self._lends)

    @_told_if_full
    def directory(self, path: str) -> int:
        """The directory at `path`, opened for reading; the caller closes it."""
        if not self._lends:
            return open_deep(self.root, path, _DIRECTORY)
        try:
            fd = open_deep(self.root, path, _DIRECTORY)
        except PermissionError:
            return self._directory_by_steps(path)
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o500 != 0o500:
            try:
                self._lend(os.dup(fd), 0o700)
            except BaseException:
                os.close(fd)
                raise
        return fd

    @_told_if_full
    def file(self, directory: int, name: str) -> int:
        """The file `name` in a `directory` of this layer, opened for reading. It may be a special file."""
        try:
            return os.open(name, _READ, dir_fd=directory)
        except PermissionError:
            if not self._lends:
                raise
        handle = os.open(name, _PATH, dir_fd=directory)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise PermissionError(13, os.strerror(13), name)
        self._lend(handle, 0o600)
        return os.open(f"/proc/self/fd/{handle}", _READ & ~os.O_NOFOLLOW)

    def status(self, path: str) -> os.stat_result | None:
        """The status of `path` in this layer alone, or None."""
        parent, _, name = path.rpartition("/")
        try:
            directory = self.directory(parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == 40:  # ELOOP: a link in place of a directory
                return None
            raise
        try:
            return os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        finally:
            os.close(directory)

    def names(self, path: str) -> list[str]:
        """The names in the directory at `path` in this layer alone; empty if there is no such directory."""
        try:
            directory = self.directory(path)
        except OSError:
            return []
        try:
            return listed(directory)
        except OSError:
            return []
        finally:
            os.close(directory)

    def link_target(self, path: str) -> str:
        """The target of the link at `path` in this layer alone. OSError if there is no link."""
        parent, _, name = path.rpartition("/")
        directory = self.directory(parent)
        try:
            return os.readlink(name, dir_fd=directory)
        finally:
            os.close(directory)

    def give_back(self) -> None:
        """Remove every added right."""
        while self._lent:
            handle, mode = self._lent.pop()
            try:
                os.chmod(f"/proc/self/fd/{handle}", mode)
            finally:
                os.close(handle)

    def close(self) -> None:
        """Remove added rights, and close. A second call does nothing."""
        if self.root >= 0:
            self.give_back()
            fd, self.root = self.root, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        from ..linux.file_room import refuse_if_full

        self.close()
        refuse_if_full(error)

    def _directory_by_steps(self, path: str) -> int:
        """Open one directory at a time, adding rights on the way: each may be closed to its owner."""
        here = open_beneath(self.root, ".", os.O_PATH | os.O_DIRECTORY)
        try:
            for name in path.split("/") if path else ():
                below = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=here)
                above, here = here, below
                os.close(above)
                if stat.S_IMODE(os.fstat(here).st_mode) & 0o700 != 0o700:
                    self._lend(os.dup(here), 0o700)
            return os.open(".", _DIRECTORY | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)

    def _lend(self, handle: int, bits: int) -> None:
        """Add rights to the file of `handle`, which this takes over. EPERM if the file is not ours."""
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        self._lent.append((handle, mode))
        os.chmod(f"/proc/self/fd/{handle}", mode | bits)


def directories(
    tree: Tree, top: str = "", *, without: Collection[str] = (), strict: bool = False
) -> Iterator[tuple[str, int, Iterator[tuple[str, os.stat_result]]]]:
    """Every directory in it, or below `top`: its path from there, a descriptor, and its entries with paths.

    Only one directory is open at a time, until the next step. A directory comes after the entry that names
    it, so read all entries. Those in `without` are left out with their content. An entry that cannot be read
    was removed meanwhile, and is left out; with `strict` it raises OSError.
    """
    todo = [""]

    def found(fd: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(fd) as entries:
            for entry in entries:
                below = f"{path}/{entry.name}" if path else entry.name
                if below in without:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    if strict:
                        raise
                    continue
                if stat.S_ISDIR(status.st_mode):
                    todo.append(below)
                yield below, status

    while todo:
        path = todo.pop()
        try:
            fd = tree.directory("/".join(part for part in (top, path) if part))
        except OSError:
            if strict:
                raise
            continue
        try:
            yield path, fd, found(fd, path)
        finally:
            os.close(fd)
            tree.give_back()


def walk(
    tree: Tree, top: str = "", *, without: Collection[str] = (), strict: bool = False
) -> Iterator[tuple[str, os.stat_result]]:
    """The entries of all `directories`, each directory before its content."""
    for _, _, entries in directories(tree, top, without=without, strict=strict):
        yield from entries


@_told_if_full
def listed(directory: int) -> list[str]:
    """The names in an open directory."""
    return os.listdir(directory)


def opacity(directory: int) -> bytes:
    """b"y": hides everything below. b"x": some entries are whiteouts by attribute. Else empty."""
    try:
        return os.getxattr(directory, OPAQUE)
    except OSError:
        return b""


def is_whiteout(status: os.stat_result, marked: int, name: str) -> bool:
    """Whether the entry `name` marks a deletion that hides the layers below.

    `marked` is its directory if that contains whiteouts by attribute, else -1. A sandbox can make neither
    kind: overlayfs refuses the device 0:0, and escapes such attributes.
    """
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if marked < 0 or status.st_size or not stat.S_ISREG(status.st_mode):
        return False
    try:
        os.getxattr(f"/proc/self/fd/{marked}/{name}", _WHITEOUT, follow_symlinks=False)
        return True
    except OSError:
        return False
