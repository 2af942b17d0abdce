"""List the processes of a sandbox, as a program inside could, and send signals to them."""

from __future__ import annotations

import os

from .. import check
from .._value import Value
from ..errors import InvalidCall
from ..interrupts import unmistakable
from ..ipc.forkserver_messages import COMMAND_LINE
from ..launch.signals import SIGKILL
from ..linux.process import split_stat
from .arguments import FROM_POLICY, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from .arguments import WaitedRunOptions
    from .interpreter import CellResult
    from .open.as_root import Account
    from .open_sandbox import OpenSandbox
    from .result import Result

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: The most processes listed, and the most characters of each command.
_MOST, _LONGEST = 2000, 300
# Bash only: ps may be missing, and there may be no room for more processes. Each stat and command ends with a
# NUL, which no argument can contain.
_SCRIPT = rf"""
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


@unmistakable(own=("ps", "kill"))
class ProcessMethods:
    """Sandbox's methods about all its processes, however they were started."""

    if TYPE_CHECKING:

        def _now(self) -> OpenSandbox: ...
        def _tell(self, pids: Sequence[int], signal: int) -> set[int]: ...
        def _executed(
            self,
            command: str | tuple[str, ...],
            argv: tuple[str, ...],
            options: WaitedRunOptions,
            other: Account | None = None,
            *,
            ours: bool = False,
        ) -> Result: ...

    def python(self, code: str, *, timeout: float | None = FROM_POLICY, session: str = "main") -> CellResult:
        """Run a cell in a Python interpreter of the sandbox. Returns its output, results and error.

        The first cell starts `python3` from the PATH inside; it keeps its variables for the next cells. Each
        `session` has its own interpreter. Snapshots and forks do not include its variables, and restore()
        ends it, after which `lost` is True. After `timeout` seconds (default: the policy's) the cell is
        interrupted; None means no limit.
        """
        from .interpreter import Interpreter

        interpreters = self._now().interpreters
        found = interpreters.get(session)
        if found is None:
            found = interpreters.setdefault(session, Interpreter(self))  # type: ignore[arg-type]
        most = self._now().limits.timeout if timeout is FROM_POLICY else seconds(timeout)
        return found.run(code, timeout=most)

    def code(
        self,
        language: Literal["python"],
        code: str,
        *,
        timeout: float | None = FROM_POLICY,
        session: str = "main",
    ) -> CellResult:
        """Run a cell in a language's interpreter; only Python has one, see `python`."""
        if language != "python":
            raise InvalidCall(
                f"code({language!r}, …)",
                why="there is an interpreter that keeps its variables for Python only",
                fix="run the language's own program: sb.run, sb.exec, or sb.terminal for one that stays",
            )
        return self.python(code, timeout=timeout, session=session)

    def ps(self) -> list[ProcessInfo]:
        """List the running processes by pid, at most 2,000."""
        argv = (self._now().bash, "-c", _SCRIPT)
        done = self._executed(argv, argv, {"timeout": 10, "cwd": "/"}, ours=True)
        return sorted(_listed(done.stdout_bytes), key=lambda process: process.pid)

    def kill(self, pid: int, signal: int = SIGKILL) -> bool:
        """Send a signal to a process inside. Returns False if it does not exist or is another user's.

        `pid` is a number that `ps` lists.
        """
        check.count("pid", pid, 2, fix="give the number of a process, see ps()")
        check.count("the signal", signal, 1, 64, fix="give a number such as 15, or signal.SIGTERM")
        return bool(self._tell([pid], int(signal)))


#: Name of staddle's own processes inside, which are children of PID 1. The kernel truncates names.
_OURS = COMMAND_LINE[:15]


def _listed(data: bytes) -> Iterator[ProcessInfo]:
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
