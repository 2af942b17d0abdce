"""Verify a sandbox of a session before anything runs in it.

As for a single command (see `inside.verify`), but in two places. The first process keeps its rights over the
sandbox, so its child verifies the view. Each process that it starts verifies itself, right before its exec.
"""

from __future__ import annotations

import os

from ...ipc.namespace_spec import foreign
from ...linux.fileio import read_whole
from ..verify import absent, refuse_without, rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from ...ipc.forkserver_messages import ForkServerConfig

    #: (name, inode) of the namespaces in which no sandbox may be.
    Outside: TypeAlias = tuple[tuple[bytes, int], ...]

_ALWAYS = ("user", "mnt", "pid", "ipc", "uts", "cgroup")


def outside(config: ForkServerConfig) -> Outside:
    """Return the namespaces in which a fork server is started, read before it makes its own."""
    return foreign(_ALWAYS if config.network else (*_ALWAYS, "net"))


def template() -> Outside:
    """Return the namespace that the fork server has made for itself alone."""
    return foreign(("mnt",))


def user_namespace() -> int:
    """Return the inode of our user namespace."""
    return os.stat("/proc/self/ns/user").st_ino


def at_myself(uid: int, gid: int, maps: tuple[tuple[str, bytes], ...], outer: int, kept: int = 0) -> None:
    """Verify a confined process before its exec. NotStarted if something is missing.

    `kept` are the capabilities that it may still have.
    """
    status = read_whole("/proc/self/status")
    found = {
        **rights(status, kept),
        "a filter of system calls": b"\nSeccomp:\t2\n" in status,
        "a user namespace of its own": user_namespace() != outer,
        "a user of its own": os.getresuid() == (uid,) * 3 and os.getresgid() == (gid,) * 3,
        "ids of its own": all(
            read_whole(f"/proc/self/{name}").split() == text.split() for name, text in maps
        ),
    }
    refuse_without(absent(found))
