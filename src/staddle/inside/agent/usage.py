"""Resource usage of a sandbox's processes, and how many there were, measured by its agent.

The kernel adds up what a process and all it has waited for used; the agent waits for everything
that has lost its parent. So the usage of ended processes is known for good, and that of running ones is
looked up. Processes are counted by their numbers, which a pid namespace gives out one after the other.
"""

from __future__ import annotations

import os
import resource

from ...linux import procfs
from ...linux.process import pidfd_open, split_stat
from . import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.agent_messages import UsageCounts

_TICK = 1_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Count:
    """Of everything below this process. Counts processes only if their numbers are the sandbox's own."""

    def __init__(self, *, own_numbers: bool) -> None:
        self._own_numbers = own_numbers
        self._most = int(_contents("/proc/sys/kernel/pid_max") or 1 << 22)
        self._last = last_pid() if own_numbers else 0
        self._started = 0
        self._left_out = 0
        self._marks: dict[int, tuple[int, int]] = {}
        #: Processes of our own that wait for the sandbox's: what those used was added when they ended.
        self.ours: set[int] = set()
        self._ended, self._largest = (0, 0, 0, 0), 0
        self._moved = IoCounters()

    def reap(self) -> tuple[int, int, UsageCounts] | None:
        """A child that has ended: its number, its status, and what it used; None when there is none now.

        Also one that was stopped, which has used nothing.
        """
        self._moved.begin()
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return None
        if not pid:
            return None
        if pid in self.ours or os.WIFSTOPPED(status):
            if not os.WIFSTOPPED(status):
                self.ours.discard(pid)
            return pid, status, (0,) * 6
        return pid, status, self.add(pid, (*times(used), *self._moved.since(), used.ru_maxrss << 10))

    def add(self, pid: int, spent: tuple[int, int, int, int, int]) -> UsageCounts:
        """A process of the sandbox has ended that used this; with the number of processes it started."""
        self._ended, self._largest = _sum(self._ended, spent[:4]), max(self._largest, spent[4])
        count = self._since(*self._marks.pop(pid, (pid - 1, self._left_out))) if self._own_numbers else -1
        return (*spent, count)

    def leave_out_one(self) -> None:
        """A process that we are about to start is of our own."""
        self._started -= 1
        self._left_out += 1

    def mark(self, pid: int, newest: int) -> None:
        """`pid` is a program of the sandbox from now on; `newest` was the last number before it."""
        if self._own_numbers:
            self._marks[pid] = newest, self._left_out

    def _since(self, newest: int, left_out: int) -> int:
        """The processes of the sandbox that were started since a mark."""
        return passed(newest, self._look(), self._most) - (self._left_out - left_out)

    def started(self) -> int:
        """The count of processes and threads started until now, -1 where it cannot be known."""
        if not self._own_numbers:
            return -1
        self._look()
        return self._started

    def whole(self) -> UsageCounts:
        """The usage until now of ended and running processes. Reads /proc for each running one.

        The memory is that of the largest process that this one has waited for, or that runs.
        """
        total, largest = self._ended, self._largest
        for pid in process_tree.below(os.getpid(), process_tree.table()):
            words = split_stat(_contents(f"{procfs.directory(pid)}/stat"), 22)
            if len(words) > 21:
                user, system = int(words[11]) + int(words[13]), int(words[12]) + int(words[14])
                moved = _moved(_contents(f"{procfs.directory(pid)}/io"))
                total = _sum(total, (user * _TICK, system * _TICK, *moved))
                largest = max(largest, int(words[21]) * _PAGE)
        return (*total, largest, self.started())

    def _look(self) -> int:
        now = last_pid()
        self._started += passed(self._last, now, self._most)
        self._last = now
        return now


class IoCounters:
    """Bytes that this process, and those it has waited for, read and wrote between two moments."""

    def __init__(self) -> None:
        self.fd = _opened("/proc/self/io")  # soon it cannot be opened, but still be read
        self._before = b""

    def begin(self) -> None:
        """Begin to count."""
        self._before = _read(self.fd)

    def since(self) -> tuple[int, int]:
        """Bytes read and written since then, beside that one look."""
        (read, written), (less, wrote) = _moved(_read(self.fd)), _moved(self._before)
        return max(0, read - less - len(self._before)), written - wrote


def times(used: resource.struct_rusage) -> tuple[int, int]:
    """Microseconds of CPU time, user and system."""
    return int(used.ru_utime * 1e6), int(used.ru_stime * 1e6)


def handle(pid: int) -> tuple[int, ...]:
    """By which the host program finds a child of ours; none where that is forbidden to us."""
    try:
        return (pidfd_open(pid),)
    except OSError:
        return ()


def last_pid() -> int:
    """The number that was given to the newest process of this pid namespace."""
    return int(_contents("/proc/loadavg").rpartition(b" ")[2])


def passed(before: int, after: int, most: int) -> int:
    """The count of pids given out between two; `most` is the largest, after which they begin again."""
    return after - before if after >= before else after + most - before


def _moved(text: bytes) -> tuple[int, int]:
    """Bytes that a process, and those it has waited for, has read and written, from its file in /proc."""
    words = text.split(None, 4)
    return (int(words[1]), int(words[3])) if len(words) > 3 else (0, 0)


def _sum(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(fd: int) -> bytes:
    try:
        return os.pread(fd, 4096, 0)
    except OSError:
        return b""  # it is not open, or its process has ended


def _contents(path: str) -> bytes:
    fd = _opened(path)
    try:
        return _read(fd)
    finally:
        if fd >= 0:
            os.close(fd)
