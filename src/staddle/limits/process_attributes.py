"""CPU affinity and OOM score of a process: hints to the kernel and to programs.

A command is given as many processors as its limit lets it use, for `nproc` and every program that asks how
many there are. The limit itself is held by a control group. A program that starts a thread for each of 64
processors, and may use one of them, is slow and says nothing; so it is shown what it has. It can ask
the kernel for the others again, and gains nothing by it.

Without a control group, processors that it cannot choose are the limit, if that is a whole number of them.

When memory is used up, the kernel takes the largest process, by what is its own. Where files in memory use
up the machine's, all may be small, and the sandbox's first process, with which all others end, would be as
good as any, or a program of the user's. So each command says of itself that it is to go before others.
It can take that back: then it is as likely a choice as the host's own programs.
"""

from __future__ import annotations

import os

from ..linux import process
from ..linux.procfs import own


def cpu_count(cpu: float | None) -> int:
    """The number of processors for a limit of `cpu`; 0: all."""
    if cpu is None:
        return 0
    return max(1, int(cpu) + (cpu > int(cpu)))


def is_whole(cpu: float) -> bool:
    """Whether being on some of the processors is as good as a limit of `cpu`."""
    return cpu == int(cpu) or cpu >= len(os.sched_getaffinity(0))


def narrow_cpus(number: int) -> None:
    """Be on so many of the processors that we may be on, and whatever we start as well. 0: on all of them."""
    there = sorted(os.sched_getaffinity(0))
    if not 0 < number < len(there):
        return
    # Whichever: sandboxes that all had the first ones would be in each other's way.
    chosen: set[int] = set()
    while len(chosen) < number:
        chosen.add(there[int.from_bytes(os.urandom(4), "little") % len(there)])
    os.sched_setaffinity(0, chosen)


_OOM_SCORE = "oom_score_adj"
#: From -1000, never, to 1000, always.
_BEFORE_OTHERS = 500


def go_first() -> None:
    """Be the kernel's choice, with all that is started from here on. Needs no right, but /proc.

    To be called by a child of the sandbox's first process, before its ids change and it execs.
    """
    fd = _open_oom_score()
    try:
        if int(os.read(fd, 16)) < _BEFORE_OTHERS:
            os.pwrite(fd, b"%d" % _BEFORE_OTHERS, 0)
    finally:
        os.close(fd)


def _open_oom_score() -> int:
    try:
        return os.open(own(_OOM_SCORE), os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        # A copy of a process that is not dumpable; then its files in /proc are root's, and
        # we are not. Nobody in the sandbox can make use of the moment: they are in another user
        # namespace, with no rights over this one.
        process.dumpable(True)
        try:
            return os.open(own(_OOM_SCORE), os.O_RDWR | os.O_CLOEXEC)
        finally:
            process.dumpable(False)
