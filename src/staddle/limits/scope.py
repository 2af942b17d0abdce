"""Cgroups from systemd: a scope that is delegated to us, for the fork server and its sandboxes.

In version 2, a cgroup contains either processes or cgroups with controllers. So we move the process that was
started in the scope to a child cgroup, and create those of the sandboxes next to it. systemd removes the
scope with its cgroups when its last process has ended.
"""

from __future__ import annotations

import errno
import os

from ..errors import LaunchFailed
from ..linux import cgroups
from . import host_cgroups
from .cgroup_layout import HOLDING, CgroupParent, CgroupSupport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..linux.systemd_manager import Manager

_OURS = "staddle"
_TURNS = 100


def asked() -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command prefix and variables that start a fork server in a scope, if it needs one."""
    if not host_cgroups.support().scope:
        return (), {}
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
