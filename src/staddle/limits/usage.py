"""What one command used, and a sandbox as a whole: read off before and after, never by a walk.

With control groups that is a read or two, of a microsecond each, and what else there is to know
is looked up only for commands that did something. Without them the shell's own line in /proc
says what it and all it has waited for used.
"""

from __future__ import annotations

import os

from .._value import Value
from . import controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .group import Group

_TICKS = os.sysconf("SC_CLK_TCK")
#: Seconds of CPU time below which a command has started nothing, and so read and written nothing.
_NOTHING = 0.0003


class Usage(Value):
    """Seconds on the clock and of the processors, bytes, a count. None is not known here.

    `memory` is the most that the sandbox took during the command, `read` and `written` are
    bytes from and to storage, `processes` those that were started, threads included.
    """

    wall: float
    user: float | None = None
    system: float | None = None
    memory: int | None = None
    read: int | None = None
    written: int | None = None
    processes: int | None = None


class Events(Value):
    """How often a limit was run into since the sandbox was made."""

    out_of_memory: int = 0
    refused_processes: int = 0


class GroupMeter:
    """Reads off the control groups of a sandbox. Keeps a few descriptors until `park`."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._open: dict[str, tuple[int, controls.Source]] = {}
        self._before = (0.0, 0.0, 0, 0)
        self._peak = 0
        self._resets: bool | None = None

    def begin(self) -> None:
        """A command begins."""
        self._note_peak()
        if self._resets is not False:
            self._resets = self._reset_peak()
        user, system = self._cpu()
        traffic = self._before[2:]
        if user + system - sum(self._before[:2]) > _NOTHING:  # something ran since the last command
            traffic = self._traffic()
        self._before = (user, system, *traffic)

    def end(self, wall: float) -> Usage:
        """It is over, after `wall` seconds."""
        user, system = self._cpu()
        used = user - self._before[0], system - self._before[1]
        read, written = self._before[2:]
        if sum(used) > _NOTHING:
            read, written = self._traffic()
        has_traffic = self._group.at(self._kind_of_traffic()[0]) is not None
        usage = Usage(
            wall,
            *used,
            memory=self._note_peak() or None,
            read=read - self._before[2] if has_traffic else None,
            written=written - self._before[3] if has_traffic else None,
        )
        self._before = (user, system, read, written)
        return usage

    def total(self, wall: float) -> Usage:
        """Everything since the sandbox was made."""
        read, written = self._traffic()
        has_traffic = self._group.at(self._kind_of_traffic()[0]) is not None
        self._note_peak()
        return Usage(
            wall,
            *self._cpu(),
            memory=self._peak or None,
            read=read if has_traffic else None,
            written=written if has_traffic else None,
        )

    def events(self) -> Events:
        """What limits were run into until now."""
        return Events(self._read("out_of_memory") or 0, self._read("refused_processes") or 0)

    def park(self) -> None:
        """Close what is kept open; it is opened again when needed."""
        while self._open:
            os.close(self._open.popitem()[1][0])
        self._resets = None

    # ---------------------------------------------------------------- reading

    def _cpu(self) -> tuple[float, float]:
        found = []
        for name in ("user", "system"):
            value = self._read(name)
            found.append((value or 0) / self._open[name][1].unit if name in self._open else 0.0)
        return found[0], found[1]

    def _note_peak(self) -> int:
        """The most memory since the last command began; where that is not to be had, since the first."""
        peak = self._read("peak") or self._read("memory") or 0
        self._peak = max(self._peak, peak)
        return peak

    def _reset_peak(self) -> bool:
        """Version 1 always can; version 2 since Linux 6.12, for the descriptor that says so."""
        if "peak" not in self._open:
            return False
        try:
            os.pwrite(self._open["peak"][0], b"0", 0)
        except OSError:
            return False
        return True

    def _traffic(self) -> tuple[int, int]:
        controller, file = self._kind_of_traffic()
        where = self._group.at(controller)
        if where is None:
            return 0, 0
        from ..linux import cgroups

        try:
            return controls.traffic(where[0], cgroups.read(where[1], file))
        except OSError:
            return 0, 0

    def _kind_of_traffic(self) -> tuple[str, str]:
        return controls.TRAFFIC[1 if self._group.at("blkio") is not None else 2]

    def _read(self, name: str) -> int | None:
        known = self._open.get(name) or self._opened(name)
        if known is None:
            return None
        fd, source = known
        try:
            return controls.number(source, os.pread(fd, 4096, 0).decode("ascii", "replace"))
        except OSError:
            return None  # the group is gone

    def _opened(self, name: str) -> tuple[int, controls.Source] | None:
        for version in (2, 1):
            source = controls.SOURCES[name][version]
            where = self._group.at(source.controller)
            if where is None or where[0] != version:
                continue
            path = f"{where[1]}/{source.file}"
            for mode in (os.O_RDWR, os.O_RDONLY) if name == "peak" else (os.O_RDONLY,):
                try:
                    self._open[name] = known = os.open(path, mode | os.O_CLOEXEC), source
                except OSError:
                    continue
                return known
        return None


class ProcessMeter:
    """Reads off the line of a process in /proc: what it used, and those that it has waited for.

    Of the processors in steps of a hundredth of a second, as the kernel tells it there.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = (0.0, 0.0, 0, 0, 0)

    def begin(self) -> None:
        """A command begins."""
        self._before = self._now()

    def end(self, wall: float) -> Usage:
        """It is over, after `wall` seconds."""
        before, now = self._before, self._now(self._before)
        user, system = now[0] - before[0], now[1] - before[1]
        return Usage(wall, user, system, None, now[2] - before[2], now[3] - before[3])

    def _now(
        self, known: tuple[float, float, int, int, int] | None = None
    ) -> tuple[float, float, int, int, int]:
        words = _contents(f"/proc/{self._pid}/stat").rpartition(b")")[2].split()
        if len(words) < 15:
            return known or self._before  # it has ended
        user, system, of_children, of_childrens_system = (int(word) / _TICKS for word in words[11:15])
        faults = int(words[8])
        cpu = user + of_children, system + of_childrens_system
        if known is not None and known[4] == faults:
            return *cpu, *known[2:]  # no process was waited for: nothing but the shell itself did anything
        traffic = dict(line.split(b": ") for line in _contents(f"/proc/{self._pid}/io").splitlines())
        return *cpu, int(traffic.get(b"read_bytes", 0)), int(traffic.get(b"write_bytes", 0)), faults


def of_process(rusage: object, wall: float) -> Usage:
    """What wait4(2) tells of a process and all it has waited for."""
    names = ("ru_utime", "ru_stime", "ru_maxrss", "ru_inblock", "ru_oublock")
    user, system, resident, read, written = (getattr(rusage, name) for name in names)
    return Usage(wall, user, system, resident << 10, read << 9, written << 9)


def last_pid() -> int:
    """The number that was given to the newest process of this pid namespace."""
    return int(_contents("/proc/loadavg").split()[-1])


def started(before: int, after: int, most: int) -> int:
    """How many processes and threads were started between two looks at `last_pid`; `most` is the largest."""
    return after - before if after >= before else after + most - before


def _contents(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)
