"""What a process and the user namespace of a sandbox are held to where there are no control groups. Pure.

The kernel counts the processes of a user in each user namespace, and compares the limit with the
count of the innermost: set after the sandbox's own namespace was entered, it counts that sandbox
alone, threads included. The kernel's root is exempt, which no sandbox is.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..policy.limits import Limits
    from .where import Means

RLIMIT_DATA, RLIMIT_NPROC = 2, 6
#: So many times what it may use, a process may ask for: programs reserve stacks and buffers that
#: they never touch. It bounds what one can take between two looks of the supervisor.
RESERVE = 4


def rlimits(limits: Limits, means: Means) -> Iterator[tuple[str, int, int]]:
    """Name, number and value of those that stand in for a missing controller."""
    if limits.memory is not None and not means.version("memory"):
        yield "data", RLIMIT_DATA, min(limits.memory * RESERVE, 2**63 - 1)
    if limits.processes is not None and not means.version("pids"):
        yield "nproc", RLIMIT_NPROC, limits.processes
