"""One layer, opened. Everything in it is reached by descriptor, and no link is followed.

A layer was written by a sandbox that may still be running: names, depth, kinds and modes are
its choice, and can change between two looks. So a directory is opened beneath the layer's
root (openat2), and what is in it by single names that must not be links.
"""

from __future__ import annotations

import os
import stat

from ..linux.openat2 import open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import ParamSpec, Self, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

OPAQUE = "user.overlay.opaque"
_WHITEOUT = "user.overlay.whiteout"
#: Marks of the kernel's in a layer. They mean nothing, or something else, anywhere else.
MARKS = "user.overlay."

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
#: A path is at most 4096 bytes for the kernel; a character is at most four.
_LONGEST = 1000


def _told_if_full(opens: Callable[P, T]) -> Callable[P, T]:
    """Decorate what opens a file of a layer: TooManyOpenFiles when this process has as many as it may.

    An OSError is mostly taken for a file that is gone.
    """

    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        from ..linux.file_room import is_room_made  # not in a sandbox, which has this module as well

        while True:
            try:
                return opens(*args, **kwargs)
            except OSError as error:
                if not is_room_made(error):
                    raise

    called.__doc__ = opens.__doc__
    return called


def open_deep(root: int, path: str, flags: int) -> int:
    """open_beneath for a `path` of any length: a sandbox can nest directories deeper than a path can say."""
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
    """The directory that was used last, kept open: paths mostly come in order."""

    def __init__(self, root: int, flags: int = os.O_PATH | os.O_DIRECTORY) -> None:
        self._root, self._flags = root, flags
        self._path: str | None = None
        self._fd = -1

    @_told_if_full
    def at(self, path: str) -> int:
        """The directory at `path` below the root. Ours to close."""
        if path != self._path:
            self.close()
            self._fd = open_deep(self._root, path, self._flags)
            self._path = path
        return self._fd

    def status(self, path: str) -> os.stat_result:
        """The status of `path`; of a link, its own."""
        parent, _, name = path.rpartition("/")
        return os.stat(name, dir_fd=self.at(parent), follow_symlinks=False)

    def close(self) -> None:
        """A second time does nothing."""
        path, self._path = self._path, None
        if path is not None:
            os.close(self._fd)


class Tree:
    """The layer at `path`. `ours` says that we may lend ourselves rights in it.

    A sandbox can make a file that its owner may not read. The owner is us, where we are an
    ordinary user, so we would not see it either: the missing right is given for the time of
    the look, and taken back in `give_back`. The host's own files are never touched so.
    """

    @_told_if_full
    def __init__(self, path: str, *, ours: bool) -> None:
        self.path = path
        self.root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lends = ours and os.geteuid() != 0
        self._lent: list[tuple[int, int]] = []

    @_told_if_full
    def directory(self, path: str) -> int:
        """The directory at `path`, opened for reading; the caller's to close."""
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
        """The file `name` in a `directory` of this layer, opened for reading. It may be no regular file."""
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
            if error.errno == 40:  # ELOOP: a link stands where a directory would have to be
                return None
            raise
        try:
            return os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        finally:
            os.close(directory)

    def names(self, path: str) -> list[str]:
        """The names in the directory at `path` in this layer alone; none when there is no such directory."""
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

    def give_back(self) -> None:
        """Take back every right that was lent."""
        while self._lent:
            handle, mode = self._lent.pop()
            try:
                os.chmod(f"/proc/self/fd/{handle}", mode)
            finally:
                os.close(handle)

    def close(self) -> None:
        """Give back, and close. A second time does nothing."""
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
        """Each directory on the way may be closed to its owner: lend on the way down."""
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
        """Takes over `handle`. EPERM when the file is not ours."""
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        self._lent.append((handle, mode))
        os.chmod(f"/proc/self/fd/{handle}", mode | bits)


def walk(tree: Tree, top: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Everything in it, or below `top`, with its path from there, directories before what is in them.

    One is open at a time.
    """
    todo = [""]
    while todo:
        path = todo.pop()
        try:
            fd = tree.directory("/".join(part for part in (top, path) if part))
        except OSError:
            continue  # gone meanwhile
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    below = f"{path}/{entry.name}" if path else entry.name
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        todo.append(below)
                    yield below, status
        finally:
            os.close(fd)
            tree.give_back()


@_told_if_full
def listed(directory: int) -> list[str]:
    """The names in an open directory."""
    return os.listdir(directory)


def opacity(directory: int) -> bytes:
    """b"y": nothing below shows through. b"x": some entries are whiteouts by attribute. Else nothing."""
    try:
        return os.getxattr(directory, OPAQUE)
    except OSError:
        return b""


def is_whiteout(status: os.stat_result, marked: int, name: str) -> bool:
    """Whether the entry `name` says: nothing is here, whatever lies below.

    `marked` is its directory when that holds whiteouts by attribute, else -1. A sandbox can
    make neither kind: overlayfs refuses the device 0:0, and puts such attributes out of the way.
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
