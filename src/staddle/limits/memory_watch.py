"""The default memory limit of sessions without cgroups, watched by one thread of the host program.

A default is half of the memory that the host had available when the sandbox was opened. As long as the host
has at least that much available, no sandbox can have exceeded it. So one read covers all sandboxes, and their
processes are not inspected.
"""

from __future__ import annotations

import os
import time

from ..background import Worker, do_later
from ..linux import memory, process
from ..linux.file_room import refuse_if_full
from ..linux.fileio import read_whole
from ..linux.process import parent_of
from . import supervisor
from .unnamed_files import OpenFiles, device_of_memory_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: Seconds between two samples, and the bytes that one processor can fill in a second.
_SHORTEST, _LONGEST, _FASTEST = 0.02, 1.0, 2 << 30
#: Inspecting processes may take one part in this many of the time.
_SHARE = 5


class MemoryWatch:
    """One sandbox: its limit, and how many of its processes were killed for it."""

    def __init__(self, most: int, first: Callable[[], int], shells: Callable[[], Collection[int]]) -> None:
        """`first` returns the sandbox's first process (0: it has ended); `shells` the processes to spare."""
        self.most, self._first, self._shells = most, first, shells
        self.ended = 0
        self._largest = 0  # size of the largest memory file seen so far

    def start(self) -> None:
        """Begin to watch."""
        _ALL.add(self)

    def close(self) -> None:
        """Stop watching: the sandbox has ended."""
        _ALL.remove(self)

    def look(self) -> float:
        """Measure, and kill processes above the limit; return the seconds until the next sample."""
        first = self._first()
        pids = below(first) if first else []
        cores = len(os.sched_getaffinity(0))
        shared, self._largest = OpenFiles(pids).memory(device_of_memory_files(), self._largest)
        sample = supervisor.at_most(pids, shared, self.most)
        step = supervisor.judge(sample, self.most, self._shells(), cores)
        if step.closer:
            sample = supervisor.exactly(pids, shared)
            step = supervisor.judge(sample, self.most, self._shells(), cores)
        if step.kill:
            self.ended += len(step.kill)  # before the command's result can show it
            for pid in step.kill:
                _kill(pid, first)
        return step.again


class _MemoryWatches:
    """All sandboxes of this process with a default limit on memory and no cgroup for it."""

    def __init__(self) -> None:
        self._several: list[MemoryWatch] = []  # without a lock: it is only appended to and removed from
        self._worker = Worker(self._look, self._several.clear)

    def add(self, watch: MemoryWatch) -> None:
        self._several.append(watch)
        if len(self._several) == 1:
            do_later(self._worker.wake)

    def remove(self, watch: MemoryWatch) -> None:
        try:
            self._several.remove(watch)
        except ValueError:
            pass  # it was added in the parent process, before a fork

    def _look(self) -> float | None:
        several = tuple(self._several)
        if not several:
            return None
        least = min(watch.most for watch in several)
        spare = memory.available(age=_SHORTEST) - least
        if spare > 0:
            return min(max(spare / (_FASTEST * len(os.sched_getaffinity(0))), _SHORTEST), _LONGEST)
        began = time.monotonic()
        wait = _LONGEST
        for watch in several:
            try:
                wait = min(wait, watch.look())
            except Exception:  # noqa: S112 - it is being closed
                continue
        return max(_SHORTEST, wait, min((time.monotonic() - began) * _SHARE, _LONGEST))


def below(first: int) -> list[int]:
    """Return the host pids of the processes below `first`, without `first` itself."""
    found: list[int] = []
    todo = [first]
    while todo:
        process_directory = f"/proc/{todo.pop()}/task"
        try:
            for thread in os.listdir(process_directory):
                todo += (children := [int(pid) for pid in _children(f"{process_directory}/{thread}")])
                found += children
        except OSError as error:
            refuse_if_full(error)
            continue  # it has ended
    return found


def _children(thread: str) -> list[bytes]:
    try:
        return read_whole(f"{thread}/children").split()
    except OSError as error:
        refuse_if_full(error)
        return []


def threads_below(first: int) -> int:
    """Return the number of threads of all processes below `first`."""
    return supervisor.threads(below(first))


def _kill(pid: int, first: int) -> None:
    """Kill a process by descriptor, if it is still below `first` once the descriptor is open."""
    try:
        descriptor = process.pidfd_open(pid)
    except OSError:
        return
    try:
        above = pid
        while above not in (0, 1, first):
            above = parent_of(above)
        if above == first:
            process.pidfd_send_signal(descriptor, process.SIGKILL)
    except OSError:
        pass  # it has ended
    finally:
        os.close(descriptor)


_ALL = _MemoryWatches()
