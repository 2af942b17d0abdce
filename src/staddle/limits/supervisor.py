"""Holds the memory of a sandbox where the kernel does not: looks, decides, kills, a step at a time.

Run by the first process of the sandbox, which sees all others and is seen by none. It has no
thread and never waits: its loop calls `turn`, and again after as many seconds as that says.
"""

from __future__ import annotations

import os

from .._value import Value
from ..linux import process, process_tree
from . import memory_usage
from .memory_usage import Sample

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

#: Looking for open memory files takes longer than all the rest: not more than this part of the time.
_SHARE = 50
#: Between two looks, in seconds, where the processes are counted; and when half of what may be is there.
_SELDOM, _OFTEN = 0.25, 0.01
#: The most events that are kept: a sandbox can cause them for ever.
_MOST_EVENTS = 64
#: What a processor can fill in a second, in bytes; from this follows how long nobody needs to look.
_FASTEST = 2 << 30
#: Between two looks, in seconds, and how much longer when nothing moves.
_SHORTEST, _LONGEST, _RESTING = 0.005, 0.25, 4
#: A shell that waits is worth keeping as long as it takes no more than this part of the limit.
_SMALL = 8


class MemoryAction(Value):
    """The next action: kill these processes; measure exactly now; or measure again after so many seconds."""

    kill: tuple[int, ...] = ()
    closer: bool = False
    again: float = _LONGEST


def judge(
    sample: Sample, most: int, shells: Collection[int] = (), cores: int = 1, resting: bool = False
) -> MemoryAction:
    """The step to take for a sandbox that may use `most` bytes.

    The largest processes go, as many as it takes. `shells` are spared as long as they are not
    large themselves. Where files in memory are what takes it, ending processes gives nothing
    back: then those go that could write more. `resting`: nothing has changed since last time.
    """
    excess = sample.total - most
    if excess <= 0:
        again = min(max(-excess / (_FASTEST * cores), _SHORTEST), _LONGEST)
        return MemoryAction(again=min(again * _RESTING, _LONGEST) if resting else again)
    if not sample.exact:
        return MemoryAction(closer=True)
    victims = []
    for pid, memory in sorted(sample.processes, key=lambda item: -item[1]):
        if pid in shells and memory * _SMALL <= most:
            continue
        victims.append(pid)
        excess -= memory
        if excess <= 0:
            break
    return MemoryAction(kill=tuple(victims), again=_SHORTEST)


class MemoryKill(Value):
    """Processes that were killed because together with all others they took `total` bytes."""

    pids: tuple[int, ...]
    total: int
    most: int


class Supervisor:
    """The memory limit of one sandbox, and what is known of its processes."""

    def __init__(
        self,
        memory: int | None,
        processes: int | None,
        places: Sequence[str],
        shells: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`places` are the file systems in memory that count; `shells` tells those that are spared."""
        self._memory, self._most_processes = memory, processes
        self._places, self._shells = tuple(places), shells
        self._cores = len(os.sched_getaffinity(0))
        self._device = memory_usage.device_of_memory_files()
        self._unnamed, self._looked = 0, float("-inf")
        self._last: Sample | None = None
        self._still = 0
        #: The kills that were not reported yet: see `take_events`.
        self.ended: list[MemoryKill] = []
        #: The memory that was seen last, and whether the sandbox was seen with all processes it may have.
        self.seen = 0
        self.full = False

    def turn(self, now: float, gone: int = 0) -> float:
        """Look once, do what must be done; how many seconds until the next look.

        `gone` processes that are to be counted have just ended.
        """
        pids = memory_usage.others()
        seldom = _SELDOM
        if self._most_processes is not None:
            count = memory_usage.threads(pids) + gone
            self.full = self.full or count >= self._most_processes
            if count * 2 > self._most_processes and not self.full:
                seldom = _OFTEN
        if self._memory is None:
            return seldom
        shared = (
            memory_usage.files_in_memory(self._places)
            + memory_usage.system_v()
            + self._memory_files(pids, now)
        )
        sample = memory_usage.at_most(pids, shared, self._memory)
        resting = self._is_resting(sample)
        step = judge(sample, self._memory, self._shells(), self._cores, resting)
        if step.closer:
            sample = memory_usage.exactly([pid for pid, _ in sample.processes], shared)
            step = judge(sample, self._memory, self._shells(), self._cores)
        self.seen = sample.total
        for pid in step.kill:
            process_tree.send(pid, process.SIGKILL)
        if step.kill:
            self.ended = [*self.ended[1 - _MOST_EVENTS :], MemoryKill(step.kill, sample.total, self._memory)]
        return min(step.again, seldom)

    def take_events(self) -> list[MemoryKill]:
        """The kills since the last call."""
        found, self.ended = self.ended, []
        return found

    def _is_resting(self, sample: Sample) -> bool:
        self._still = self._still + 1 if sample == self._last else 0
        self._last = sample
        return self._still > 1

    def _memory_files(self, pids: list[int], now: float) -> int:
        import time

        if now >= self._looked:
            began = time.monotonic()
            self._unnamed = memory_usage.memory_files(pids, self._device)
            self._looked = now + max(0.05, (time.monotonic() - began) * _SHARE)
        return self._unnamed
