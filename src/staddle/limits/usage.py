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
    """Reads off the control groups of a sandbox. Keeps a few descriptors until `park`.

    A command that starts nothing costs two reads. The most memory since the last command is asked
    for, and what was read and written, only when the processors did something.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._open: dict[str, tuple[int, controls.Source] | None] = {}
        self._before = (0.0, 0.0)
        self._traffic: tuple[int | None, int | None] = (None, None)
        self._memory: int | None = None
        self._peak = 0

    def begin(self) -> None:
        """A command begins."""
        now = self._cpu()
        if now[0] + now[1] - self._before[0] - self._before[1] > _NOTHING:
            self._note_memory()  # something has run since the last one
            self._traffic = self._moved()
        self._before = now

    def end(self, wall: float) -> Usage:
        """It is over, after `wall` seconds."""
        now, before, traffic = self._cpu(), self._before, self._traffic
        user, system = now[0] - before[0], now[1] - before[1]
        self._before = now
        if user + system > _NOTHING:
            memory = self._note_memory()
            self._traffic = self._moved()
        else:
            memory = self._memory
        read, written = self._traffic
        if read is None or written is None:
            return Usage(wall, user, system, memory, None, None, None)
        return Usage(wall, user, system, memory, read - (traffic[0] or 0), written - (traffic[1] or 0), None)

    def total(self, wall: float) -> Usage:
        """Everything since the sandbox was made."""
        self._note_memory()
        return Usage(wall, *self._cpu(), self._peak or None, *self._moved(), None)

    def events(self) -> Events:
        """What limits were run into until now."""
        return Events(self._read("out_of_memory") or 0, self._read("refused_processes") or 0)

    def park(self) -> None:
        """Close what is kept open; it is opened again when needed."""
        while self._open:
            known = self._open.popitem()[1]
            if known is not None:
                os.close(known[0])

    __del__ = park

    # ---------------------------------------------------------------- reading

    def _cpu(self) -> tuple[float, float]:
        known = self._known("user")
        if known is None:
            return 0.0, 0.0
        fd, source = known
        if source.word:  # both are in one file, after their names
            try:
                words = os.pread(fd, 512, 0).split()
                return int(words[3]) / source.unit, int(words[5]) / source.unit
            except (OSError, IndexError):
                return self._before  # the group is gone
        return (self._read("user") or 0) / source.unit, (self._read("system") or 0) / source.unit

    def _note_memory(self) -> int | None:
        """The most memory since this was last asked; where the kernel cannot tell, at least what it is now.

        Version 1 can forget the most there was; version 2 since Linux 6.12, for the descriptor
        that says so. Before, it is known of those commands that took more than any other so far.
        """
        peak, now = self._read("peak"), self._read("memory")
        self._memory = now
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

    def _moved(self) -> tuple[int | None, int | None]:
        from ..linux import cgroups

        for version, (controller, file) in controls.TRAFFIC.items():
            where = self._group.at(controller)
            if where is not None and where[0] == version:
                try:
                    return controls.traffic(version, cgroups.read(where[1], file))
                except OSError:
                    break
        return None, None

    def _read(self, name: str) -> int | None:
        known = self._known(name)
        if known is None:
            return None
        try:
            return controls.number(known[1], os.pread(known[0], 4096, 0).decode("ascii", "replace"))
        except OSError:
            return None  # the group is gone

    def _known(self, name: str) -> tuple[int, controls.Source] | None:
        try:
            return self._open[name]
        except KeyError:
            found = self._open[name] = self._opened(name)
            return found

    def _opened(self, name: str) -> tuple[int, controls.Source] | None:
        for version in (2, 1):
            source = controls.SOURCES[name][version]
            where = self._group.at(source.controller)
            if where is None or where[0] != version:
                continue
            for mode in (os.O_RDWR, os.O_RDONLY) if name == "peak" else (os.O_RDONLY,):
                try:
                    return os.open(f"{where[1]}/{source.file}", mode | os.O_CLOEXEC), source
                except OSError:
                    continue
        return None


class ProcessMeter:
    """Reads off the line of a process in /proc: what it used, and those that it has waited for.

    Of the processors in steps of a hundredth of a second, as the kernel tells it there. Keeps a
    descriptor until `park`.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd = -1
        # Seconds of both kinds, bytes read and written, and faults of those it has waited for.
        self._last: tuple[float, float, int, int, int] = (0.0, 0.0, 0, 0, -1)

    def begin(self) -> None:
        """A command begins."""
        self._last = self._now()

    def end(self, wall: float) -> Usage:
        """It is over, after `wall` seconds."""
        before, now = self._last, self._now()
        self._last = now
        cpu = now[0] - before[0], now[1] - before[1]
        return Usage(wall, *cpu, None, now[2] - before[2], now[3] - before[3], None)

    def park(self) -> None:
        """Close what is kept open; it is opened again when needed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _now(self) -> tuple[float, float, int, int, int]:
        last = self._last
        try:
            if self._fd < 0:
                self._fd = os.open(f"/proc/{self._pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            # The name in parentheses is the process's own choice and may hold anything.
            words = os.pread(self._fd, 1024, 0).rpartition(b")")[2].split(None, 15)
        except OSError:
            return last  # it has ended
        user = (int(words[11]) + int(words[13])) / _TICKS
        system = (int(words[12]) + int(words[14])) / _TICKS
        faults = int(words[8])
        if faults == last[4]:  # it has waited for no process: only the shell itself did anything
            return user, system, last[2], last[3], faults
        lines = _contents(f"/proc/{self._pid}/io").splitlines()
        traffic = dict(line.split(b": ") for line in lines)
        read, written = traffic.get(b"read_bytes", 0), traffic.get(b"write_bytes", 0)
        return user, system, int(read), int(written), faults


def of_process(used: tuple[int, int, int, int], wall: float) -> Usage:
    """What wait4(2) tells of a process and all it has waited for.

    Microseconds of the processors, for itself and for the kernel; blocks read and written. The most
    memory that the kernel tells is that of whoever forked it, where that was more.
    """
    user, system, read, written = (max(0, number) for number in used)  # a sandbox may say anything
    return Usage(wall, user / 1e6, system / 1e6, None, read << 9, written << 9)


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
