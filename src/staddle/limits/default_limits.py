"""The limits that protect this host where the policy leaves them to it: a part of what there is now.

They are measured when a sandbox is opened, not when a policy is written. Where a default cannot be
held exactly, the next best thing holds it; it never keeps anything from starting.
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

#: The part of what is available: of memory, of memory that files of a sandbox may take, of a disk.
MEMORY_PART, FILES_PART, DISK_PART = 2, 4, 4
#: Binary digits of the default on memory.
_DIGITS = 5
MOST_PROCESSES, MOST_ON_DISK = 4096, 10 << 30
#: No default is less, so that a shell and a few programs can run however little there is.
LEAST_MEMORY, LEAST_PROCESSES, LEAST_DISK = 64 << 20, 64, 64 << 20

#: Why a default is not held, and what to do about it.
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
    """`limits` with a number for each default; `defaults` still names them.

    `store` is the directory that takes what is written, if one of ours does; without one there is no `disk`.
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
    """Half of what is available now, rounded: cgroups that are limited in advance are to fit."""
    half = available() // MEMORY_PART
    digits = max(0, half.bit_length() - _DIGITS)
    return max(LEAST_MEMORY, half >> digits << digits)


def default_disk(store: str) -> int:
    """`free_share`, on a disk 10 GB at most."""
    share = free_share(store)
    return share if in_memory(store) else min(share, MOST_ON_DISK)


def free_share(store: str) -> int:
    """A quarter of the room where `store` lies, which is memory in some places; the rest is for others."""
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
    """4096, or half of what this user, or our control group, may have. Looked up once."""
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
    """Gaps for defaults that nothing holds here. They are declared, and refuse nothing."""
    return tuple(Gap(f"limits.{name}", *_UNHELD[name], documented=True) for name in names)
