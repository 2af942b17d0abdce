"""The control groups of this program: found out once, made when the first sandbox needs one.

Finding out only observes: `observe` and what it calls create, move and ask for nothing.
"""

from __future__ import annotations

import _thread
import atexit
import os

from ..interrupts import uninterrupted
from ..linux import cgroups
from ..linux.fileio import read_whole
from ..linux.process_tree import is_in_first_namespace
from . import cgroup_layout
from .cgroup_layout import CgroupFacts, Hierarchy
from .cgroup_tree import CgroupTree, tidy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ..policy.limits import Limits
    from .cgroup_layout import CgroupSupport
    from .sandbox_cgroups import SandboxCgroups


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


_turn = _thread.allocate_lock()
#: By process: a fork has its parent's memory, but none of its groups.
_known: dict[tuple[int, int], CgroupSupport] = {}
_families: dict[tuple[int, CgroupSupport], CgroupTree] = {}


def support() -> CgroupSupport:
    """The cgroup support of this host for the current user. Observed once; asks no service."""
    who = os.getpid(), os.geteuid()
    with _turn:
        if who not in _known:
            _known.clear()
            _known[who] = cgroup_layout.decide(observe())
        return _known[who]


def group(limits: Limits, *, ours: int = 0, together: bool = False) -> SandboxCgroups | None:
    """Groups for one more sandbox with `limits` in force; None where this host has none for us to make.

    Where a scope of systemd has to be started first, that is the caller's: see `scope`, and make
    a CgroupTree of what it gives.
    """
    wanted = {"memory", "pids"} if limits.cpu is None else cgroup_layout.HOLDING
    found = tree(support().reduced(frozenset(wanted)))
    return None if found is None else found.group(limits, ours=ours, together=together)


def tree(found: CgroupSupport) -> CgroupTree | None:
    """All groups of this program with the support `found`; None where it can have none as it is."""
    if not found.places or found.scope:
        return None
    key = os.getpid(), found
    if key not in _families:  # the new one looks in its own places
        for place in support().places:
            if place.base and all(place.base != own.base for own in found.places):
                tidy(place.base)
    with _turn:
        made = _families.get(key)
        if made is None:
            uninterrupted(lambda: _families.update({key: CgroupTree(found)}))
            made = _families[key]
    return made


def close() -> None:
    """Remove all groups of this program, and end what is in them. The next sandbox gets new ones."""
    with _turn:
        found = [_families.pop(key) for key in tuple(_families) if key[0] == os.getpid()]
    for each in found:
        each.close()


def _after_fork() -> None:
    """A fork of this program has no groups: those are its parent's, and go with that."""
    while _families:
        _families.popitem()[1].let_go()


def close_at_exit() -> None:
    """Remove them where the shell that waits for our end may end with us, with our pid namespace."""
    if _families and not is_in_first_namespace():
        close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_at_exit)
