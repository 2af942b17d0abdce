"""The store of layers: a private directory for each process, deleted when the process is gone.

    <place>/staddle-<uid>/<random>/lock        locked by the process that uses the rest
                                  /<n>/upper   the written files, as overlayfs stores them
                                  /<n>/work    the kernel's own
                         /gone/...             to be deleted

A store is never in a workspace: a layer below a directory that is itself a lower layer cannot be mounted
twice (ELOOP), and an agent would see it. Memory is preferred, because layers are small and short-lived.
"""

from __future__ import annotations

import errno
import os
import stat

from .. import places
from ..errors import LaunchFailed, LayerError
from ..linux.memory import available
from ..places import user
from . import trash
from .host_directory import HostDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

#: Places for a store, best first. The variable precedes them.
VARIABLE = places.LAYERS
PLACES = ("/dev/shm", "/var/tmp", "/tmp")
#: With less room than this, memory is not used.
LEAST_ROOM = 1 << 30
#: With at least this much, memory is the last resort: a container has 64 MB there, and an overlay elsewhere.
LAST_RESORT = 16 << 20
#: With less memory available than this, layers are on a disk. Otherwise they may take one `MEMORY_PART`th.
LEAST_AVAILABLE, MEMORY_PART = 4 << 30, 8
#: Only the ids of a sandbox that root starts are this near to the mounter's id.
_IDS = 1 << 16


class Layer:
    """One layer: `upper` contains the written files. Deleted with its last reference."""

    def __init__(self, store: Store, path: str) -> None:
        self.path, self.upper, self.work = path, f"{path}/upper", f"{path}/work"
        self._store = store
        self._users = 0
        #: The number of entries, once it is frozen and they have been counted; -1 before.
        self.entries = -1

    def hold(self) -> Layer:
        """Add a reference."""
        with self._store._lock:
            self._users += 1
        return self

    def drop(self) -> None:
        """Drop a reference; delete the layer at zero."""
        with self._store._lock:
            self._users -= 1
            gone = self._users == 0
        if gone:
            self._store._trash(self)

    @property
    def users(self) -> int:
        """Number of references."""
        return self._users

    def usage(self) -> int:
        """Return the bytes it takes on its file system."""
        return usage(self.upper)

    def __repr__(self) -> str:
        return f"<Layer {self.path!r}>"


#: The errors of a file system that takes no more.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
#: Fewer free inodes than the layers of two sandboxes need.
_FEW_INODES = 32


def usage(directory: str, *, linked: bool = True) -> int:
    """Return the bytes that a directory with its contents takes on its file system.

    Without `linked`, files that have more than one name are left out.
    """
    total, todo = 0, [directory]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    found, is_directory = (
                        entry.stat(follow_symlinks=False),
                        entry.is_dir(follow_symlinks=False),
                    )
                    if linked or is_directory or found.st_nlink == 1:
                        total += found.st_blocks * 512
                    if is_directory:
                        todo.append(entry.path)
        except OSError:
            continue  # deleted meanwhile, or unreadable: its entry was counted
    return total


class Store:
    """A directory of layers that belongs to this process until `close`, or until it ends."""

    #: Whether other processes can use its layers afterwards.
    is_persistent = False
    #: A layer that was made in advance.
    _blank: Layer | None = None
    #: A layer that was made in advance for a caller: see `reserve`.
    _reserved: Layer | None = None
    #: The free bytes, if that is less than layers should have; else 0.
    small = 0

    def __init__(self, home: str, *, owner: tuple[int, int] | None = None) -> None:
        """Create a store in `home`, see `home_for`. `owner` mounts the layers, if we do not."""
        import threading

        self.home = home
        #: Whether it is in memory by our own choice.
        self.in_memory = home.startswith(f"{PLACES[0]}/") and not os.environ.get(VARIABLE, "").startswith("/")
        self.owner = owner
        if self.in_memory and (room := _room(PLACES[0])) < LEAST_ROOM:
            self.small = room
        try:
            self.path, self._claim = _claimed(home, 0o711 if owner is not None else 0o700)
        except OSError as error:
            raise no_room(error, home) from error
        self._serial = 0
        self._lock = threading.Lock()
        if owner is not None:
            os.chown(self.path, *owner)
            os.fchown(self._claim, *owner)  # so that they can detect, too, when we are gone

    @property
    def takes_more(self) -> bool:
        """Whether the layers of one more sandbox may be here: in memory only within a budget."""
        return not self.in_memory or has_memory_for_more()

    def layer(self, *, like: str | None = None, reserved: bool = False) -> Layer:
        """Return a new, empty layer. Its mount looks like the directory `like`, of the host or of a layer.

        `reserved`: use the reserved layer, if there is one.
        """
        found = os.stat(like.reachable if isinstance(like, HostDirectory) else like) if like else None
        with self._lock:
            blank, self._blank = self._blank, None
            if reserved and self._reserved is not None:
                self._blank, blank, self._reserved = blank, self._reserved, None
        layer = self._new() if blank is None else blank
        mode = stat.S_IMODE(found.st_mode) & 0o3777 | 0o700 if found else 0o755
        if self.owner is not None and found is not None and abs(found.st_uid - self.owner[0]) < _IDS:
            os.chown(layer.upper, found.st_uid, found.st_gid)  # another id of the same sandbox
        os.chmod(layer.upper, mode)
        if found is not None:
            os.utime(layer.upper, ns=(found.st_atime_ns, found.st_mtime_ns))
        return layer

    def prewarm(self) -> None:
        """Create the directories of the next layer in advance, while no caller waits. Never raises."""
        if self._blank is not None:
            return
        try:
            made = self._new()
        except (OSError, LayerError):
            return  # the caller that needs it gets the error
        with self._lock:
            left_over, self._blank = self._blank, made
        if left_over is not None:  # another thread has made one too
            self._trash(left_over)

    def reserve(self, prepare: Callable[[str], None]) -> str:
        """Return the directory of the next `reserved` layer. OSError or LayerError if it cannot be made.

        `prepare` is called with it before it can be handed out.
        """
        with self._lock:
            found = self._reserved
        if found is None:
            found = self._new()
            prepare(found.upper)
            with self._lock:
                left_over, self._reserved = self._reserved, found
            if left_over is not None:  # another thread has made one too
                self._trash(left_over)
        return found.upper

    def _new(self) -> Layer:
        with self._lock:
            if self._claim < 0:
                raise LayerError(
                    "the store of layers is closed", fix="make another sandbox", why="its program is ending"
                )
            self._serial += 1
            layer = Layer(self, f"{self.path}/{self._serial}")
        try:
            for path in (layer.path, layer.upper, layer.work):
                places.make_directory(path)
                if self.owner is not None:
                    os.chown(path, *self.owner)
        except OSError as error:
            trash.move(layer.path, self.home)
            raise no_room(error, self.path) from error
        return layer

    def close(self) -> None:
        """Delete every layer. Does nothing when called again."""
        with self._lock:
            claim, self._claim = self._claim, -1
        if claim >= 0:
            trash.move(self.path, self.home)
            os.close(claim)

    def leave(self) -> None:
        """Leave the store to the parent process, in a forked child."""
        claim, self._claim = self._claim, -1
        if claim >= 0:
            os.close(claim)

    def _trash(self, layer: Layer) -> None:
        if self._claim >= 0:  # otherwise it was deleted with the store
            # Within the store: if we are killed, the fork server removes it with the store.
            trash.move(layer.path, self.path, self.owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


#: User of this process when it used its first store.
_users: list[int] = []


def user_of_this_process() -> int:
    """Return this process's user. Raises LaunchFailed if it has changed since the first sandbox or snapshot.

    Fork servers and stores belong to that user: a sandbox from them could have more rights than this process.
    """
    user = os.geteuid()
    if not _users:
        _users.append(user)
    if _users[0] != user:
        raise LaunchFailed(
            "sandboxes and snapshots of another user cannot be used",
            why=f"this process has opened sandboxes as uid {_users[0]}, and runs as uid {user} now",
            fix="open the first one after the process has changed its user, or open it in another process",
        )
    return user


os.register_at_fork(after_in_child=_users.clear)


def no_room(error: Exception, place: str) -> Exception:
    """Return a LayerError for a full file system, or one without free inodes; any other error unchanged.

    The layers are in `place`. The error is an OSError, or a LaunchFailed with what the kernel said in another
    process of ours.
    """
    number = error.errno if isinstance(error, OSError) else _told_number(error, place)
    if number not in _NO_ROOM:
        return error
    why = os.strerror(number)
    try:
        room = os.statvfs(place)
        if number == errno.ENOSPC and room.f_files and not room.f_favail:
            why = "no inode is left for another file"
        elif number == errno.ENOSPC:
            inodes = f" and {room.f_favail:,} inodes" if room.f_files else ""
            why = f"{why}: {room.f_bavail * room.f_frsize:,} bytes{inodes} are free now"
    except OSError:
        pass
    return LayerError(
        "there is no room for the layers of a sandbox",
        why=f"{place!r}: {why}",
        fix=f"make room there, close sandboxes and snapshots, or name another directory in ${VARIABLE}",
    )


def _told_number(error: Exception, place: str) -> int | None:
    """Return the number of the error that a LaunchFailed tells about layers in `place`.

    A full file system is not the only cause of ENOSPC: limits on mounts and namespaces have this number too.
    """
    why = error.why if isinstance(error, LaunchFailed) else ""
    is_about_it = place in why or "fsconfig" in why
    is_of_a_mount = is_about_it or why.startswith("mount: ")
    if is_of_a_mount and why.endswith(os.strerror(errno.EINVAL)) and _is_nearly_full(place):
        return errno.ENOSPC  # overlayfs without an inode for a directory of its own
    if not is_about_it:
        return None
    return next((number for number in _NO_ROOM if os.strerror(number) in why), None)


def _is_nearly_full(place: str) -> bool:
    try:
        room = os.statvfs(place)
    except OSError:
        return False
    return bool(room.f_files and room.f_favail < _FEW_INODES)


def home_for(workspaces: Iterable[str] = (), *, traversable: bool = False) -> str:
    """Return the directory for stores, created if missing, in the first place that can contain layers.

    It is never inside or around one of `workspaces`. `traversable` lets others who know the name of a store
    pass through to it, because another uid mounts root's layers.
    """
    return _first_home(
        _places(), workspaces, "the layers of a sandbox", traversable=traversable, check=can_hold_layers
    )


def home_for_copies(workspace: str, usable: Callable[[str], bool] = os.path.isdir) -> str:
    """Return the directory for whole copies of `workspace`, on its own file system if possible.

    There a copy can be by reference. Memory comes last, because a copy may be large. `usable` checks a place.
    """

    def look_at(place: str) -> None:
        if not usable(place):
            raise LayerError(
                "its files cannot be shown in a sandbox",
                why="the file system has no id-mapped mounts",
                fix="use ext4, xfs, btrfs or tmpfs",
            )

    chosen = os.environ.get(VARIABLE, "")
    places = (chosen,) if chosen.startswith("/") else (*PLACES[1:], PLACES[0])
    device = os.stat(workspace).st_dev
    near = sorted(places, key=lambda place: not os.path.isdir(place) or os.stat(place).st_dev != device)
    return _first_home(
        near, [workspace], "a copy of the workspace", traversable=os.geteuid() == 0, look_at=look_at
    )


def _first_home(
    places: Iterable[str],
    workspaces: Iterable[str],
    what: str,
    *,
    traversable: bool,
    look_at: Callable[[str], object] = str,
    check: Callable[[str], object] = str,
) -> str:
    """Return our directory in the first of `places` that is suitable for `what`.

    `look_at` raises for an unsuitable place, and `check` for an unsuitable directory created there.
    """
    away = [os.path.realpath(path) for path in workspaces]
    reasons = []
    for place in places:
        home = f"{os.path.realpath(place)}/staddle-{user()}"
        try:
            for workspace in away:
                if _overlap(home, workspace):
                    raise LayerError(
                        f"{workspace!r} is in the way",
                        why="layers cannot lie in what they are layers of",
                        fix="set STADDLE_LAYERS to a directory elsewhere",
                    )
            look_at(place)
            os.close(_opened(home, 0o711 if traversable else 0o700))
            check(home)
            return home
        except (OSError, LayerError) as error:
            reasons.append(f"{place}: {getattr(error, 'strerror', None) or error}")
    raise LayerError(
        f"there is no place for {what}",
        why="; ".join(reasons),
        fix=f"name a directory on ext4, xfs, btrfs or tmpfs in ${VARIABLE}",
    )


def sweep(home: str) -> int:
    """Delete abandoned stores in `home` and the contents of its trash; return the number of stores.

    A background thread deletes the files; `trash.wait` waits for it.
    """
    found = 0
    for name in _listed(home):
        path = f"{home}/{name}"
        if name == trash.TRASH:
            for rest in _listed(path):
                trash.delete_later(f"{path}/{rest}")
        elif _trash_abandoned(path, home):
            found += 1
    return found


def _claimed(home: str, mode: int) -> tuple[str, int]:
    """Return a new directory in `home` and its lock, which the kernel releases when we end."""
    import fcntl

    for _ in range(100):
        name = os.urandom(8).hex()
        directory = _opened(home, mode)
        try:
            places.make_directory(name, dir_fd=directory)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            lock = os.open(f"{name}/lock", flags, 0o600, dir_fd=directory)
            os.fchmod(lock, 0o600)  # as above: a sweep by a later program opens it
        except FileNotFoundError:
            continue  # the last user of `home`, or a sweep, has removed it
        finally:
            os.close(directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(f"{home}/{name}/lock")
            return f"{home}/{name}", lock
        except (BlockingIOError, FileNotFoundError):
            os.close(lock)  # a sweep was quicker, and considered it abandoned
    raise LayerError(
        f"no store can be made in {home!r}",
        why="it is being removed all the time",
        fix="see what removes it, or set STADDLE_LAYERS to another place",
    )


def _trash_abandoned(path: str, home: str) -> bool:
    """Trash the store at `path` if no process has its lock. We lock it meanwhile against other sweeps."""
    import fcntl
    import time

    try:
        lock = os.open(f"{path}/lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        # Just created, or half deleted by a process that was killed.
        try:
            old = time.time() - os.lstat(path).st_mtime > 60
        except OSError:
            return False
        if old:
            trash.move(path, home)
        return old
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        trash.move(path, home)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def can_hold_layers(directory: str) -> None:
    """Try what overlayfs needs of an upper layer's file system; LayerError names the missing feature."""
    probe = f"{directory}/.{os.urandom(8).hex()}"
    try:
        places.make_directory(probe)
    except FileNotFoundError:
        os.close(_opened(directory, 0o700))  # its last user removed it
        return can_hold_layers(directory)
    try:
        try:
            os.setxattr(probe, "user.overlay.opaque", b"y")
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            raise LayerError(
                "no extended attributes there (tmpfs has them from Linux 6.6)",
                why="overlayfs keeps its marks in them",
                fix="use ext4, xfs or btrfs",
            ) from None
        os.mknod(f"{probe}/whiteout", stat.S_IFCHR, 0)
        os.unlink(f"{probe}/whiteout")
    finally:
        os.rmdir(probe)


def _places() -> Sequence[str]:
    chosen = os.environ.get(VARIABLE, "")
    if chosen.startswith("/"):
        return (chosen,)
    memory, *others = PLACES
    if has_memory_for_more():
        return PLACES
    return [*others, memory] if _room(memory) >= LAST_RESORT else others  # the last resort


def has_memory_for_more() -> bool:
    """Whether the layers of one more sandbox may be in memory.

    All files there, of any program, may take an eighth of the available memory. This is one call of statvfs,
    and looks at no layer.
    """
    left = available()
    try:
        status = os.statvfs(PLACES[0])
    except OSError:
        return False
    room, used = status.f_bavail * status.f_frsize, (status.f_blocks - status.f_bfree) * status.f_frsize
    return room >= LEAST_ROOM and left >= LEAST_AVAILABLE and used <= left // MEMORY_PART


def _room(place: str) -> int:
    try:
        room = os.statvfs(place)
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


def _opened(home: str, mode: int) -> int:
    """Open our own directory, created if missing. Another user may have created one of that name there."""
    for _ in range(100):
        try:
            places.make_directory(home, mode)
        except FileExistsError:
            pass
        try:
            fd = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its last user removed it
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid():
                raise LayerError(
                    "another user has created the directory that staddle would use",
                    why="it has another owner, or others may write it",
                    fix="remove it, or set STADDLE_LAYERS to a directory that you own",
                )
            # Another process of ours may need others to pass through, so keep that permission.
            mode |= stat.S_IMODE(found.st_mode) & 0o011
            if stat.S_IMODE(found.st_mode) != mode:
                os.chmod(f"/proc/self/fd/{fd}", mode)
            return fd
        except BaseException:
            os.close(fd)
            raise
    raise LayerError(
        f"{home!r} is removed all the time",
        why="another process deletes it as fast as it is made",
        fix="see what removes it, or set STADDLE_LAYERS",
    )


def _overlap(home: str, workspace: str) -> bool:
    """Whether one is inside the other, on one file system: across two, no layer is below another."""
    one, other = home.rstrip("/") + "/", workspace.rstrip("/") + "/"
    if not (one.startswith(other) or other.startswith(one)):
        return False
    return os.stat(os.path.dirname(home)).st_dev == os.stat(workspace).st_dev


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
