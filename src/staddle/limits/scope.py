"""Cgroups from systemd: a scope that is delegated to us, for the fork server and its sandboxes.

In version 2, a cgroup contains either processes or cgroups with controllers. So we move the process that was
started in the scope to a child cgroup, and create those of the sandboxes next to it. systemd removes the
scope with its cgroups when its last process has ended.

Single commands are children of the host program and enter the scope later. The kernel allows this only to
root. For them a small shell keeps the scope.
"""

from __future__ import annotations

import errno
import os

from ..errors import LaunchFailed
from ..linux import cgroups, process
from . import host_cgroups
from .cgroup_layout import HOLDING, CgroupParent, CgroupSupport
from .cgroup_tree import CgroupTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..linux.systemd_manager import Manager

_OURS = "staddle"
_TURNS = 100
#: Seconds for systemd to start a scope.
_PATIENCE = 30.0


def asked() -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command prefix and variables that start a fork server in a scope, if it needs one."""
    return _command() if host_cgroups.support().scope else ((), {})


def _command() -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command prefix and variables that start a process in a new scope."""
    from ..linux.systemd_manager import Manager, find

    found = find()
    if not isinstance(found, Manager):
        raise _refused(found.why)
    return _prefix(found, f"staddle-{os.getpid()}-{os.urandom(6).hex()}"), found.environment


def _prefix(manager: Manager, name: str) -> tuple[str, ...]:
    """Return the command prefix that runs a command, as the same process, in the scope `name`."""
    return (
        manager.systemd_run,
        "--user" if manager.scope == "user" else "--system",
        *("--scope", "--quiet", "--collect", "--no-ask-password"),
        *(f"--unit={name}.scope", "--description=sandboxes of staddle", "--property=Delegate=yes"),
        "--",
    )


class ScopeTree(CgroupTree):
    """The cgroups of this program in a scope of its own, for single commands of root."""

    def __init__(self, means: CgroupSupport) -> None:
        import socket

        before, around = _command()
        #: Our end: the shell waits until it is closed.
        self._waited, theirs = socket.socketpair()
        try:
            self._waited.settimeout(_PATIENCE)
            actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]]
            actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), fd) for fd in (0, 1)]
            actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
            # Its own session: a Ctrl-C or a closed terminal that ends us must not end the shell.
            self._shell = os.posix_spawn(
                before[0],
                [*before, "/bin/sh", "-c", "cd /; echo; read line"],
                {**around, "PATH": "/usr/bin:/bin"},
                file_actions=actions,
                setsid=True,
            )
        except OSError as error:
            self._waited.close()
            raise _refused(error.strerror or str(error)) from error
        finally:
            theirs.close()
        try:
            if not self._waited.recv(1):
                raise _refused("systemd-run has failed, see `journalctl -e`")
            super().__init__(settle(self._shell, means))
        except BaseException as error:
            os.kill(self._shell, process.SIGKILL)
            self._end()
            if isinstance(error, TimeoutError):
                raise _refused(f"systemd has not answered for {_PATIENCE:.0f} seconds") from error
            raise

    def close(self) -> None:
        """Remove the cgroups as usual, and let systemd remove the scope."""
        if self._pid == os.getpid() and not self.closed:
            super().close()
            self._end()

    def let_go(self) -> None:
        """Close our end of the socket in a forked child."""
        super().let_go()
        self._waited.close()

    def _end(self) -> None:
        self._waited.close()
        try:
            os.waitpid(self._shell, 0)
        except ChildProcessError:
            pass  # the program around us reaps every child itself


def settle(pid: int, means: CgroupSupport, uid: int | None = None) -> CgroupSupport:
    """Prepare the scope in which `pid` was started; return `means` with that scope as its place.

    Run by the host program as the scope's owner: the user, or root. Children of `pid` are moved with it.
    LaunchFailed if it is in no scope of ours.
    """
    hierarchy = next((item for item in host_cgroups.observe(pid, uid).hierarchies if item.version == 2), None)
    if hierarchy is None or not hierarchy.own.endswith(".scope") or not hierarchy.writable:
        raise _refused(f"the process is in {hierarchy.own if hierarchy else 'no group'!r}")
    wanted = next((place.controllers for place in means.places if place.given), frozenset(HOLDING))
    try:
        os.mkdir(f"{hierarchy.own}/{_OURS}", 0o755)
        _move_all(hierarchy.own, f"{hierarchy.own}/{_OURS}")
        enabled = wanted & hierarchy.controllers
        cgroups.enable(hierarchy.own, enabled)
    except OSError as error:
        raise _refused(error.strerror or str(error)) from error
    places = (*(place for place in means.places if not place.given), CgroupParent(2, hierarchy.own, enabled))
    lost = tuple(
        (name, f"the scope has no {name} controller", f"Delegate={name} for user@.service")
        for name in sorted(wanted - enabled)
    )
    return CgroupSupport(places, "", (*means.why_not, *lost))


def _move_all(source: str, target: str) -> None:
    """Move every process, including those that they start meanwhile."""
    for _ in range(_TURNS):
        left = cgroups.members(source)
        if not left:
            return
        for pid in left:
            try:
                cgroups.add(target, pid)
            except ProcessLookupError:
                continue  # it has ended
    raise OSError(errno.EBUSY, "its processes keep starting others")


def _refused(why: str) -> LaunchFailed:
    return LaunchFailed(
        "systemd gave no control group to set limits in",
        why=why,
        fix="leave limits.memory, limits.cpu and limits.processes out, or see `staddle doctor`",
    )
