"""The parts that every launcher passes on: the last steps of the command's own process, and descriptors.

Nobody can swap a descriptor between check and start, and its content is on no command line. The launcher
closes all of them before the command starts.
"""

from __future__ import annotations

import fcntl
import os

from ..ipc.exec_spec import ExecSpec
from ..linux import landlock, process
from ..linux.fileio import memory_file
from ..linux.seccomp import program
from ..mounts.host import open_named

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
    *,
    keeps_processors: bool = False,
) -> ExecSpec:
    """The spec of the last steps: limits, Landlock's `scopes`, the filter, exec.

    `more` are further limits, in the form of `rlimits`. `keeps_processors`: see `seccomp.program`.
    """
    return ExecSpec(
        argv=tuple(os.fsencode(word) for word in command),
        environment=tuple(os.fsencode(f"{name}={value}") for name, value in plan.environment().items()),
        directory=os.fsencode(plan.cwd),
        rlimits=tuple((resource, most, most) for _, resource, most in (*rlimits(plan.limits), *more)),
        # Processes inside cannot name anything outside, except where the network is shared.
        scoped=landlock.bits(scopes, "scope"),
        filter=program(filter_profile(plan), keeps_processors=keeps_processors),
        umask=process.umask(),
    )


def rlimits(limits: Limits) -> Iterator[tuple[str, int, int]]:
    """Name, number and value of every resource limit: those of any sandbox, then the policy's."""
    # A core limit of one byte is the only value that also stops a core handler, which the kernel runs as root
    # on the host. No real-time, no higher priority, little pinned memory.
    yield "core", process.RLIMIT_CORE, 1
    yield "rtprio", process.RLIMIT_RTPRIO, 0
    yield "nice", process.RLIMIT_NICE, 0
    yield "memlock", process.RLIMIT_MEMLOCK, 65536
    if limits.file_size is not None:
        yield "fsize", process.RLIMIT_FSIZE, limits.file_size
    if limits.open_files is not None:
        yield "nofile", process.RLIMIT_NOFILE, limits.open_files


def needed(layout: Layout) -> list[Operation]:
    """The operations for our builder. Its /proc does not show process 1, so it need not cover /proc/1."""
    return [operation for operation in layout.operations if operation.path != "/proc/1"]


def filter_profile(plan: Plan) -> str:
    """The filter of a sandbox in namespaces: no setuid files where the command can write to the host."""
    return "namespaces-nosuid" if any(grant.access == "write" for grant in plan.grants) else "namespaces"


def landlock_profile(plan: Plan) -> str:
    """The filter for Landlock, which also restricts sockets."""
    profile = {"open": "landlock-open", "deny": "landlock"}.get(plan.network.mode, "landlock-tcp")
    # Where the command can write to the host's directories, it may leave no setuid file.
    return profile + ("-nosuid" if any(grant.access == "write" for grant in plan.grants) else "")


class Descriptors:
    """Open descriptors that belong to one launch, closed together."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def keep(self, descriptor: int) -> int:
        """Add a descriptor. Moves it above 2, in case the caller closed its standard streams."""
        if descriptor <= 2:
            low, descriptor = descriptor, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(low)
        self._open.append(descriptor)
        return descriptor

    def holding(self, data: bytes) -> int:
        """An unnamed file in memory with `data`, positioned at its start."""
        descriptor = self.keep(memory_file(data))
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def naming(self, path: str) -> int:
        """The file or directory at `path`, opened without following links."""
        return self.keep(open_named(path))

    def all(self) -> tuple[int, ...]:
        """Every descriptor to pass on."""
        return tuple(self._open)

    def close(self) -> None:
        """Close them all. Never raises; a second call does nothing."""
        while self._open:
            try:
                os.close(self._open.pop())
            except OSError:
                continue
