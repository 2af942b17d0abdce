"""Usage of one command, and of a sandbox as a whole: counters read before and after, never a walk.

With control groups the processors and the memory are their counts. Without them, and for all else,
the shell's own lines in /proc say what it and all it has waited for used. Each is a read of two
microseconds; more is looked up only for commands that did something.

`ran_into` says from these counts which limit a command ran into. A limit is a reason only for a command
that failed: one whose child was killed or could not be started, and that coped with it, has come to its
own end.
"""

from __future__ import annotations

import errno
import os

from .._value import Value
from ..linux.process import split_stat
from ..mounts.operations import inodes
from . import cgroup_layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from ..ipc.agent_messages import UsageCounts
    from ..policy.limits import Limits

    class MeteredCgroups(Protocol):
        """The cgroups of a sandbox, as far as a meter reads them."""

        #: The most memory that a meter has seen.
        highest: int

        def at(self, controller: str) -> tuple[int, str] | None: ...


_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Seconds of CPU time below which a command has started nothing, and so took no memory.
_NOTHING = 0.0003
#: Where the kernel does not tell the most memory: it may have been any amount.
_UNKNOWN = 1 << 62


class Usage(Value):
    """Seconds on the clock and of the processors, bytes, a count. None is not known here.

    `memory` is the most that the sandbox took during the command, `read` and `written` are bytes
    that its processes read and wrote, files and pipes alike, `processes` those that were
    started, threads included. `memory_is_estimate`: no cgroup counts the memory, so it is that of the
    largest process, or what the supervisor of a memory limit saw. It is None for a command of a shell that
    started processes without such a limit: the kernel tells their memory to the shell alone.
    """

    wall: float
    user: float | None = None
    system: float | None = None
    memory: int | None = None
    read: int | None = None
    written: int | None = None
    processes: int | None = None
    memory_is_estimate: bool = False


class Events(Value):
    """Counts of limits that were run into since the sandbox was made."""

    out_of_memory: int = 0
    refused_processes: int = 0


class GroupMeter:
    """Reads off the control groups of a sandbox. Keeps a few descriptors until `park`.

    A command that starts nothing costs two reads. The most memory since the last command is asked
    for only when the processors did something.
    """

    def __init__(self, group: MeteredCgroups) -> None:
        self._group = group
        self._open: dict[str, tuple[int, cgroup_layout.CounterFile] | None] = {}
        self._before = (0.0, 0.0)
        #: Of version 1: what was counted for the user and the system until now, and the ticks of each then.
        self._counted, self._ticks = (0.0, 0.0), (0, 0)
        self._memory: int | None = None
        self._peak = 0

    def begin(self) -> None:
        """A command begins."""
        now = self._cpu()
        if not self._is_same(now):
            self._note_memory()  # something has run since the last one
        self._before = now

    def is_quiet(self) -> bool:
        """Whether it is known that nothing has run since the last command, or the last `begin`."""
        return self._known("cpu") is not None and self._is_same(self._cpu())

    def _is_same(self, now: tuple[float, float]) -> bool:
        return now[0] + now[1] - self._before[0] - self._before[1] <= _NOTHING

    def end(self, wall: float) -> Usage:
        """It is over, after `wall` seconds."""
        now, before = self._cpu(), self._before
        user, system = now[0] - before[0], now[1] - before[1]
        self._before = now
        memory = self._note_memory() if user + system > _NOTHING else self._memory
        return Usage(wall, user, system, memory, None, None, None, False)  # whole: on every command's path

    def total(self, wall: float) -> Usage:
        """Everything since the sandbox was made."""
        self._note_memory()
        return Usage(wall, *self._cpu(), self._peak or None)

    @property
    def highest(self) -> int:
        """The most memory that there can have been, by what was seen at the end of commands."""
        return _UNKNOWN if self._known("peak") is None else self._group.highest

    def files(self) -> int:
        """Bytes of memory that files in it take now."""
        return self._read("files") or 0

    def events(self) -> Events:
        """The limits that were run into until now."""
        return Events(self._read("out_of_memory") or 0, self._read("refused_processes") or 0)

    def park(self, close: Callable[[int], None] = os.close) -> None:  # there is no `os` any more at exit
        """Close what is kept open; it is opened again when needed."""
        while self._open:
            known = self._open.popitem()[1]
            if known is not None:
                close(known[0])

    __del__ = park

    # ---------------------------------------------------------------- reading

    def _cpu(self) -> tuple[float, float]:
        known = self._known("cpu")
        if known is None:
            return 0.0, 0.0
        fd, source = known
        if source.word:  # both are in one file, after their names
            try:
                words = os.pread(fd, 512, 0).split()
                return int(words[3]) / source.unit, int(words[5]) / source.unit
            except (OSError, IndexError):
                return self._before  # the group is gone
        total = self._read("cpu")
        if total is not None:  # else the group is gone
            self._count(total / source.unit)
        return self._counted

    def _count(self, total: float) -> None:
        """Divide what was used since the last time by the ticks of version 1, as version 2 itself does."""
        user, system = self._counted
        more, share = total - user - system, 1.0
        if more > _NOTHING:
            before, self._ticks = self._ticks, (self._read("user") or 0, self._read("system") or 0)
            ticks = self._ticks[0] - before[0], self._ticks[1] - before[1]
            share = ticks[0] / sum(ticks) if sum(ticks) else 1.0
        self._counted = user + more * share, system + more * (1.0 - share)

    def _note_memory(self) -> int | None:
        """The most memory since this was last asked; where the kernel cannot tell, at least what it is now.

        Version 1 can forget the most there was; version 2 since Linux 6.12, for the descriptor
        that says so. Before, it is known of those commands that took more than any other so far.
        """
        peak, now = self._read("peak"), self._read("memory")
        self._memory = now
        self._group.highest = max(self._group.highest, peak or 0, now or 0)
        if peak is None:
            self._peak = max(self._peak, now or 0)
            return now
        grown = peak > self._peak
        self._peak = max(self._peak, peak)
        return peak if self._forget_peak() or grown else now

    def _forget_peak(self) -> bool:
        known = self._known("peak")
        try:
            return known is not None and os.pwrite(known[0], b"0", 0) > 0
        except OSError:
            return False  # an older kernel

    def _read(self, name: str) -> int | None:
        known = self._known(name)
        if known is None:
            return None
        try:
            text = os.pread(known[0], 4096, 0)
            return int(text) if not known[1].word else cgroup_layout.number(known[1], text.decode("ascii"))
        except (OSError, ValueError):
            return None  # the group is gone, or it says "max"

    def _known(self, name: str) -> tuple[int, cgroup_layout.CounterFile] | None:
        try:
            return self._open[name]
        except KeyError:
            found = self._open[name] = self._opened(name)
            return found

    def _opened(self, name: str) -> tuple[int, cgroup_layout.CounterFile] | None:
        for version in (2, 1):
            source = cgroup_layout.SOURCES[name][version]
            where = self._group.at(source.controller)
            if where is None or where[0] != version:
                continue
            for mode in (os.O_RDWR, os.O_RDONLY) if name == "peak" else (os.O_RDONLY,):
                try:
                    return os.open(f"{where[1]}/{source.file}", mode | os.O_CLOEXEC), source
                except OSError:
                    continue
        return None


class ProcSample:
    """The counters in /proc of a process and all it has waited for, at one moment.

    `read` and `written` are None if they are not to be seen from here, as by root without the capability to
    trace a process of another user. `faults` are the page faults of those that it has waited for: unchanged
    until it waits for a child. `resident` is the memory of the process itself, in bytes.
    """

    __slots__ = ("faults", "read", "resident", "system", "user", "written")

    def __init__(  # noqa: PLR0917 - on every command's path
        self,
        user: float,
        system: float,
        read: int | None,
        written: int | None,
        faults: int,
        resident: int = 0,
    ) -> None:
        self.user, self.system = user, system
        self.read, self.written = read, written
        self.faults, self.resident = faults, resident


class ProcessMeter:
    """Reads off the lines of a process in /proc: what it used, and those that it has waited for.

    Of the processors in steps of a hundredth of a second, as the kernel tells it there. Keeps two
    descriptors until `park`.
    """

    def __init__(self, pid: int) -> None:
        self._open: list[int] = []  # first: an interrupt may come before the rest
        self.pid = pid
        self._began = b""
        self._files: tuple[str, ...] = ("stat", "io")

    def now(self) -> ProcSample | None:
        """As it is at this moment; None when the process has ended, or is not to be seen from here."""
        if not self.pid:
            return None
        try:
            opened = self._open
            if len(opened) < len(self._files):
                for name in self._files[len(opened) :]:
                    opened.append(os.open(f"/proc/{self.pid}/{name}", os.O_RDONLY | os.O_CLOEXEC))
            words = split_stat(os.pread(opened[0], 1024, 0), 22)
            moved = os.pread(opened[1], 1024, 0).split(None, 4) if len(opened) > 1 else []
        except OSError as error:
            self.park()
            if error.errno == errno.EACCES and len(self._files) > 1:
                self._files = ("stat",)
                return self.now()
            self.pid = 0
            return None
        if words[19] != self._began:
            if self._began:
                self.pid = 0  # another has its number
                return None
            self._began = words[19]
        user, system = int(words[11]) + int(words[13]), int(words[12]) + int(words[14])
        read, written = (int(moved[1]), int(moved[3])) if moved else (None, None)
        resident = int(words[21]) * _PAGE
        return ProcSample(user / _TICKS, system / _TICKS, read, written, int(words[8]), resident)

    def park(self, close: Callable[[int], None] = os.close) -> None:
        """Close what is kept open; it is opened again when needed."""
        while self._open:
            close(self._open.pop())

    __del__ = park


def in_the_end(spent: UsageCounts) -> ProcSample:
    """The last line of a process that has ended with so much."""
    return ProcSample(spent[0] / 1e6, spent[1] / 1e6, spent[2], spent[3], -1)


def of_process(used: UsageCounts, wall: float) -> Usage:
    """The usage of a process that has ended, and of all it has waited for, from the agent's `UsageCounts`.

    The most memory that the kernel tells is that of the process that forked it, where that was more.
    """
    user, system, read, written, memory, count = (max(0, number) for number in used)  # it may say anything
    started = None if used[5] < 0 else count
    return Usage(wall, user / 1e6, system / 1e6, memory or None, read, written, started)


_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class RanInto(Value):
    """The limit, by its name in `Reason`, and a sentence."""

    limit: str
    sentence: str


def ran_into(
    limits: Limits, exit_code: int, before: Events, after: Events, *, full: bool = False, ended: int = 0
) -> RanInto | None:
    """The limit that made a command fail, if one did.

    `full`: too much is written, by the limit on that, or on memory where files are in it. `ended`:
    how many processes a supervisor killed for their memory during it, where the kernel does not hold that.
    """
    if exit_code == 0:
        return None
    killed = after.out_of_memory - before.out_of_memory + ended
    if killed > 0 and limits.memory is not None:
        what = "a process was" if killed == 1 else f"{killed} processes were"
        sentence = f"{what} killed: all together used more than {size(limits.memory)} of memory"
        return RanInto("memory", f"{sentence} ({_named('memory', limits)})")
    if after.refused_processes > before.refused_processes and limits.processes is not None:
        return RanInto(
            "processes",
            f"a process or thread could not be started: there were {limits.processes} "
            f"({_named('processes', limits)})",
        )
    if full and limits.disk is not None:
        most = f"{size(limits.disk)}, or {inodes(limits.disk):,} files and directories"
        return RanInto("disk", f"no room is left: at most {most} can be written ({_named('disk', limits)})")
    if full and limits.memory is not None:
        sentence = f"no room is left: {size(limits.memory)} are written, which is in memory"
        return RanInto("memory", f"{sentence} ({_named('memory', limits)})")
    return None


def _named(name: str, limits: Limits) -> str:
    """The limit by its name; of a default also how to say another."""
    if name not in limits.defaults:
        return f"limits.{name}"
    return f"the default of limits.{name} on this host; set a number for more, or None for no limit"


def size(count: int) -> str:
    """Bytes, as people say it."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} bytes"
