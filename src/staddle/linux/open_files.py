"""The limit on open files of this process, and the number of open files.

A program with hundreds of sandboxes needs more than the usual soft limit of 1,024. We raise it to the hard
limit only when it is used up, because `select()` accepts no descriptor above 1,023. Our children get the
limit with which this process was started.
"""

from __future__ import annotations

import os

from ..errors import is_full

#: The most that we ask for: a hard limit may be a billion, and programs loop over all possible descriptors.
_ENOUGH = 1 << 18
#: The soft limit before we raised it, and after that, if we did.
_raised: list[tuple[int, int]] = []
#: The least limit on open files with which a sandbox can be opened: its own processes have the same limit.
LEAST = 80


def limit() -> int:
    """Return the soft limit."""
    import resource  # not for `have_standard_streams`

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def hard_limit() -> int:
    """Return the limit to which we can raise the soft limit."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return min(hard, _ENOUGH) if hard != resource.RLIM_INFINITY else _ENOUGH


def original_limit() -> int:
    """Return the soft limit before we raised it; the present one if the program has set another since."""
    now = limit()
    return _raised[0][0] if _raised and _raised[0][1] == now else now


def have_standard_streams() -> None:
    """Open /dev/null for each closed standard stream, so that no descriptor of ours gets its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number


def count() -> int:
    """Return how many files are open."""
    try:
        # Since Linux 6.2 the size of the directory is the count; before, it is 0.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
    except OSError as error:
        if not is_full(error):
            raise
        return limit()  # counting them needs one more


def raise_limit() -> bool:
    """Raise the soft limit to the hard limit; False if it is there already.

    A limit that is too low for any sandbox stays: the program has set it while sandboxes were open, and our
    children could not run with it.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = hard_limit()
    if soft >= highest or soft < LEAST:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    except (OSError, ValueError):
        return False
    _raised[:] = [(soft, highest)]
    return True


def hand_down(pid: int) -> None:
    """Give a child that was just started the soft limit from before we raised it."""
    original = original_limit()
    if original != limit():
        import resource

        try:
            hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (original, hard))
        except (OSError, ValueError):
            pass  # it has ended, or has a lower limit already
