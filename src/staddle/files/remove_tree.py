"""Private directories: made before the command starts, gone after it, whatever it left in them."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_ATTEMPTS = 10


def make(directories: Sequence[bytes], uid: int = -1, gid: int = -1) -> None:
    """Make these, each private to its owner. The first must be new: its name is a secret until now."""
    for directory in directories:
        try:
            os.mkdir(directory, 0o700)
            if uid >= 0:
                os.chown(directory, uid, gid)
        except BaseException:
            if directory != directories[0]:
                remove(directories)
            raise


#: The file that is removed after all others in a directory.
LOCK = "lock"


def remove(directories: Sequence[bytes], rest: Callable[[], object] | None = None) -> None:
    """Remove the first of them with everything below. Never raises; never follows a link.

    `rest` is called now and then, by who is in no hurry. What cannot be removed stays, and the rest goes.

    What is inside was made by the command: names, depth, number and modes are its choice.
    Nothing is done by path below the top, and no directory is entered from another one:
    each is moved up to the top first, so that depth costs neither stack nor descriptors.
    """
    if not directories:
        return
    for _ in range(_ATTEMPTS):
        try:
            top = _open_directory(directories[0])
            try:
                _empty(top, rest or _go_on)
            finally:
                os.close(top)
            os.rmdir(directories[0])
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                continue  # the kernel, or a process that still runs, put something into it
        return  # or gone already, or a file system that lets nothing be removed any more


def _go_on() -> None:
    pass


def _empty(top: int, rest: Callable[[], object]) -> None:
    # Names that the command cannot have taken: it is dead by now.
    prefix, serial = os.urandom(8).hex(), 0
    stuck: dict[str, OSError] = {}
    # The lock of a store goes last: without it, what is left when we are killed now looks like a new store.
    while names := [name for name in os.listdir(top) if name not in stuck and name != LOCK] or (
        [LOCK] if not stuck and LOCK in os.listdir(top) else []
    ):
        for name in names:
            rest()
            try:
                if _unlink(top, name):
                    continue
                directory = _open_directory(name, top)
                try:
                    for inner in os.listdir(directory):
                        rest()
                        if not _unlink(directory, inner):
                            os.close(_open_directory(inner, directory))  # moving it takes rights on it
                            serial += 1
                            os.rename(inner, f"{prefix}-{serial}", src_dir_fd=directory, dst_dir_fd=top)
                finally:
                    os.close(directory)
                os.rmdir(name, dir_fd=top)
            except FileNotFoundError:
                continue  # another one who removes it was quicker
            except OSError as error:
                stuck[name] = error
    if stuck:
        raise next(iter(stuck.values()))


def _unlink(directory: int, name: str) -> bool:
    """Remove a file or an empty directory; False when it is a directory with something in it."""
    try:
        os.unlink(name, dir_fd=directory)
        return True
    except IsADirectoryError:
        pass
    try:
        os.rmdir(name, dir_fd=directory)
        return True
    except OSError:
        return False


def _open_directory(name: str | bytes, parent: int | None = None) -> int:
    """Open a directory of ours, giving ourselves back the rights that the command took away."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, os.O_PATH | flags, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
    return os.open(name, os.O_RDONLY | flags, dir_fd=parent)
