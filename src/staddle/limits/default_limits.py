"""Limits that protect this host if the policy sets none: a share of the resources available now.

They are measured when a sandbox is opened, not when a policy is written. If a default cannot be enforced
exactly, a weaker mechanism enforces it. A default never prevents a sandbox from starting.
"""

from __future__ import annotations

import os

from ..enforcement import Gap
from ..linux import cgroups
from ..linux.memory import ancestors, available
from .disk import in_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.limits import Limits

#: Divisors for the available memory, for files of a sandbox in memory, and for free disk space.
MEMORY_PART, FILES_PART, DISK_PART = 2, 4, 4
#: Significant binary digits of the default memory limit.
_DIGITS = 5
MOST_PROCESSES, MOST_ON_DISK = 4096, 10 << 30
#: Lower bounds of the defaults, so that a shell and a few programs always run.
LEAST_MEMORY, LEAST_PROCESSES, LEAST_DISK = 64 << 20, 64, 64 << 20

#: Why a default is not enforced, and how to fix it.
_UNHELD = {
    "memory": (
        "nothing bounds memory here: the policy sets no limit, and a default needs a staddle process inside",
        "use the namespaces backend; or set limits.memory (None: no limit)",
    ),
    "processes": (
        "nothing bounds the number of processes here: a default needs a user namespace of the sandbox's own",
        "use the namespaces backend; or set limits.processes (None: no limit)",
    ),
    "disk": (
        "what is written goes straight to the host's file systems, which staddle cannot limit",
        "use mode='overlay' on the namespaces backend; or set limits.disk=None",
    ),
}


def fill_in(limits: Limits, store: str = "") -> Limits:
    """Return `limits` with a number for each default; `defaults` still names them.

    `store` is our directory for the files that the sandbox writes. Without one, `disk` stays unset.
    """
    if not limits.defaults:
        return limits
    filled: dict[str, int] = {}
    if "memory" in limits.defaults:
        filled["memory"] = default_memory()
    if "processes" in limits.defaults:
        filled["processes"] = default_processes()
    if "disk" in limits.defaults and store:
        filled["disk"] = default_disk(store)
    return limits.replace(**filled, defaults=limits.defaults)


def default_memory() -> int:
    """Half of the available memory, rounded, so that cgroups that were limited in advance fit."""
    half = available() // MEMORY_PART
    digits = max(0, half.bit_length() - _DIGITS)
    return max(LEAST_MEMORY, half >> digits << digits)


def default_disk(store: str) -> int:
    """`free_share`, but at most 10 GB on a disk."""
    share = free_share(store)
    return share if in_memory(store) else min(share, MOST_ON_DISK)


def free_share(store: str) -> int:
    """A quarter of the free space where `store` is, on disk or in memory."""
    try:
        status = os.statvfs(store)
    except OSError:
        return MOST_ON_DISK
    room = status.f_bavail * status.f_frsize
    if in_memory(store):
        return max(LEAST_DISK, min(room, available()) // FILES_PART)
    return max(LEAST_DISK, room // DISK_PART)


_known: dict[int, int] = {}  # by process


def default_processes() -> int:
    """4096, or half of the processes that this user or our cgroup may have, if that is less.

    Looked up once.
    """
    found = _known.get(os.getpid())
    if found is None:
        _known.clear()
        found = _known[os.getpid()] = max(LEAST_PROCESSES, min(MOST_PROCESSES, *_bounds()))
    return found


def _bounds() -> list[int]:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    found = [] if soft == resource.RLIM_INFINITY else [soft // 2]
    for _, group in ancestors("pids"):
        try:
            most = cgroups.read(group, "pids.max").strip()
        except OSError:
            continue
        if most.isdigit():
            found.append(int(most) // 2)
    return found or [MOST_PROCESSES]


def gaps(names: list[str]) -> tuple[Gap, ...]:
    """Gaps for defaults that nothing enforces here. They are declared, and refuse nothing."""
    return tuple(Gap(f"limits.{name}", *_UNHELD[name], documented=True) for name in names)
