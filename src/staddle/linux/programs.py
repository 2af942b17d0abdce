"""The programs of the system that we start: find them, and check whether they can be trusted.

They run with the rights of the user, or of root, before anything is confined. So they come only from system
directories, never from PATH or the working directory, and only root may be able to change them.
"""

from __future__ import annotations

import os
import stat

from .._value import Value

#: Directories to search, in this order.
DIRECTORIES: tuple[str, ...] = ("/usr/bin", "/usr/local/bin", "/bin")


class Program(Value):
    """An executable, at the time we looked. `problem` is the reason not to use it."""

    path: str
    identity: tuple[int, ...] = ()
    problem: str = ""


def find(name: str, directories: tuple[str, ...] | None = None) -> Program | None:
    """Return the system's program `name`; None if there is none."""
    for directory in DIRECTORIES if directories is None else directories:
        program = examine(os.path.join(directory, name))
        if program is not None:
            return program
    return None


def examine(path: str, *, owners: tuple[int, ...] = (0,)) -> Program | None:
    """Return the program at `path` with its problem, if any; None if nothing is there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return Program(path, identity, _problem(path, status, owners))


def _problem(path: str, status: os.stat_result, owners: tuple[int, ...]) -> str:
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.X_OK):
        return f"{path} cannot be executed"
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return f"{path} is setuid, and a setuid bwrap refuses what confines the command here"
    # In a user namespace that does not map root, root's files belong to the overflow id.
    stranger = status.st_uid not in owners and (status.st_uid != _overflow() or os.access(path, os.W_OK))
    if stranger or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return f"{path} can be changed by others than root (owner {status.st_uid}, mode {mode})"
    return ""


def _overflow() -> int:
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65534
