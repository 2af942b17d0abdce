"""Tables of the cgroup files that set each limit, and that report usage. Pure."""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..policy.limits import Limits

#: Limits by the controller that enforces them.
LIMIT_OF = {"memory": "memory", "cpu": "cpu", "pids": "processes"}
#: Period over which CPU time is counted, and the least quota that the kernel accepts, in microseconds.
_PERIOD, _LONGEST_PERIOD, _LEAST = 100_000, 1_000_000, 1_000


class CgroupSetting(Value):
    """A cgroup file and the text to write to it. Some kernels lack the files that are not `needed`."""

    controller: str
    file: str
    text: str
    needed: bool = True


def settings(
    limits: Limits, version: int, *, ours: int = 0, together: bool = False
) -> Iterator[CgroupSetting]:
    """Yield the settings that put `limits` on a cgroup, in the order in which to write them.

    The cgroup contains `ours` processes of our own, which do not count. With `together`, the kernel kills the
    whole cgroup when it is out of memory. Otherwise, and always in version 1, it kills only the largest
    process.
    """
    if limits.memory is not None:
        yield from _MEMORY[version](limits.memory, together)
    if limits.cpu is not None:
        period = _PERIOD if limits.cpu * _PERIOD >= _LEAST else _LONGEST_PERIOD
        quota = max(_LEAST, round(limits.cpu * period))
        if version == 2:
            yield CgroupSetting("cpu", "cpu.max", f"{quota} {period}")
        else:
            yield CgroupSetting("cpu", "cpu.cfs_period_us", str(period))
            yield CgroupSetting("cpu", "cpu.cfs_quota_us", str(quota))
    if limits.processes is not None:
        yield CgroupSetting("pids", "pids.max", str(limits.processes + ours))


def _memory_1(most: int, together: bool) -> Iterator[CgroupSetting]:
    yield CgroupSetting("memory", "memory.limit_in_bytes", str(most))
    # The limit on memory plus swap equals the limit on memory, so nothing is swapped. Without swap accounting
    # the kernel has no such file, and only the swappiness prevents swapping.
    yield CgroupSetting("memory", "memory.memsw.limit_in_bytes", str(most), needed=False)
    yield CgroupSetting("memory", "memory.swappiness", "0", needed=False)
    # Version 1 counts TCP buffers separately.
    yield CgroupSetting("memory", "memory.kmem.tcp.limit_in_bytes", str(most), needed=False)


def _memory_2(most: int, together: bool) -> Iterator[CgroupSetting]:
    yield CgroupSetting("memory", "memory.max", str(most))
    yield CgroupSetting("memory", "memory.swap.max", "0", needed=False)
    if together:
        yield CgroupSetting("memory", "memory.oom.group", "1", needed=False)


_MEMORY = {1: _memory_1, 2: _memory_2}

#: Settings that remove the limits on memory and processes, in the order in which to write them.
UNLIMITED = {
    1: (
        CgroupSetting("memory", "memory.memsw.limit_in_bytes", "-1", needed=False),
        CgroupSetting("memory", "memory.limit_in_bytes", "-1"),
        CgroupSetting("memory", "memory.kmem.tcp.limit_in_bytes", "-1", needed=False),
        CgroupSetting("pids", "pids.max", "max"),
    ),
    2: (
        CgroupSetting("memory", "memory.max", "max"),
        CgroupSetting("memory", "memory.swap.max", "max", needed=False),
        CgroupSetting("pids", "pids.max", "max"),
    ),
}


class CounterFile(Value):
    """A file that contains a number, alone or after `word`. Divide the number by `unit`."""

    controller: str
    file: str
    word: str = ""
    unit: int = 1


#: Usage counters, by cgroup version. Version 2 counts CPU time even without its controller.
SOURCES: dict[str, dict[int, CounterFile]] = {
    "cpu": {
        1: CounterFile("cpuacct", "cpuacct.usage", unit=10**9),
        2: CounterFile("", "cpu.stat", "usage_usec", 10**6),
    },
    # Version 1 counts these in clock ticks, so a short command shows none.
    "user": {
        1: CounterFile("cpuacct", "cpuacct.usage_user", unit=10**9),
        2: CounterFile("", "cpu.stat", "user_usec", 10**6),
    },
    "system": {
        1: CounterFile("cpuacct", "cpuacct.usage_sys", unit=10**9),
        2: CounterFile("", "cpu.stat", "system_usec", 10**6),
    },
    "memory": {
        1: CounterFile("memory", "memory.usage_in_bytes"),
        2: CounterFile("memory", "memory.current"),
    },
    "peak": {
        1: CounterFile("memory", "memory.max_usage_in_bytes"),
        2: CounterFile("memory", "memory.peak"),
    },
    "files": {
        1: CounterFile("memory", "memory.stat", "shmem"),
        2: CounterFile("memory", "memory.stat", "shmem"),
    },
    "out_of_memory": {
        1: CounterFile("memory", "memory.oom_control", "oom_kill"),
        2: CounterFile("memory", "memory.events", "oom_kill"),
    },
    "processes": {1: CounterFile("pids", "pids.current"), 2: CounterFile("pids", "pids.current")},
    "most_processes": {1: CounterFile("pids", "pids.peak"), 2: CounterFile("pids", "pids.peak")},
    "refused_processes": {
        1: CounterFile("pids", "pids.events", "max"),
        2: CounterFile("pids", "pids.events", "max"),
    },
}


def number(source: CounterFile, text: str) -> int | None:
    """Return the number in the file's text, not yet divided by its unit; None if it is missing."""
    if not source.word:
        text = text.strip()
        return int(text) if text.isdigit() else None
    for line in text.splitlines():
        word, _, value = line.partition(" ")
        if word == source.word and value.isdigit():
            return int(value)
    return None
