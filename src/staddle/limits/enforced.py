"""Choose the mechanism of the host for each limit of a policy; report limits without one.

Without a control group these are resource limits, and a supervisor inside that watches memory and
processes. The kernel counts the processes of a user in each user namespace, and compares the limit with
the count of the innermost: set after the sandbox's own namespace was entered, it counts that sandbox
alone, threads included. The kernel's root is exempt, which no sandbox is.
"""

from __future__ import annotations

import os
import time

from .._value import Value
from ..enforcement import EnforcedLimit, Gap
from . import default_limits, host_cgroups
from .cgroup_files import LIMIT_OF
from .cgroup_layout import HOLDING, CgroupSupport
from .disk import in_memory
from .process_attributes import cpu_count, is_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Literal

    from ..policy.limits import Limits

#: The limits that take a control group, or something that stands in for one.
GROUPED = ("memory", "cpu", "processes")
_FIX = "use backend='systemd', or start the program in a unit with Delegate=yes and DelegateSubgroup=program"
RLIMIT_DATA, RLIMIT_NPROC = 2, 6
#: So many times what it may use, a process may ask for: programs reserve stacks and buffers that
#: they never touch. It bounds what one can take between two looks of the supervisor.
RESERVE = 4


def asked(limits: Limits) -> bool:
    """Whether a limit is asked for that takes a cgroup; else the host's cgroups are not looked at."""
    return any(getattr(limits, name) is not None and name not in limits.defaults for name in GROUPED)


def usable() -> CgroupSupport:
    """The means of this host, as far as one command alone can be put there.

    It is in no scope that systemd would have to be asked for: its backend of that name has a unit.
    """
    found = host_cgroups.support()
    if not found.scope:
        return found
    why = "no control group is delegated to this program"
    return found.replace(places=(), scope="", why_not=tuple((name, why, _FIX) for name in HOLDING))


def session_cgroups(limits: Limits) -> CgroupSupport:
    """The cgroups that a session with `limits` is put into.

    Systemd is asked for a scope only for a limit that the policy says: it would take too long for a default.
    Nor is a default reason enough for a hierarchy of its own: a resource limit holds that on processes.
    """
    wanted = {_CONTROLLER[name] for name in GROUPED if getattr(limits, name) is not None}
    found = host_cgroups.support().reduced(frozenset({"memory", *wanted}))
    return found if not found.scope or asked(limits) else found.replace(places=(), scope="")


class SessionLimits(Value):
    """The limits of one session, filled in, and what holds them on this host.

    The agent watches `watched_memory` and `watched_processes`, or 0. The host program counts what is
    written up to `quota` bytes, or 0; `watches_memory`, and `counts_processes` when a command fails.
    `is_asked`: the policy says a limit that takes a cgroup. It is in `cgroups`, if there are any.
    """

    limits: Limits
    cgroups: CgroupSupport
    watched_memory: int
    watched_processes: int
    quota: int
    watches_memory: bool
    counts_processes: bool
    is_asked: bool


#: For how many seconds what was measured is good for other sandboxes of the same kind.
_AGE = 1.0
_sessions: dict[tuple[int, Limits, str], tuple[float, SessionLimits]] = {}


def session_limits(limits: Limits, store: str = "") -> SessionLimits:
    """Decide how `limits` of a session that writes to `store`, if it has one, are held. Once a second."""
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
        limits = limits.replace(disk=None)  # what is written counts as memory
    filled = default_limits.fill_in(limits, store)
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
    """Of a session: resource limits, as `rlimits` has them; memory and processes to be watched, or 0.

    The agent watches what the policy says. Of the defaults, the kernel or the host program holds each.
    """
    means = session_cgroups(limits)
    found = list(rlimits(limits, means)) if asked(limits) else []
    if "processes" in limits.defaults and not means.version("pids"):
        found.append(("nproc", RLIMIT_NPROC, default_limits.default_processes()))
    memory = 0 if "memory" in limits.defaults or means.version("memory") else limits.memory or 0
    processes = 0 if "processes" in limits.defaults or means.version("pids") else limits.processes or 0
    return tuple(found), memory, processes


def rlimits(limits: Limits, means: CgroupSupport) -> Iterator[tuple[str, int, int]]:
    """Name, number and value of those that stand in for a missing controller."""
    if limits.memory is not None and "memory" not in limits.defaults and not means.version("memory"):
        yield "data", RLIMIT_DATA, min(limits.memory * RESERVE, 2**63 - 1)
    if limits.processes is not None and "processes" not in limits.defaults and not means.version("pids"):
        yield "nproc", RLIMIT_NPROC, limits.processes


#: Of the limits that are no controller's: who holds them, always.
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
    """The limits that were asked for: those that hold, and those that do not.

    `inside`: a first process of ours is in the sandbox, in a user and a pid namespace of its
    own, and can stand in for a controller. `layer` is where writing goes: to a file system in
    memory of ours, to a directory of ours on the host, or straight to the host.
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
    """The limits that the policy leaves to this host: those that hold, and those that nothing does.

    `by` has what stands in for a missing controller. Nothing is refused for such a gap.
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
    return tuple(holds), default_limits.gaps(missing)


_BY_PROCESSES = EnforcedLimit("processes", _STAND_IN["processes"])
#: Who stands in for a missing controller and holds the defaults: of a session, of a single command.
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


#: On landlock, where no namespace tells a sandbox's processes from others.
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
    """Decide how the limits of a sandbox on landlock are held, and list the defaults that nothing holds.

    `layer`: whether the session writes to directories of ours, as in `enforced_limits`. `as_root`: its
    processes have the id 0, whose number the kernel does not limit.
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
    """Decide how the limits of a single command are held, and list the defaults that nothing holds.

    `inside`: as in `enforced_limits`. `writes`: it may write to the host's directories.
    """
    means = usable() if inside and asked(limits) else CgroupSupport(())
    held = enforced_limits(limits, means, inside=True, layer="none")[0] if inside and asked(limits) else ()
    layer: Literal["memory", "none"] = "none" if writes else "memory"
    more, gaps = enforced_defaults(limits, means, by=OF_COMMAND if inside else {}, layer=layer)
    return (*held, *more), gaps


def keeps_processors(limits: Limits, means: CgroupSupport) -> bool:
    """Whether a process must stay on the processors that it is given: no control group limits it."""
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
