"""Limits without a control group: resource limits, and memory and processes for a supervisor inside to watch.

The kernel counts the processes of a user in each user namespace, and compares the limit with the
count of the innermost: set after the sandbox's own namespace was entered, it counts that sandbox
alone, threads included. The kernel's root is exempt, which no sandbox is.
"""

from __future__ import annotations

from . import host_cgroups
from .cgroup_layout import HOLDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
