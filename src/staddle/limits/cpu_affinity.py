"""As many processors as the limit lets be used: `nproc`, and every program that asks how many there are.

The limit itself is held by a control group. A program that starts a thread for each of 64
processors, and may use one of them, is slow and says nothing; so it is shown what it has. It can
ask the kernel for the others again, and gains nothing by it.
"""

from __future__ import annotations

import os


def count(cpu: float | None) -> int:
    """The number of processors for a limit of `cpu`; 0: all."""
    if cpu is None:
        return 0
    return max(1, int(cpu) + (cpu > int(cpu)))


def narrow(number: int) -> None:
    """Be on so many of the processors that we may be on, and whatever we start as well. 0: on all of them."""
    there = sorted(os.sched_getaffinity(0))
    if not 0 < number < len(there):
        return
    # Whichever: sandboxes that all had the first ones would be in each other's way.
    chosen: set[int] = set()
    while len(chosen) < number:
        chosen.add(there[int.from_bytes(os.urandom(4), "little") % len(there)])
    os.sched_setaffinity(0, chosen)
