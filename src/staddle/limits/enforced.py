"""Choose the mechanism of the host for each limit of a policy; report limits without one.

Without cgroups, these are resource limits and a supervisor inside that watches memory and processes. The
kernel counts the processes of a user in each user namespace, and compares RLIMIT_NPROC with the innermost
count. If it is set after the sandbox's own namespace was entered, it counts that sandbox alone, threads
included. The kernel exempts its own root, which no sandbox is.
"""

from __future__ import annotations

import os
import time

from .._value import Value
from ..enforcement import EnforcedLimit, Gap
from ..linux import cgroups
from ..linux.memory import ancestors, available
from .cgroup_layout import HOLDING, LIMIT_OF, CgroupSupport
from .disk import in_memory
from .process_attributes import cpu_count, is_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Literal

    from ..policy.limits import Limits

#: The limits that need a cgroup, or a substitute for one.
GROUPED = ("memory", "cpu", "processes")
_FIX = "use backend='systemd', or start the program in a unit with Delegate=yes and DelegateSubgroup=program"
RLIMIT_DATA, RLIMIT_NPROC = 2, 6
#: A process may reserve so many times its memory limit, because programs reserve stacks and buffers that they
#: never touch. This bounds the growth of one process between two samples of the supervisor.
RESERVE = 4


def asked(limits: Limits) -> bool:
    """Whether the policy itself sets a limit that needs a cgroup.

    Otherwise we do not inspect the host's cgroups.
    """
    return any(getattr(limits, name) is not None and name not in limits.defaults for name in GROUPED)


def usable() -> CgroupSupport:
    """Return the cgroups of this host that a single command can use.

    Only root can move a command into a scope of systemd after its start. For other users the systemd backend
    has a unit.
    """
    from . import host_cgroups  # not for limits that need no cgroup

    found = host_cgroups.support()
    if found.scope != "user":
        return found
    why = "no control group is delegated to this program"
    return found.replace(places=(), scope="", why_not=tuple((name, why, _FIX) for name in HOLDING))


def session_cgroups(limits: Limits) -> CgroupSupport:
    """Return the cgroups in which a session with `limits` is placed.

    We request a scope from systemd only for a limit from the policy; for a default that would take too long.
    Nor does a default justify entering another hierarchy: a resource limit enforces the default on processes.
    """
    from . import host_cgroups

    wanted = {_CONTROLLER[name] for name in GROUPED if getattr(limits, name) is not None}
    found = host_cgroups.support().reduced(frozenset({"memory", *wanted}))
    return found if not found.scope or asked(limits) else found.replace(places=(), scope="")


class SessionLimits(Value):
    """The limits of one session, with numbers for the defaults, and what enforces them on this host.

    The agent watches `watched_memory` and `watched_processes` (0: it need not). The host program counts
    written bytes up to `quota` (0: it does not). It watches memory if `watches_memory`, and counts processes
    after a failed command if `counts_processes`. `is_asked`: the policy sets a limit that needs a cgroup. The
    session is in `cgroups`, if there are any.
    """

    limits: Limits
    cgroups: CgroupSupport
    watched_memory: int
    watched_processes: int
    quota: int
    watches_memory: bool
    counts_processes: bool
    is_asked: bool


#: Seconds for which measurements are reused for sandboxes of the same kind.
_AGE = 1.0
_sessions: dict[tuple[int, Limits, str], tuple[float, SessionLimits]] = {}


def session_limits(limits: Limits, store: str = "") -> SessionLimits:
    """Decide how the `limits` of a session are enforced. `store`: where it writes, if anywhere.

    The answer is cached for a second.
    """
    now, key = time.monotonic(), (os.getpid(), limits, store)
    known = _sessions.get(key)
    if known is None or now - known[0] > _AGE:
        if len(_sessions) >= 64:
            _sessions.clear()
        known = _sessions[key] = now, _session_limits(limits, store)
    return known[1]


def _session_limits(limits: Limits, store: str) -> SessionLimits:
    means = session_cgroups(limits)
    _, memory, processes = stand_ins(limits)
    as_memory = bool(memory and store and in_memory(store))
    if as_memory and "disk" in limits.defaults:
        limits = limits.replace(disk=None)  # written files count as memory
    filled = fill_in(limits, store)
    return SessionLimits(
        limits=filled,
        cgroups=means,
        watched_memory=memory,
        watched_processes=processes,
        quota=(filled.disk or (memory if as_memory else 0)) if store else 0,
        watches_memory="memory" in limits.defaults and not means.version("memory"),
        counts_processes="processes" in limits.defaults and not means.version("pids"),
        is_asked=asked(limits),
    )


def stand_ins(limits: Limits) -> tuple[tuple[tuple[str, int, int], ...], int, int]:
    """Return the substitutes for missing cgroups in a session: (resource limits, memory, processes).

    The agent watches memory and processes (0: it need not) up to limits from the policy. The kernel or the
    host program enforces the defaults. Resource limits are triples as from `rlimits`.
    """
    means = session_cgroups(limits)
    found = list(rlimits(limits, means)) if asked(limits) else []
    if "processes" in limits.defaults and not means.version("pids"):
        found.append(("nproc", RLIMIT_NPROC, default_processes()))
    memory = 0 if "memory" in limits.defaults or means.version("memory") else limits.memory or 0
    processes = 0 if "processes" in limits.defaults or means.version("pids") else limits.processes or 0
    return tuple(found), memory, processes


def rlimits(limits: Limits, means: CgroupSupport) -> Iterator[tuple[str, int, int]]:
    """Yield name, number and value of each resource limit that replaces a missing cgroup controller."""
    if limits.memory is not None and "memory" not in limits.defaults and not means.version("memory"):
        yield "data", RLIMIT_DATA, min(limits.memory * RESERVE, 2**63 - 1)
    if limits.processes is not None and "processes" not in limits.defaults and not means.version("pids"):
        yield "nproc", RLIMIT_NPROC, limits.processes


#: Limits that need no controller, and what enforces them on every host.
_ALWAYS = {
    "timeout": "the host program's clock",
    "output": "the host program, which reads no further",
    "max_lifetime": "the host program's clock",
    "idle": "the host program's clock",
    "file_size": "a resource limit of each process (RLIMIT_FSIZE)",
    "open_files": "a resource limit of each process (RLIMIT_NOFILE)",
}
_CONTROLLER = {limit: controller for controller, limit in LIMIT_OF.items()}
_STAND_IN = {
    "memory": "a supervisor in the sandbox, which measures and kills",
    "processes": "a resource limit of the sandbox's user namespace (RLIMIT_NPROC)",
}


_BY_PROCESSORS = EnforcedLimit("cpu", "a number of CPUs that it cannot change (CPU affinity)")
_DISK = {
    "memory": EnforcedLimit("disk", "the size of the sandbox's own file system"),
    "directory": EnforcedLimit(
        "disk", "the host program, which counts what is written and then ends it", exact=False
    ),
}
_STRAIGHT_TO_THE_HOST = Gap(
    "limits.disk",
    "what is written goes straight to the host's file systems, which staddle cannot limit",
    "use mode='overlay', or leave limits.disk out",
)


def enforced_limits(
    limits: Limits,
    means: CgroupSupport,
    *,
    inside: bool,
    layer: Literal["memory", "directory", "none"],
) -> tuple[tuple[EnforcedLimit, ...], tuple[Gap, ...]]:
    """List the limits that the policy sets and that are enforced, and the gaps for the others.

    `inside`: a first process of ours is in the sandbox, in its own user and pid namespace, and can replace a
    controller. `layer` is where writes go: to our file system in memory, to our directory on the host, or
    directly to the host.
    """
    holds: list[EnforcedLimit] = []
    gaps: list[Gap] = []
    for name, value in limits.as_dict().items():
        if value is None or name == "defaults" or name in limits.defaults:
            continue
        if name in _ALWAYS:
            holds.append(EnforcedLimit(name, _ALWAYS[name]))
        elif name == "disk":
            if layer in _DISK:
                holds.append(_DISK[layer])
            else:
                gaps.append(_STRAIGHT_TO_THE_HOST)
        elif version := means.version(_CONTROLLER[name]):
            holds.append(EnforcedLimit(name, f"a control group (version {version})"))
        elif inside and name in _STAND_IN:
            holds.append(EnforcedLimit(name, _STAND_IN[name], exact=name == "processes"))
        elif inside and name == "cpu" and is_whole(value):
            holds.append(_BY_PROCESSORS)
        else:
            gaps.append(_gap(name, means))
    return tuple(holds), tuple(gaps)


def enforced_defaults(
    limits: Limits,
    means: CgroupSupport,
    *,
    by: Mapping[str, EnforcedLimit],
    layer: Literal["memory", "directory", "none"] = "none",
) -> tuple[tuple[EnforcedLimit, ...], tuple[Gap, ...]]:
    """List the defaults that are enforced on this host, and the gaps for the others.

    `by` has the substitutes for missing controllers. Such a gap refuses nothing.
    """
    holds: list[EnforcedLimit] = []
    missing: list[str] = []
    for name in limits.defaults:
        if name == "disk":
            found = _DISK.get(layer)
        elif version := means.version(_CONTROLLER[name]):
            found = EnforcedLimit(name, f"a control group (version {version})")
        else:
            found = by.get(name)
        if found is None:
            missing.append(name)
        else:
            holds.append(found.replace(default=True))
    return tuple(holds), gaps(missing)


_BY_PROCESSES = EnforcedLimit("processes", _STAND_IN["processes"])
#: Substitutes for a missing controller that enforce the defaults, of a session and of a single command.
OF_SESSION = {
    "memory": EnforcedLimit(
        "memory",
        "the host program, which measures and kills while the host has less than that left",
        exact=False,
    ),
    "processes": _BY_PROCESSES,
}
OF_COMMAND = {
    "memory": EnforcedLimit("memory", _STAND_IN["memory"], exact=False),
    "processes": _BY_PROCESSES,
}


#: On landlock, where no namespace separates a sandbox's processes from others.
OF_LANDLOCK = {
    "memory": EnforcedLimit("memory", "its supervisor, which measures its processes and kills", exact=False),
    "processes": EnforcedLimit(
        "processes",
        "a resource limit (RLIMIT_NPROC) of the user, who may have so many more than at the start",
        exact=False,
    ),
}


def of_landlock(
    limits: Limits, layer: Literal["directory", "none"] = "none", *, as_root: bool = False
) -> tuple[tuple[EnforcedLimit, ...], tuple[Gap, ...]]:
    """Decide how the limits of a sandbox on landlock are enforced, and list the defaults that are not.

    `layer`: whether the session writes to our directories, as in `enforced_limits`. `as_root`: its processes
    have the id 0, whose number of processes the kernel does not limit.
    """
    by = {name: means for name, means in OF_LANDLOCK.items() if not as_root or name != "processes"}
    held = [
        EnforcedLimit(name, _ALWAYS[name]) if name in _ALWAYS else by[name]
        for name, value in limits.as_dict().items()
        if value is not None and name not in limits.defaults and (name in _ALWAYS or name in by)
    ]
    if limits.cpu is not None and is_whole(limits.cpu):
        held.append(_BY_PROCESSORS)
    if layer in _DISK and limits.disk is not None:
        held.append(_DISK[layer])
    more, gaps = enforced_defaults(limits, CgroupSupport(()), by=by, layer=layer)
    return (*held, *more), gaps


def of_command(
    limits: Limits, *, inside: bool, writes: bool
) -> tuple[tuple[EnforcedLimit, ...], tuple[Gap, ...]]:
    """Decide how the limits of a single command are enforced, and list the defaults that are not.

    `inside`: as in `enforced_limits`. `writes`: the command may write to the host's directories.
    """
    means = usable() if inside and asked(limits) else CgroupSupport(())
    held = enforced_limits(limits, means, inside=True, layer="none")[0] if inside and asked(limits) else ()
    layer: Literal["memory", "none"] = "none" if writes else "memory"
    more, gaps = enforced_defaults(limits, means, by=OF_COMMAND if inside else {}, layer=layer)
    return (*held, *more), gaps


def keeps_processors(limits: Limits, means: CgroupSupport) -> bool:
    """Whether a process must be pinned to its processors because no cgroup limits its CPU time."""
    if limits.cpu is None or means.version("cpu"):
        return False
    return cpu_count(limits.cpu) < len(os.sched_getaffinity(0))


def _gap(name: str, means: CgroupSupport) -> Gap:
    why, fix = means.reason(_CONTROLLER[name])
    if name == "cpu":
        fix = f"{fix}; or use a whole number of cores" if fix else "use a whole number of cores"
    return Gap(
        f"limits.{name}",
        why or f"there is no control group to limit {name} with",
        f"{fix}; or leave limits.{name} out" if fix else f"leave limits.{name} out",
    )


# Limits that protect this host if the policy sets none: a share of the resources available now.
#
# They are measured when a sandbox is opened, not when a policy is written. If a default cannot be enforced
# exactly, a weaker mechanism enforces it. A default never prevents a sandbox from starting.


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
