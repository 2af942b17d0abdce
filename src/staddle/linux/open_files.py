"""The limit of open files of this process: how many there are, how many there may be.

A program with hundreds of sandboxes needs more than the usual soft limit of 1,024. It is raised to the hard
one, but only when it is used up: `select()` takes no descriptor above 1,023. What we start has the limit that
this process was started with.
"""

from __future__ import annotations

import os
import resource

from ..errors import is_full

#: As much as we ever ask for: a hard limit may be a billion, and programs go through all that could be open.
_ENOUGH = 1 << 18
#: The soft limit before it was raised, if it was.
_original: list[int] = []


def limit() -> int:
    """Return the soft limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def hard_limit() -> int:
    """Return the limit that the soft one can be raised to, as far as we do."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return min(hard, _ENOUGH) if hard != resource.RLIM_INFINITY else _ENOUGH


def original_limit() -> int:
    """Return the soft limit as it was before we raised it."""
    return _original[0] if _original else limit()


def have_standard_streams() -> None:
    """Open the null device where a standard stream is closed: a descriptor of ours would be taken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def count() -> int:
    """Return how many files are open."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError as error:
        if not is_full(error):
            raise
        return limit()  # to count them needs one more


def raise_limit() -> bool:
    """Raise the soft limit to the hard one; False when it is there already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = hard_limit()
    if soft >= highest:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    except (OSError, ValueError):
        return False
    if not _original:
        _original.append(soft)
    return True


def hand_down(pid: int) -> None:
    """Give a child that was just started the soft limit as it was before we raised it."""
    if _original:
        try:
            hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_original[0], hard))
        except (OSError, ValueError):
            pass  # it has ended, or has fewer already
