"""Observe the cgroups of this host: nothing is created, moved or asked for."""

from __future__ import annotations

import os

from ..linux import cgroups
from ..linux.fileio import read_whole
from .cgroup_layout import CgroupFacts, Hierarchy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


def observe(pid: int | str = "self", uid: int | None = None, root: str = "") -> CgroupFacts:
    """The facts for a process, ourselves if not said. `root` is put before every path, for tests."""
    try:
        own = cgroups.memberships(read_whole(f"{root}/proc/{pid}/cgroup"))
        mounted = cgroups.mounts(read_whole(f"{root}/proc/self/mountinfo"))
    except OSError:
        return CgroupFacts(())
    uid = os.geteuid() if uid is None else uid
    systemd = os.path.isdir(f"{root}/run/systemd/system")
    found = []
    known: set[frozenset[str]] = set()
    for mount in mounted:
        if mount.controllers not in known:  # the one that is on top, and each only once
            known.add(mount.controllers)
            found.append(_hierarchy(mount, own, root))
    manager, why, manageable = _manager(uid, root) if systemd else ("", "", frozenset())
    return CgroupFacts(tuple(found), systemd, manager, why, manageable)


def _hierarchy(mount: cgroups.Mount, memberships: dict[str, str], root: str) -> Hierarchy:
    path = memberships.get("" if mount.version == 2 else next(iter(mount.controllers), ""), "/..")
    own = cgroups.directory(mount, path)
    if own is None:
        return Hierarchy(mount.version, mount.controllers, "", writable=False, read_only=mount.read_only)
    seen = f"{root}{own}"
    if mount.version == 1:
        return Hierarchy(1, mount.controllers, own, writable=may_have_groups(seen), read_only=mount.read_only)
    offered, enabled = words(seen, "cgroup.controllers"), words(seen, "cgroup.subtree_control")
    above = os.path.dirname(own)
    if own != mount.place and delegated(f"{root}{above}"):
        enabled = words(f"{root}{above}", "cgroup.subtree_control")
        return Hierarchy(2, offered, own, may_have_groups(seen), enabled, above, mount.read_only)
    return Hierarchy(2, offered, own, may_have_groups(seen), enabled, "", mount.read_only)


def may_have_groups(group: str) -> bool:
    """Whether we may make groups in `group`, and move into them processes that are in it."""
    return os.access(group, os.W_OK) and os.access(f"{group}/{cgroups.MEMBERS}", os.W_OK)


def delegated(group: str) -> bool:
    """Whether systemd has given away `group`, to us: it marks those, since version 251."""
    try:
        marked = os.getxattr(group, "user.delegate") == b"1"
    except OSError:
        return False
    return marked and may_have_groups(group)


def words(group: str, name: str) -> frozenset[str]:
    """The words in a file of a group; none when it cannot be read."""
    try:
        return frozenset(cgroups.read(group, name).split())
    except OSError:
        return frozenset()


def _manager(uid: int, root: str) -> tuple[Literal["user", "system", ""], str, frozenset[str]]:
    from ..linux.systemd_manager import Manager, delegated_controllers, find

    found = find(uid, root=root)
    if not isinstance(found, Manager):
        return "", found.why, frozenset()
    return found.scope, "", delegated_controllers(found.scope, uid, f"{root}/sys/fs/cgroup")
