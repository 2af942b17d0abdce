"""Control groups from systemd: a scope that is delegated to us, for the fork server and its sandboxes.

In version 2 a group has either processes or groups with controllers. So the process that was
started in the scope is moved to a group of its own in there, and the sandboxes get theirs
beside it. The scope ends, and its groups with it, when the last process in it has.
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
    """Words to put before the command of a fork server, and variables, where it has to be in a scope."""
    if not host_cgroups.support().scope:
        return (), {}
    from ..linux.systemd_manager import Manager, find

    found = find()
    if not isinstance(found, Manager):
        raise _refused(found.why)
    return _prefix(found, f"staddle-{os.getpid()}-{os.urandom(6).hex()}"), found.environment


def _prefix(manager: Manager, name: str) -> tuple[str, ...]:
    """Runs a command, as the same process, in a scope `name`."""
    return (
        manager.systemd_run,
        "--user" if manager.scope == "user" else "--system",
        *("--scope", "--quiet", "--collect", "--no-ask-password"),
        *(f"--unit={name}.scope", "--description=sandboxes of staddle", "--property=Delegate=yes"),
        "--",
    )


def settle(pid: int, means: CgroupSupport, uid: int | None = None) -> CgroupSupport:
    """Make room in the scope that `pid` was started in; the means with the scope in its place.

    Run by the host program, which owns the scope: the user, or root. What `pid` has started by
    now is moved with it. LaunchFailed when it is in no scope of ours.
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
    """Move every process, and those that they start meanwhile."""
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
