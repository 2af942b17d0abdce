"""Make the kernel choose a process of the sandbox, never one of ours, when memory is used up.

The kernel takes the largest, by what is its own. Where files in memory use up the machine's, all
may be small, and the sandbox's first process, with which all others end, would be as good as
any, or a program of the user's. So each command says of itself that it is to go before others.
It can take that back: then it is as likely a choice as the host's own programs.
"""

from __future__ import annotations

import os

from ..linux import process

_FILE = "/proc/self/oom_score_adj"
#: From -1000, never, to 1000, always.
_BEFORE_OTHERS = 500


def go_first() -> None:
    """Be the kernel's choice, with all that is started from here on. Needs no right, but /proc.

    To be called by a child of the sandbox's first process, before its ids change and it execs.
    """
    fd = _opened()
    try:
        if int(os.read(fd, 16)) < _BEFORE_OTHERS:
            os.pwrite(fd, b"%d" % _BEFORE_OTHERS, 0)
    finally:
        os.close(fd)


def _opened() -> int:
    try:
        return os.open(_FILE, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        # A copy of a process that is not dumpable; then its files in /proc are root's, and
        # we are not. Nobody in the sandbox can make use of the moment: they are in another user
        # namespace, with no rights over this one.
        process.dumpable(True)
        try:
            return os.open(_FILE, os.O_RDWR | os.O_CLOEXEC)
        finally:
            process.dumpable(False)
