"""Which of the means of a host holds each limit of a policy, and what nothing holds.

Without a control group these are resource limits, and a supervisor inside that watches memory and
processes. The kernel counts the processes of a user in each user namespace, and compares the limit with
the count of the innermost: set after the sandbox's own namespace was entered, it counts that sandbox
alone, threads included. The kernel's root is exempt, which no sandbox is.
"""

from __future__ import annotations

from ..enforcement import EnforcedLimit, Gap
from . import host_cgroups
from .cgroup_files import LIMIT_OF
from .cgroup_layout import HOLDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from ..policy.limits import Limits
    from .cgroup_layout import CgroupSupport

#: The limits that take a control group, or something that stands in for one.
GROUPED = ("memory", "cpu", "processes")
_FIX = "use backend='systemd', or start the program in a unit with Delegate=yes and DelegateSubgroup=program"
RLIMIT_DATA, RLIMIT_NPROC = 2, 6
#: So many times what it may use, a process may ask for: programs reserve stacks and buffers that
#: they never touch. It bounds what one can take between two looks of the supervisor.
RESERVE = 4


def asked(limits: Limits) -> bool:
    """Whether a limit is asked for that takes a cgroup; else the host's cgroups are not looked at."""
    return any(getattr(limits, name) is not None for name in GROUPED)


def usable() -> CgroupSupport:
    """The means of this host, as far as one command alone can be put there.

    It is in no scope that systemd would have to be asked for: its backend of that name has a unit.
    """
    found = host_cgroups.support()
    if not found.scope:
        return found
    why = "no control group is delegated to this program"
    return found.replace(places=(), scope="", why_not=tuple((name, why, _FIX) for name in HOLDING))


def stand_ins(limits: Limits) -> tuple[tuple[tuple[str, int, int], ...], int, int]:
    """Of a session: resource limits, as `rlimits` has them; memory and processes to be watched, or 0."""
    if not asked(limits):
        return (), 0, 0
    means = host_cgroups.support()
    memory = 0 if means.version("memory") else limits.memory or 0
    processes = 0 if means.version("pids") else limits.processes or 0
    return tuple(rlimits(limits, means)), memory, processes


def rlimits(limits: Limits, means: CgroupSupport) -> Iterator[tuple[str, int, int]]:
    """Name, number and value of those that stand in for a missing controller."""
    if limits.memory is not None and not means.version("memory"):
        yield "data", RLIMIT_DATA, min(limits.memory * RESERVE, 2**63 - 1)
    if limits.processes is not None and not means.version("pids"):
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


_DISK = {
    "memory": EnforcedLimit("disk", "the size of the sandbox's own file system"),
    "directory": EnforcedLimit(
        "disk", "the host program, which counts what is written and then ends it", exact=False
    ),
}
_STRAIGHT_TO_THE_HOST = Gap(
    "limits.disk",
    "what is written goes straight to the host's file systems, which are not ours to size",
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
        if value is None:
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
        else:
            gaps.append(_gap(name, means))
    return tuple(holds), tuple(gaps)


def _gap(name: str, means: CgroupSupport) -> Gap:
    why, fix = means.reason(_CONTROLLER[name])
    return Gap(
        f"limits.{name}",
        why or f"there is no control group to limit {name} with",
        f"{fix}; or leave limits.{name} out" if fix else f"leave limits.{name} out",
    )
