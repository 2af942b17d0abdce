"""The last steps of the command's own process, for every backend that starts it with our helper."""

from __future__ import annotations

import os

from ..ipc.exec_spec import ExecSpec
from ..linux import landlock, process
from ..linux.seccomp import program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..mounts.from_plan import Layout
    from ..mounts.operations import Operation
    from ..policy.limits import Limits
    from ..policy.plan import Plan


def instructions(
    plan: Plan,
    command: Sequence[str],
    scopes: Iterable[str] = (),
    more: Iterable[tuple[str, int, int]] = (),
) -> ExecSpec:
    """Limits, and `more` of them as `rlimits` has them; Landlock's `scopes`, the filter, exec."""
    return ExecSpec(
        argv=tuple(os.fsencode(word) for word in command),
        environment=tuple(os.fsencode(f"{name}={value}") for name, value in plan.environment().items()),
        directory=os.fsencode(plan.cwd),
        rlimits=tuple((resource, most, most) for _, resource, most in (*rlimits(plan.limits), *more)),
        # Nothing outside can be named from inside; these hold where the network is shared.
        scoped=landlock.bits(scopes, "scope"),
        filter=program(filter_profile(plan)),
    )


def rlimits(limits: Limits) -> Iterator[tuple[str, int, int]]:
    """Name, number and value of every resource limit: those of any sandbox, then the policy's."""
    # One byte of core is the only value that also stops a core handler, which the kernel runs as
    # root on the host; nothing real-time, no higher priority, little pinned memory.
    yield "core", process.RLIMIT_CORE, 1
    yield "rtprio", process.RLIMIT_RTPRIO, 0
    yield "nice", process.RLIMIT_NICE, 0
    yield "memlock", process.RLIMIT_MEMLOCK, 65536
    if limits.file_size is not None:
        yield "fsize", process.RLIMIT_FSIZE, limits.file_size
    if limits.open_files is not None:
        yield "nofile", process.RLIMIT_NOFILE, limits.open_files


def needed(layout: Layout) -> list[Operation]:
    """The operations for our own builder, whose /proc does not show the first process: nothing covers it."""
    return [operation for operation in layout.operations if operation.path != "/proc/1"]


def filter_profile(plan: Plan) -> str:
    """For a sandbox of namespaces: no setuid files where the host's directories can be written."""
    return "namespaces-nosuid" if any(grant.access == "write" for grant in plan.grants) else "namespaces"


def landlock_profile(plan: Plan) -> str:
    """The same without namespaces: sockets are decided about too."""
    profile = {"open": "landlock-open", "deny": "landlock"}.get(plan.network.mode, "landlock-tcp")
    # Where the host's directories can be written, no setuid file may be left there.
    return profile + ("-nosuid" if any(grant.access == "write" for grant in plan.grants) else "")
