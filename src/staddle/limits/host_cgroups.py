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
    from collections.abc import Callable
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
        # systemd enables no controllers in a cgroup that it delegates. We can while it contains no processes.
        is_empty = not words(f"{root}{above}", cgroups.MEMBERS)
        offered = words(f"{root}{above}", "cgroup.controllers") if is_empty else enabled
        return Hierarchy(2, offered, own, may_have_groups(seen), enabled, above, mount.read_only)
    found = Hierarchy(2, offered, own, may_have_groups(seen), enabled, "", mount.read_only)
    if own == mount.place or not may_have_siblings(f"{root}{above}"):
        return found
    return found.replace(beside=above, limited=own_limit(seen))


#: Files by which a cgroup is limited, with the words of those that do not limit it.
_UNLIMITED = {
    "memory.max": ("max",),
    "memory.high": ("max",),
    "memory.swap.max": ("max",),
    "pids.max": ("max",),
    "cpu.max": ("max",),
    "cpuset.cpus": (),
    "cpuset.mems": (),
    "io.max": (),
}
#: systemd alone makes cgroups below its units, even if it is not visible from a container.
_OF_SYSTEMD = (".slice", ".scope", ".service")


def may_have_siblings(parent: str) -> bool:
    """Whether we may make a sibling of our own cgroup in `parent`, which no unit of systemd may contain."""
    return may_have_groups(parent) and not any(part.endswith(_OF_SYSTEMD) for part in parent.split("/"))


def own_limit(group: str) -> str:
    """Return the name of a file that limits this version 2 cgroup itself; empty if there is none."""
    for name, unlimited in _UNLIMITED.items():
        try:
            said = cgroups.read(group, name).split()
        except OSError:
            continue  # a controller that it does not have
        if tuple(said[:1]) != unlimited:
            return name
    return ""


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


def group(
    limits: Limits,
    *,
    ours: int = 0,
    together: bool = False,
    in_scope: Callable[[CgroupSupport], CgroupTree] | None = None,
) -> SandboxCgroups | None:
    """Create cgroups for one more sandbox with `limits` in force; None if this host allows none.

    If a scope of systemd is needed, `in_scope` starts it and makes the tree in it (see `scope`).
    """
    means = support()
    if not means.scope:
        wanted = {"memory", "pids"} if limits.cpu is None else cgroup_layout.HOLDING
        means = means.reduced(frozenset(wanted))
    found = tree(means, in_scope)
    return None if found is None else found.group(limits, ours=ours, together=together)


def tree(
    found: CgroupSupport, in_scope: Callable[[CgroupSupport], CgroupTree] | None = None
) -> CgroupTree | None:
    """Return the cgroup tree of this program for the support `found`.

    It is None if there can be none without a scope, and `in_scope` starts none.
    """
    make = in_scope if found.scope else CgroupTree
    if not found.places or make is None:
        return None
    key = os.getpid(), found
    if key not in _families:  # a new tree tidies its own places itself
        for place in support().places:
            if place.base and all(place.base != own.base for own in found.places):
                tidy(place.base)
    with _turn:
        made = _families.get(key)
        if made is None:
            uninterrupted(lambda: _families.update({key: make(found)}))
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
