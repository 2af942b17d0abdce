"""CPU affinity and OOM score of a process: hints to the kernel and to programs.

A command is pinned to as many processors as its limit lets it use, so that `nproc` and similar calls return
that number. A cgroup enforces the limit itself. A program that starts a thread for each of 64 processors, but
may use only one, would be slow without a message. It can ask the kernel for the other processors again, but
gains nothing.

Without a cgroup, pinning to processors is the limit, if that is a whole number.

When memory runs out, the kernel kills the process with the most memory of its own. If files in memory fill
the machine, all processes may be small. The kernel might then kill the sandbox's first process, which ends
all others, or a program of the user. So each command raises its own OOM score. A command that lowers it again
is as likely to be killed as the host's own programs.
"""

from __future__ import annotations

import os

from ..linux import process
from ..linux.procfs import own


def cpu_count(cpu: float | None) -> int:
    """Return the number of processors for a limit of `cpu` (0: all)."""
    if cpu is None:
        return 0
    return max(1, int(cpu) + (cpu > int(cpu)))


def is_whole(cpu: float) -> bool:
    """Whether pinning to processors enforces a limit of `cpu` exactly."""
    return cpu == int(cpu) or cpu >= len(os.sched_getaffinity(0))


def narrow_cpus(number: int) -> None:
    """Pin this process and its future children to `number` of its processors (0: all of them)."""
    there = sorted(os.sched_getaffinity(0))
    if not 0 < number < len(there):
        return
    # Random ones: otherwise all sandboxes would compete for the first processors.
    chosen: set[int] = set()
    while len(chosen) < number:
        chosen.add(there[int.from_bytes(os.urandom(4), "little") % len(there)])
    os.sched_setaffinity(0, chosen)


OOM_SCORE = "oom_score_adj"
#: The range is from -1000 (never killed) to 1000 (killed first).
BEFORE_OTHERS = 500


def go_first() -> None:
    """Make the kernel kill this process and its future children first. Needs no privilege, only /proc.

    A child of the sandbox's first process calls this before its ids change and it execs.
    """
    fd = _open_oom_score()
    try:
        if int(os.read(fd, 16)) < BEFORE_OTHERS:
            os.pwrite(fd, b"%d" % BEFORE_OTHERS, 0)
    finally:
        os.close(fd)


def _open_oom_score() -> int:
    try:
        return os.open(own(OOM_SCORE), os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        # This process is a fork of a process that is not dumpable, so root owns its files in /proc. No
        # process in the sandbox can use the moment in which we are dumpable: all are in another user
        # namespace, with no rights over ours.
        process.dumpable(True)
        try:
            return os.open(own(OOM_SCORE), os.O_RDWR | os.O_CLOEXEC)
        finally:
            process.dumpable(False)
