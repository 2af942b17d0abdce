"""Verify a sandbox of a session before anything runs in it.

As for a single command (see `inside.verify`), but in two places. The first process keeps its rights over the
sandbox, so its child verifies the view. Each process that it starts verifies itself, right before its exec.
"""

from __future__ import annotations

import os

from ...ipc.namespace_spec import foreign
from ...linux.fileio import read_whole
from ...mounts.shared_view import ASIDE
from ..verify import absent, is_read_only, own_root, refuse_without, rights, shared

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


def around(config: ForkServerConfig, outside: Outside) -> None:
    """Verify the view, in the child that made it. NotStarted if something is missing."""
    mountinfo = read_whole("/proc/self/mountinfo")
    found = {
        "a PID 1 above it": os.getppid() == 1,
        "its own host name": not config.host or os.fsencode(os.uname().nodename) == config.host,
        "a root of its own": own_root(mountinfo),
        "a /proc of its own, or one that cannot be written": bool(config.outer_processes)
        == is_read_only(mountinfo, b"/proc"),
        "an end to what is kept aside": f" {ASIDE}/".encode() not in mountinfo,
    }
    refuse_without([*shared(outside), *absent(found)])


def at_the_first() -> None:
    """Verify the first process, before it starts any process of the sandbox."""
    found = {
        "being its PID 1": os.getpid() == 1,
        "a command line without paths of the host": b"/" not in read_whole("/proc/self/cmdline"),
    }
    refuse_without(absent(found))


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
