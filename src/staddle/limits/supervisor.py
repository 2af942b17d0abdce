"""Enforces the memory limit of a sandbox without cgroups: samples, decides, kills, a step at a time.

The first process of the sandbox runs this. It sees all other processes, and none sees it. It has no thread
and never waits: its loop calls `turn`, which returns the seconds until the next call.

Only memory of the sandbox alone counts: anonymous memory, files in memory, shared memory of both kinds, and
open memory files. Programs and libraries are the host's pages.
"""

from __future__ import annotations

import os
import struct
import time

from .._value import Value
from ..linux import netlink, process, process_tree, procfs
from .unnamed_files import OpenFiles, device_of_memory_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sample(Value):
    """A measurement: bytes by process, and bytes that all share (files in memory, shared memory).

    If not `exact`, pages that processes share count for each of them, so that the true total is at most this.
    """

    processes: tuple[tuple[int, int], ...]
    shared: int
    exact: bool

    @property
    def total(self) -> int:
        """Total bytes."""
        return sum(memory for _, memory in self.processes) + self.shared


def others() -> list[int]:
    """Return every process of this pid namespace except the caller."""
    own = os.getpid()
    return [pid for pid in procfs.pids() if pid != own]


def at_most(pids: Iterable[int], shared: int, enough: int) -> Sample:
    """Measure an upper bound quickly: pages inherited by a fork count for parent and child.

    If the total including programs and libraries is at most `enough`, return that. Otherwise leave these out.
    """
    found, of_files = [], 0
    for pid in pids:
        words = _contents(f"{procfs.directory(pid)}/statm", 128).split()
        if len(words) > 2 and (resident := int(words[1])):
            found.append((pid, (resident - int(words[2])) * _PAGE))
            of_files += int(words[2]) * _PAGE
    sample = Sample(tuple(found), shared + of_files, exact=False)
    if sample.total <= enough:
        return sample
    mapped = sum(_field(_contents(f"{procfs.directory(pid)}/status", 4096), b"RssShmem:") for pid, _ in found)
    return Sample(tuple(found), max(shared, mapped), exact=False)


def _field(text: bytes, name: bytes) -> int:
    """Return the bytes of a field in a status file, which is in kilobytes."""
    _, found, rest = text.partition(b"\n" + name)
    return int(rest.split(None, 1)[0]) << 10 if found else 0


def exactly(pids: Iterable[int], shared: int) -> Sample:
    """Measure each page once, divided among the processes that map it.

    Shared anonymous memory can be counted only in the processes that map it, and these map files in memory
    too. So this takes the larger of both counts.
    """
    found, mapped = [], 0
    for pid in pids:
        text = _contents(f"{procfs.directory(pid)}/smaps_rollup", 4096)
        anonymous, shmem = _rolled_up(text) or _resident(pid)
        found.append((pid, anonymous))
        mapped += shmem
    return Sample(tuple(found), max(shared, mapped), exact=True)


def _resident(pid: int) -> tuple[int, int]:
    """Like `_rolled_up`, for a process whose page tables we may not read: all pages count as its own."""
    words = _contents(f"{procfs.directory(pid)}/statm", 128).split()
    return ((int(words[1]) - int(words[2])) * _PAGE, 0) if len(words) > 2 else (0, 0)


def _rolled_up(text: bytes) -> tuple[int, int] | None:
    """Return the bytes of anonymous and shared memory in the text of smaps_rollup; None if it is empty."""
    if not text:
        return None
    anonymous = shmem = 0
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        if name in (b"Pss_Anon", b"SwapPss"):
            anonymous += int(value.split()[0]) << 10
        elif name == b"Pss_Shmem":
            shmem = int(value.split()[0]) << 10
    return anonymous, shmem


def threads(pids: Iterable[int]) -> int:
    """Return the number of threads of these processes, which the kernel counts as processes."""
    count = 0
    for pid in pids:
        try:
            count += os.stat(f"{procfs.directory(pid)}/task").st_nlink - 2
        except OSError:
            continue
    return count


def files_in_memory(places: Sequence[str]) -> int:
    """Return the bytes that the file systems mounted at `places` keep in memory."""
    total = 0
    for place in places:
        try:
            status = os.statvfs(place)
        except OSError:
            continue
        total += max(0, status.f_blocks - status.f_bfree) * status.f_frsize
    return total


def system_v() -> int:
    """Return the bytes of System V shared memory in this IPC namespace."""
    lines = _contents("/proc/sysvipc/shm", 1 << 20).splitlines()
    if not lines or b"rss" not in (names := lines[0].split()):
        return 0
    columns = [names.index(name) for name in (b"rss", b"swap") if name in names]
    return sum(int(words[column]) for line in lines[1:] if (words := line.split()) for column in columns)


def _contents(path: str, longest: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while len(data) < longest and (chunk := os.read(fd, longest - len(data))):
            data += chunk
        return data
    except OSError:
        return b""  # it has ended
    finally:
        os.close(fd)


#: Searching for open memory files takes longer than everything else. It may take one part in `_SHARE` of the
#: processor time, but happens at least every `_LONGEST_BLIND` seconds.
_SHARE, _LONGEST_BLIND = 50, 1.0
#: Seconds between two counts of the processes, and when more than half of the limit is reached.
_SELDOM, _OFTEN = 0.25, 0.01
#: The most kept events: a sandbox can cause them forever.
_MOST_EVENTS = 64
#: The bytes that a processor can fill in a second, from which the interval to the next sample follows.
_FASTEST = 2 << 30
#: Seconds between two samples, and the factor while nothing changes.
_SHORTEST, _LONGEST, _RESTING = 0.005, 0.25, 4
#: Number of exact samples that must all exceed the limit: a fork during a sample counts pages twice.
_READINGS = 2
#: A waiting shell is spared if it uses at most one part in this many of the limit.
_SMALL = 8


class MemoryAction(Value):
    """The next action: kill these processes; measure exactly now; or measure again after so many seconds."""

    kill: tuple[int, ...] = ()
    closer: bool = False
    again: float = _LONGEST


def judge(
    sample: Sample, most: int, shells: Collection[int] = (), cores: int = 1, resting: bool = False
) -> MemoryAction:
    """Decide on the next action for a sandbox that may use `most` bytes.

    The largest processes are killed, as many as needed. `shells` are spared unless they are large themselves.
    If files in memory take the space, killing frees nothing, so the processes that could write more are
    killed. `resting`: nothing has changed since the last sample.
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
    """Processes that were killed because all processes together took `total` bytes."""

    pids: tuple[int, ...]
    total: int
    most: int


class Supervisor:
    """The memory limit of one sandbox, and its last measurements."""

    def __init__(
        self,
        memory: int | None,
        processes: int | None,
        places: Sequence[str],
        shells: Callable[[], Collection[int]] = tuple,
        *,
        counts_sockets: bool = False,
        pids: Callable[[], list[int]] | None = None,
        count: Callable[[Iterable[int]], int] = threads,
    ) -> None:
        """`places` are the file systems in memory that count; `shells` returns the processes to spare.

        `counts_sockets`: the network namespace is the sandbox's own, and its socket buffers count. `pids`
        lists the processes of a sandbox without its own pid namespace, which then has no own IPC namespace
        either. `count` counts processes as the kernel does.
        """
        self._counts_sockets = counts_sockets
        self._pids, self._has_ipc, self._count = pids or others, pids is None, count
        #: Called before processes are killed, so that a waiting parent finds the kill reported.
        self.before_kill: Callable[[], None] = lambda: None
        self._memory, self._most_processes = memory, processes
        self._places, self._shells = tuple(places), shells
        self._cores = len(os.sched_getaffinity(0))
        self._device = device_of_memory_files()
        self._unnamed, self._looked, self._measured_at = 0, float("-inf"), float("-inf")
        self._largest = 0  # size of the largest memory file seen so far
        self._last: Sample | None = None
        self._still = 0
        self._dying: frozenset[int] = frozenset()
        #: The kills that were not reported yet: see `take_events`.
        self.ended: list[MemoryKill] = []
        #: The memory in the last sample, and whether the sandbox has reached its limit on processes.
        self.seen = 0
        self.full = False

    def turn(self, now: float, gone: int = 0) -> float:
        """Sample once and act; return the seconds until the next sample.

        Count `gone` processes that have just ended as if they still existed.
        """
        pids = self._pids()
        seldom = _SELDOM
        if self._most_processes is not None:
            count = self._count(pids) + gone
            self.full = self.full or count >= self._most_processes
            if count * 2 > self._most_processes and not self.full:
                seldom = _OFTEN
        if self._memory is None:
            return seldom
        unnamed = self._memory_files(pids, now)
        shared = files_in_memory(self._places) + unnamed
        shared += system_v() if self._has_ipc else 0
        sample = at_most(pids, shared, self._memory)
        resting = self._is_resting(sample)
        step = judge(sample, self._memory, self._shells(), self._cores, resting)
        if step.closer:
            if self._measured_at < now:  # the file may be closed by now
                shared += self._memory_files(pids, now, again=True) - unnamed
            for _ in range(_READINGS):
                sample = exactly(self._pids(), shared)
                step = judge(sample, self._memory, self._shells(), self._cores)
                if not step.kill:
                    break
        self.seen = sample.total
        # A process still dying from the last sample is no new event: it may belong to the previous command.
        if new := tuple(pid for pid in step.kill if pid not in self._dying):
            self.ended = [*self.ended[1 - _MOST_EVENTS :], MemoryKill(new, sample.total, self._memory)]
            self.before_kill()
        self._dying = frozenset(step.kill)
        for pid in step.kill:
            process_tree.send(pid, process.SIGKILL)
        return min(step.again, seldom)

    def earliest(self) -> float:
        """Return the seconds in which no sandbox that is still empty can reach its limit on memory."""
        return (
            0.0
            if self._memory is None
            else judge(Sample((), 0, exact=False), self._memory, (), self._cores).again
        )

    def take_events(self) -> list[MemoryKill]:
        """Return the kills since the last call."""
        found, self.ended = self.ended, []
        return found

    def _is_resting(self, sample: Sample) -> bool:
        self._still = self._still + 1 if sample == self._last else 0
        self._last = sample
        return self._still > 1

    def _memory_files(self, pids: list[int], now: float, *, again: bool = False) -> int:
        import time

        if again or now >= self._looked:
            self._measured_at = now
            began = time.thread_time()  # not wall time, which includes that of other programs
            self._unnamed, self._largest = OpenFiles(pids).memory(self._device, self._largest)
            if self._counts_sockets:
                self._unnamed += netlink.socket_memory()
            self._looked = now + min(max(0.05, (time.thread_time() - began) * _SHARE), _LONGEST_BLIND)
        return self._unnamed


# Enforce limits without cgroups in the loop of a sandbox's first process, and report to the host program.


#: Contents of the tally file: processes killed for their memory, times that the process limit was reached,
#: and the highest memory seen, which the host program resets.
TALLY, SIZE, PEAK = "=QQQ", 24, 16


class LimitTally:
    """A supervisor that samples when it is due, and the file in which it reports its actions (`TALLY`)."""

    def __init__(self, supervisor: Supervisor, tally: int) -> None:
        self._supervisor, self._tally = supervisor, tally
        self._ended = self._full = 0
        self._next = time.monotonic() + supervisor.earliest()
        supervisor.before_kill = self._tell

    def patience(self, otherwise: int | None) -> int:
        """Sample if it is due. Return the milliseconds until the next sample, at most `otherwise`."""
        if time.monotonic() >= self._next:
            self.look()
        left = 1 + max(0, int((self._next - time.monotonic()) * 1000))
        return left if otherwise is None else min(left, otherwise)

    def look(self, gone: int = 0) -> None:
        """Sample now; count `gone` processes that have just ended as if they still existed."""
        now = time.monotonic()
        self._next = now + self._supervisor.turn(now, gone)
        self._tell()

    def _tell(self) -> None:
        supervisor = self._supervisor
        self._ended += sum(len(event.pids) for event in supervisor.take_events())
        self._full += supervisor.full
        supervisor.full = False
        before = os.pread(self._tally, SIZE, 0)
        peak = struct.unpack(TALLY, before)[2] if len(before) == SIZE else 0
        now = struct.pack(TALLY, self._ended, self._full, max(peak, supervisor.seen))
        if now != before:
            os.pwrite(self._tally, now, 0)
