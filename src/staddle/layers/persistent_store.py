"""A store whose layers stay when its process ends: claimed, continued, removed.

Only one process uses a kept sandbox at a time. The kernel releases its claim however it ends.
"""

from __future__ import annotations

import os
import stat
import time
import weakref

from ..errors import LayerError
from ..files.remove_tree import remove as remove_directory
from ..files.tree import Tree, directories
from ..places import make_directory
from . import trash
from .session_record import CLAIM, LAYERS, RECORD, directory_of, home, read
from .store import Layer, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

#: Attempts to get a claim that `is_claimed` in another process may have for a moment.
_ATTEMPTS = 5
#: Seconds to wait for the sandboxes of a killed process.
_PATIENCE = 5.0
#: The most ids of one sandbox.
_IDS = 1 << 16
#: Files next to the layers. None is called `lock`, so `sweep` does not consider them abandoned.
USERS = "users-"

_open: weakref.WeakSet[PersistentStore] = weakref.WeakSet()


class PersistentStore(Store):
    """The layers of one kept sandbox. Layers that its record names (`recorded`) are never deleted.

    The claim is released when `end` was called and no layer has a reference: a fork may outlive the sandbox
    for which it was opened.
    """

    is_persistent = True

    def __init__(self, name: str, *, make: bool, owner: tuple[int, int] | None = None) -> None:
        """Claim the kept sandbox. With `make`, it need not have a record yet."""
        import threading

        self.home = directory_of(name)  # its trash is there
        self.path = f"{self.home}/{LAYERS}"
        self.owner = owner
        self.recorded: frozenset[str] = frozenset()
        #: Layers of its history, which are never deleted either.
        self.of_history: Container[str] = ()
        self._lock = threading.Lock()
        self._live: set[str] = set()
        self._ending = False
        self._claim, killed = _claimed(self.home, name, make=make)
        mode = 0o711 if os.geteuid() == 0 else 0o700
        try:
            try:
                os.mkdir(self.path, mode)
                os.chmod(self.path, mode)
            except FileExistsError:
                pass
            _await_users(self.path, killed)
            self._serial = max((int(found) for found in os.listdir(self.path) if found.isdigit()), default=0)
        except BaseException:
            self.leave()
            raise
        _open.add(self)

    def layer(self, *, like: str | None = None, reserved: bool = False) -> Layer:
        """Return a new, empty layer."""
        made = super().layer(like=like, reserved=reserved)
        self._live.add(made.path)
        return made

    def existing(self, name: str) -> Layer:
        """Return a layer that an earlier process has made."""
        layer = Layer(self, f"{self.path}/{name}")
        if not stat.S_ISDIR(os.lstat(layer.upper).st_mode):
            raise NotADirectoryError(20, os.strerror(20), layer.upper)
        self._live.add(layer.path)
        return layer

    def sweep(self) -> None:
        """Delete layers that the record does not name: left by a process that was killed."""
        for name in os.listdir(self.path):
            if name.isdigit() and name not in self.recorded and name not in self.of_history:
                trash.move(f"{self.path}/{name}", self.home)
        sweep_trash(self.home)

    def close(self) -> None:
        """End the store; the layers stay. See `end`."""
        self.end()

    def end(self) -> None:
        """Release the claim as soon as no layer has a reference."""
        self._ending = True
        self._give_back()

    def remove(self) -> None:
        """Remove the whole kept sandbox at once. Nothing of it may still be mounted."""
        self._ending = True
        _trash(self.home)
        self.leave()

    def _trash(self, layer: Layer) -> None:
        self._live.discard(layer.path)
        name = os.path.basename(layer.path)
        if self._claim >= 0 and name not in self.recorded and name not in self.of_history:
            trash.move(layer.path, self.home)
        self._give_back()

    def _give_back(self) -> None:
        if self._ending and not self._live and self._claim >= 0:
            os.ftruncate(self._claim, 0)  # no process of ours writes any more
            self.leave()


def _after_fork() -> None:
    for store in list(_open):
        store.leave()


os.register_at_fork(after_in_child=_after_fork)


# ---------------------------------------------------------------- claims


def _claimed(directory: str, name: str, *, make: bool) -> tuple[int, str]:
    """Get the claim; return its descriptor, and the process that had it last, if that was killed."""
    import fcntl

    mode = 0o711 if os.geteuid() == 0 else 0o700
    for attempt in range(100):
        if make:
            try:
                os.mkdir(directory, mode)
                os.chmod(directory, mode)
            except FileExistsError:
                pass
        elif read(directory) is None:
            raise unknown(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(f"{directory}/{CLAIM}", flags, 0o600)
        except FileNotFoundError:
            continue  # it was just removed
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(fd, 0o600)  # whatever the umask: the next program opens it
            if os.path.samestat(os.fstat(fd), os.lstat(f"{directory}/{CLAIM}")):
                killed = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
                return fd, killed
            os.close(fd)
        except BlockingIOError:
            who = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            if attempt >= _ATTEMPTS:
                raise _in_use(name, who) from None
            time.sleep(0.01)  # `is_claimed` may be checking it for a moment
        except FileNotFoundError:
            os.close(fd)
        except OSError as error:
            os.close(fd)
            raise LayerError(
                f"the kept sandbox {name!r} cannot be used",
                why=f"{directory}/{CLAIM}: {error.strerror}",
                fix="make room on that disk, or raise the limit on the size of files (ulimit -f)",
            ) from error
        except BaseException:
            os.close(fd)
            raise
    raise LayerError(
        f"the kept sandbox {name!r} is removed all the time",
        why="another process deletes it as fast as it is made",
        fix="end that process, and try again",
    )


def _await_users(layers: str, killed: str) -> None:
    """Wait for the sandboxes of a killed process: they end shortly after it.

    The fork server of a process, its child, locks a file named after the process until the last sandbox has
    ended. From here on there is one for this process.
    """
    ours = f"{USERS}{os.getpid()}"
    for name in os.listdir(layers):
        if name.startswith(USERS) and name != ours:
            if name == f"{USERS}{killed}":
                _await(f"{layers}/{name}")
            os.unlink(f"{layers}/{name}")
    fd = os.open(f"{layers}/{ours}", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o644)  # root's fork server is not root
    os.close(fd)


def _await(path: str) -> None:
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.01)
    finally:
        os.close(fd)


def _in_use(name: str, who: str) -> LayerError:
    mine = who == str(os.getpid())
    return LayerError(
        f"the kept sandbox {name!r} is in use",
        why="this program has a sandbox, a fork or a snapshot of it"
        if mine
        else f"process {who or '?'} works in it",
        fix="close that first, or choose another name",
    )


def unknown(name: str) -> LayerError:
    """Return the error for a kept sandbox that does not exist."""
    return LayerError(
        f"there is no kept sandbox {name!r}",
        why=f"nothing of that name is kept in {home()!r}",
        fix="`staddle ls` lists them; `staddle run --keep NAME` makes one",
    )


def is_claimed(name: str) -> bool:
    """Whether a living process uses the kept sandbox."""
    import fcntl

    try:
        fd = os.open(f"{directory_of(name)}/{CLAIM}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


# ---------------------------------------------------------------- removal


def remove(name: str) -> None:
    """Remove a kept sandbox with everything in it, even if its record cannot be read."""
    directory = directory_of(name)
    if not os.path.isdir(directory):
        raise unknown(name)
    claim, _ = _claimed(directory, name, make=True)
    try:
        _trash(directory)
    finally:
        os.close(claim)


def _trash(directory: str) -> None:
    sessions = os.path.dirname(directory)
    try:
        os.unlink(f"{directory}/{RECORD}")  # from here on it is no kept sandbox
    except FileNotFoundError:
        pass
    trash.move(directory, os.path.dirname(sessions))
    try:
        os.rmdir(sessions)
    except OSError:
        pass  # there are others


def sweep_trash(place: str) -> None:
    """Continue to delete what a killed process has left in the trash there."""
    try:
        rest = os.listdir(f"{place}/{trash.TRASH}")
    except FileNotFoundError:
        return
    for name in rest:
        trash.delete_later(f"{place}/{trash.TRASH}/{name}")


# ---------------------------------------------------------------- owners


def prepare(layer: Layer, owner: tuple[int, int] | None, before: int = -1) -> None:
    """Prepare a layer of an earlier process for a mount, by `owner` if that is not us; see `give`.

    The work directory, which is the kernel's own, is created anew.
    """
    remove_directory((os.fsencode(layer.work),))
    make_directory(layer.work)
    if owner is not None:
        for path in (layer.path, layer.work):
            os.chown(path, *owner)
        give(layer.upper, owner, before)


def give(path: str, owner: tuple[int, int], before: int = -1) -> None:
    """Give a directory with its contents to `owner`; ids relative to `before` keep their offset.

    Root's sandboxes have other ids in each process, so the files of the last one are given to this one. Root
    does this by descriptor. No other process uses the directory now, and no file in it has a name outside.
    """
    with Tree(path, ours=True) as tree:
        for _, directory, entries in directories(tree, strict=True):
            _give(directory, ".", os.fstat(directory), owner, before)
            for below, status in entries:
                if not stat.S_ISDIR(status.st_mode):
                    _give(directory, below.rpartition("/")[2], status, owner, before)


def _give(directory: int, name: str, status: os.stat_result, owner: tuple[int, int], before: int) -> None:
    uid, gid = (
        now + found - before if before >= 0 and abs(found - before) < _IDS else now
        for now, found in zip(owner, (status.st_uid, status.st_gid), strict=True)
    )
    if (status.st_uid, status.st_gid) != (uid, gid):
        os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)
