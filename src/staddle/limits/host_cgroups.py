"""The cgroups of this program: detected once, created when the first sandbox needs them.

Detection only observes. `observe` and the functions that it calls create, move and request nothing.
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
    """Collect the facts for a process (default: this one). `root` is a prefix for every path, for tests."""
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
        if mount.controllers not in known:  # the topmost mount of each hierarchy
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
    """Whether we may create cgroups in `group`, and move its processes into them."""
    return os.access(group, os.W_OK) and os.access(f"{group}/{cgroups.MEMBERS}", os.W_OK)


def delegated(group: str) -> bool:
    """Whether systemd has delegated `group` to us. systemd marks delegated cgroups since version 251."""
    try:
        marked = os.getxattr(group, "user.delegate") == b"1"
    except OSError:
        return False
    return marked and may_have_groups(group)


def words(group: str, name: str) -> frozenset[str]:
    """Return the words in a file of a cgroup; none if it cannot be read."""
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
#: By process: a forked child has its parent's memory, but none of its cgroups.
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
    """Create cgroups for one more sandbox with `limits` in force; None if this host allows none.

    If a scope of systemd is needed, the caller has to start it (see `scope`), and make a CgroupTree from it.
    """
    wanted = {"memory", "pids"} if limits.cpu is None else cgroup_layout.HOLDING
    found = tree(support().reduced(frozenset(wanted)))
    return None if found is None else found.group(limits, ours=ours, together=together)


def tree(found: CgroupSupport) -> CgroupTree | None:
    """Return the cgroup tree of this program for the support `found`;

    None if there can be none without a scope.
    """
    if not found.places or found.scope:
        return None
    key = os.getpid(), found
    if key not in _families:  # a new tree tidies its own places itself
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
    """Kill all members of this program's cgroups and remove them. The next sandbox gets new cgroups."""
    with _turn:
        found = [_families.pop(key) for key in tuple(_families) if key[0] == os.getpid()]
    for each in found:
        each.close()


def _after_fork() -> None:
    """Forget the cgroups in a forked child: they are its parent's."""
    while _families:
        _families.popitem()[1].let_go()


def close_at_exit() -> None:
    """Remove the cgroups at exit if the shell that waits for our end may end with us (a pid namespace)."""
    if _families and not is_in_first_namespace():
        close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_at_exit)
