"""List the processes of a sandbox, as a program inside could."""

from __future__ import annotations

import os

from .._value import Value
from ..ipc.forkserver_messages import COMMAND_LINE
from ..linux.process import split_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: The most processes listed, and the most characters of each command.
_MOST, _LONGEST = 2000, 300
# Bash only: ps may be missing, and there may be no room for more processes. Each stat and command ends with a
# NUL, which no argument can contain.
SCRIPT = rf"""
cd /proc && count=0
for pid in [0-9]*; do
    [ "$pid" = "$$" ] && continue
    IFS= read -r -d '' stat < "$pid/stat"; [ -n "$stat" ] || continue
    words=(); mapfile -t -d '' -n 64 words < "$pid/cmdline"
    text="${{words[*]}}"
    printf '%s\0%s\0' "$stat" "${{text:0:{_LONGEST}}}"
    [ $((++count)) -lt {_MOST} ] || break
done 2>/dev/null
"""


class ProcessInfo(Value):
    """A process inside: ids, name, command line, seconds of CPU time and bytes of memory.

    The process chooses its name and command line: show them with `staddle.display.shown`. `state` is the
    letter from proc(5).
    """

    pid: int
    parent: int
    name: str
    command: str
    state: str
    cpu: float
    memory: int
    threads: int


#: Name of staddle's own processes inside, which are children of PID 1. The kernel truncates names.
_OURS = COMMAND_LINE[:15]


def listed(data: bytes) -> list[ProcessInfo]:
    """Return the processes that SCRIPT printed, by pid."""
    return sorted(_parsed(data), key=lambda process: process.pid)


def _parsed(data: bytes) -> Iterator[ProcessInfo]:
    parts = data.split(b"\0")
    for stat, command in zip(parts[::2], parts[1::2], strict=False):
        try:
            words = split_stat(stat, 22)
            pid, name = int(stat.split(b" ", 1)[0]), stat[stat.index(b"(") + 1 : stat.rindex(b")")]
            if pid == 1 or (name == _OURS and int(words[1]) == 1):
                continue
            cpu = (int(words[11]) + int(words[12])) / _TICKS
            info = ProcessInfo(
                pid,
                int(words[1]),
                name.decode("utf-8", "surrogateescape"),
                command.decode("utf-8", "surrogateescape"),
                words[0].decode("ascii", "replace"),
                cpu,
                int(words[21]) * _PAGE,
                int(words[17]),
            )
        except (ValueError, IndexError):
            continue  # hostile or truncated
        yield info
