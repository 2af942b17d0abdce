"""The control groups of this program: found out once, made when the first sandbox needs one."""

from __future__ import annotations

import _thread
import os

from . import cgroup_facts, cgroup_layout
from .cgroup_tree import CgroupTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.limits import Limits
    from .cgroup_layout import CgroupSupport
    from .sandbox_cgroups import SandboxCgroups

_turn = _thread.allocate_lock()
#: By process: a fork has its parent's memory, but none of its groups.
_known: dict[tuple[int, int], CgroupSupport] = {}
_families: dict[int, CgroupTree] = {}  # one, or none


def support() -> CgroupSupport:
    """The cgroup support of this host for the current user. Observed once; asks no service."""
    who = os.getpid(), os.geteuid()
    with _turn:
        if who not in _known:
            _known.clear()
            _known[who] = cgroup_layout.decide(cgroup_facts.observe())
        return _known[who]


def group(limits: Limits, *, ours: int = 0, together: bool = False) -> SandboxCgroups | None:
    """Groups for one more sandbox with `limits` in force; None where this host has none for us to make.

    Where a scope of systemd has to be started first, that is the caller's: see `scope`, and make
    a CgroupTree of what it gives.
    """
    found = tree()
    return None if found is None else found.group(limits, ours=ours, together=together)


def tree() -> CgroupTree | None:
    """All groups of this program; None where it can have none as it is."""
    found = support()
    if not found.places or found.scope:
        return None
    with _turn:
        made = _families.get(os.getpid())
        if made is None:
            made = _families[os.getpid()] = CgroupTree(found)
    return made


def close() -> None:
    """Remove all groups of this program, and end what is in them. The next sandbox gets new ones."""
    with _turn:
        found = _families.pop(os.getpid(), None)
    if found is not None:
        found.close()


def _after_fork() -> None:
    """A fork of this program has no groups: those are its parent's, and go with that."""
    while _families:
        _families.popitem()[1].let_go()


os.register_at_fork(after_in_child=_after_fork)
