"""The directory of a commit in progress, from which another process can finish or undo it (`recover`).

    /var/tmp/staddle-commits-<uid>/<random>/lock      locked by the process that commits
                                           /where     the target, and the place of the slots
                                           /record    the steps; exists while they are carried out
                                           /slots/    new files before, replaced files afterwards

Recovery carries out the record with the rights of the user. So records are only in places that no sandbox can
write (`places.unreachable`), whatever a policy grants and wherever the workspace is.

The slots must be on the target's own mount, or files could not be renamed between the two. If the record is
on another mount, the slots are in the user's state directory. If that is on another mount too, they are a
hidden directory in the target while the commit runs. It is removed afterwards, or by the next recovery.
"""

from __future__ import annotations

import fcntl
import json
import os

from .. import places
from ..background import do_later, rest
from ..errors import CommitFailed, LayerError, StaddleError
from ..files.remove_tree import remove
from ..linux.fileio import sync_file_system
from ..linux.process import mount_id
from .journal import KINDS, Steps, rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from .journal import Step

FORMAT = 1
#: The end of the path of slots in the user's state directory.
_IN_STATE = "/staddle/commits"


class CommitDirectory:
    """The directory of one commit. Leaving it leaves nothing, unless a record could not be handled.

    Without `durable`, the commit does not wait for the disk: it survives a kill, but not a loss of power.
    """

    def __init__(self, target_path: str, target: int, *, durable: bool = True) -> None:
        self._durable = durable
        self._target_path = os.path.realpath(target_path)
        home = _home_for(self._target_path)
        self.path, self._lock = _claimed(home)
        name = os.path.basename(self.path)
        in_state = f"{places.of_user('state')}/commits"
        self._missing = ""
        if _mount_of(home) == _mount(target):
            self._slots_path = f"{self.path}/slots"
        elif _can_be_for(in_state, self._target_path) and _mount_of(in_state) == _mount(target):
            self._missing = _missing(in_state)
            self._slots_path = f"{in_state}/{name}"
        else:
            self._slots_path = f"{self._target_path}/.staddle-commit-{name}"
        self.slots = -1
        try:
            where = {"target": self._target_path, "slots": self._slots_path}
            self._write("where", {**where, "inode": os.fstat(target).st_ino})
            if self._slots_path.startswith(f"{in_state}/"):
                _have(in_state)
                os.close(open_home(in_state))
            places.make_directory(self._slots_path)
            self.slots = os.open(self._slots_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            self._leave()
            raise

    def carry_out(
        self, target: int, steps: Sequence[Step], since: int, settle: Callable[[], object] = tuple
    ) -> None:
        """Carry out the steps, and call `settle`. All are done when this returns, none when it raises.

        The target was reviewed at `since`: a later change in a directory that is removed is a conflict.
        """
        if self._durable:
            sync_file_system(self.slots)  # all new content is on disk before the first name changes
        self._write("record", {"steps": rows(steps)})
        work = Steps(target, self.slots, steps)
        try:
            work.do(afresh=True)
            work.check_removed(since)
            if self._durable:
                _sync(target)
        except BaseException as error:
            try:
                work.undo()
            except (OSError, LayerError) as second:
                raise CommitFailed(
                    "the changes were committed in part",
                    why=f"{error}, and then, when they were to be put back, {second}",
                    fix="make the place writable; the next start finishes it, or takes it back",
                ) from error
            os.unlink(f"{self.path}/record")
            raise
        os.unlink(f"{self.path}/record")
        settle()

    def _write(self, name: str, facts: dict[str, object]) -> None:
        """Write a file of facts, whole or not at all."""
        import json

        temporary = f"{self.path}/{name}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.fchmod(fd, 0o600)
        with open(fd, "w") as file:
            file.write(json.dumps({"format": FORMAT, **facts}))
            file.flush()
            if self._durable:
                os.fsync(fd)
        os.rename(temporary, f"{self.path}/{name}")
        if not self._durable:
            return
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(directory)
        os.close(directory)

    def _leave(self) -> None:
        if self.slots >= 0:
            fd, self.slots = self.slots, -1
            os.close(fd)
        if os.path.lexists(f"{self.path}/record"):
            os.close(self._lock)
        elif self._slots_path.startswith(self.path):
            # The replaced files may be as large as the new ones.
            do_later(lambda: self._erase(rest))
        else:
            self._erase()

    def _erase(self, rest: Callable[[], object] | None = None) -> None:
        erase(self.path, self._slots_path, rest)
        os.close(self._lock)
        _tidy_after(self.path, self._slots_path, self._missing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave()


def homes() -> Iterator[str]:
    """Yield the directories for records of commits, best first. No sandbox can write to any of them."""
    return places.unreachable("commits")


def _home_for(target_path: str) -> str:
    """Return the directory for the record of a commit to this target."""
    for home in homes():
        if _can_be_for(home, target_path):
            return home
    raise LayerError(
        "there is no place for the record of a commit",
        why="none of /var/tmp, /tmp and /dev/shm can be written, or the workspace contains them",
        fix="make one of them writable",
    )


def _can_be_for(home: str, target_path: str) -> bool:
    inside = f"{home}/".startswith(f"{target_path.rstrip('/')}/")
    return not inside and _is_writable(_existing(home))


def open_home(home: str) -> int:
    """Open the directory, which must be ours alone: its records are carried out with our rights."""
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        os.close(fd)
        raise LayerError(
            f"{home!r} is not staddle's alone", why="another user has created it", fix="remove it"
        )
    return fd


def _have(directory: str) -> None:
    """Make a directory of ours and those above it, if they are missing."""
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    try:
        places.make_directory(directory)
    except FileExistsError:
        pass


def _claimed(home: str) -> tuple[str, int]:
    """Return a new directory in `home` and its lock, which the kernel releases when we end."""
    import fcntl

    for _ in range(100):
        name = os.urandom(8).hex()
        path = f"{home}/{name}"
        try:
            _have(home)
            directory = open_home(home)
            try:
                places.make_directory(name, dir_fd=directory)
                lock = os.open(f"{name}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory)
                os.fchmod(lock, 0o600)  # whatever the umask: a recovery by a later program opens it
            finally:
                os.close(directory)
        except (FileNotFoundError, FileExistsError):
            continue  # another commit ended, and tidied up
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.lexists(f"{path}/lock"):
            return path, lock
        os.close(lock)  # a recovery was quicker, and considered it abandoned
    raise LayerError(
        f"nothing can be kept in {home!r}",
        why="it is being removed all the time",
        fix="see what removes it, or set STADDLE_LAYERS to another place",
    )


def _sync(target: int) -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=target)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _is_writable(directory: str) -> bool:
    return os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _mount_of(path: str) -> tuple[int, bytes]:
    try:
        fd = os.open(_existing(path), os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return _mount_of(os.path.dirname(path))  # another process has just removed it
    try:
        return _mount(fd)
    finally:
        os.close(fd)


def _mount(fd: int) -> tuple[int, bytes]:
    """Return the file system and its mount: files can be renamed only within both."""
    return os.fstat(fd).st_dev, mount_id(fd)


def erase(path: str, slots: str | None, rest: Callable[[], object] | None = None) -> None:
    """Remove the directory of a commit. The lock goes last: a recovery needs it to find the rest."""
    if slots is not None:
        remove((os.fsencode(slots),), rest)
    try:
        for name in sorted(os.listdir(path), key=lambda name: name == "lock"):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
    except OSError:
        pass  # another process was quicker


def _tidy_after(path: str, slots: str, made: str = "") -> None:
    above = os.path.dirname(slots)
    if above.endswith(_IN_STATE):
        tidy(above, made)
    tidy(os.path.dirname(path))


def tidy(home: str, made: str = "") -> None:
    """Remove empty directories of ours, and those above them from `made` on, which we created for them."""
    last = os.path.dirname(home) if home.endswith(_IN_STATE) else home
    if made and last.startswith(made):
        last = made
    try:
        while home.startswith(last):
            os.rmdir(home)
            home = os.path.dirname(home)
    except OSError:
        pass  # not empty, or missing


def _missing(path: str) -> str:
    """Return the first missing directory on the way to `path`; empty if all exist."""
    first = ""
    while not os.path.isdir(path):
        first, path = path, os.path.dirname(path)
    return first


def recover() -> list[str]:
    """Finish or undo commits that were killed halfway; return their targets.

    To be called at a start: without such a commit it costs one look at each place. A target is left as it is
    if it is missing, or was changed so that neither is possible.
    """
    touched = []
    for home in homes():
        try:
            directory = open_home(home)
        except (OSError, StaddleError):
            continue  # missing, or not ours alone
        names = os.listdir(directory)
        os.close(directory)
        for name in names:
            target = _recovered(f"{home}/{name}")
            if target is not None:
                touched.append(target)
        tidy(home)
    return touched


def _recovered(path: str) -> str | None:
    """Recover one directory of a commit whose process is gone; return its target, if there was work to do."""
    try:
        lock = os.open(f"{path}/lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        tidy(path, path)  # empty: its process was just killed, or is creating it now
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        where = _facts(f"{path}/where")
        if where is None:  # killed before anything else was created
            erase(path, None)
            return None
        target, slots = str(where["target"]), str(where["slots"])
        record = _facts(f"{path}/record")
        if record is not None:
            if not _finished(where, record):
                return None
            os.unlink(f"{path}/record")  # before the slots, whose absence would otherwise be an error
        erase(path, slots)
        _tidy_after(path, slots)
        return target
    except (BlockingIOError, KeyError, TypeError, ValueError):
        return None  # in use, or not written by us
    finally:
        os.close(lock)


def _finished(where: dict[str, object], record: dict[str, object]) -> bool:
    """Finish the steps, or undo them if that is not possible; False if neither is."""
    rows = record["steps"]
    if not isinstance(rows, list):
        return False
    steps = [KINDS[row[0]](*row[1:]) for row in rows]
    opened: list[int] = []
    try:
        for place in (where["target"], where["slots"]):
            opened.append(os.open(str(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if os.fstat(opened[0]).st_ino != where["inode"]:
            return False  # another directory has the name now
        work = Steps(opened[0], opened[1], steps)
        if work.can_go_on():
            try:
                work.do()
                return True
            except (OSError, StaddleError):
                pass
        if work.can_go_back():
            work.undo()
            return True
        return False
    except (OSError, StaddleError):
        return False
    finally:
        for fd in opened:
            os.close(fd)


def _facts(path: str) -> dict[str, object] | None:
    try:
        with open(path) as file:
            facts = json.load(file)
    except FileNotFoundError:
        return None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError("another version of staddle wrote it")
    return facts
