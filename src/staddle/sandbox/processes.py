"""Processes beside the sessions of a sandbox: programs that were started, and jobs that commands left."""

from __future__ import annotations

import os
import select
import threading

from .._value import Value
from ..errors import InvalidCall
from ..launch.signals import SIGKILL
from ..shell.background_output import BackgroundOutput
from .arguments import input_bytes, patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from ..ipc.agent_client import SpawnedProcess
    from .execution import Streams
    from .session import Session

    #: Sends processes of the sandbox a signal, 0 for none; which of them are there.
    Tell = Callable[[Sequence[int], int], set[int]]

_PIECE = 64 << 10
#: While the reader does not read, how often it is looked whether it has ended, in seconds.
_LOOK_EVERY = 0.5
#: The sandbox has ended: so long the last word of each process is waited for, in seconds.
_LAST_PATIENCE = 5.0
#: Of the processes that have ended, how many are still listed.
_REMEMBERED = 100


class Output(str):
    """The output of a process so far, as text: standard output, then standard error.

    `stdout` and `stderr` are each by itself, the bytes exactly as they came. Of a long one the
    beginning and the end are kept, and what is between is counted.
    """

    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_bytes_dropped: int
    stderr_bytes_dropped: int

    def __new__(cls, *logs: BackgroundOutput) -> Self:
        for log in logs:
            log.catch_up()
        texts = [log.texts() for log in logs]
        out, err = (b"".join(text[stream] for text in texts) for stream in (0, 1))
        made = super().__new__(cls, (out + err).decode("utf-8", "replace"))
        made.stdout_bytes, made.stderr_bytes = out, err
        made.stdout_bytes_dropped = sum(log.stdout.dropped for log in logs)
        made.stderr_bytes_dropped = sum(log.stderr.dropped for log in logs)
        return made

    @property
    def stdout(self) -> str:
        """Its standard output."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Its standard error."""
        return self.stderr_bytes.decode("utf-8", "replace")


class Process:
    """A program in the background of a sandbox. It ends with the sandbox, if not before."""

    def __init__(
        self, command: str | tuple[str, ...], spawned: SpawnedProcess, streams: Streams, limit: int | None
    ) -> None:
        self.command = command
        self.pid = spawned.pid  # as the sandbox counts
        self._spawned = spawned
        self._streams = streams
        self._stdin = threading.Lock()
        self._log = BackgroundOutput(spawned.pid, b"", limit)
        self._log.follow(streams.give_away(streams.stdout), streams.give_away(streams.stderr))

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.poll() is None

    def poll(self) -> int | None:
        """Its exit code, 128+N for signal N; None while it runs."""
        return self._noted(self._spawned.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; its exit code, or None when it still runs after `timeout` seconds."""
        return self._noted(self._spawned.wait(patience(timeout)))

    def _noted(self, code: int | None) -> int | None:
        if code is not None:
            self.close_stdin()
            self._spawned.close()
        return code

    def output(self) -> Output:
        """Its output until now."""
        return Output(self._log)

    def send_stdin(self, data: bytes | str) -> None:
        """Write to its standard input. Waits while it does not read; BrokenPipeError when it has ended."""
        rest = memoryview(input_bytes(data))
        while rest:
            sent = self.send_some(rest)
            rest = rest[sent:]
            if not sent:
                waiting = select.poll()
                waiting.register(self.stdin_fileno(), select.POLLOUT)
                waiting.poll(_LOOK_EVERY * 1000)

    def send_some(self, data: bytes | memoryview) -> int:
        """Write what there is room for; how much that was."""
        if self.poll() is not None:  # also when what it left behind has the pipe, and does not read
            raise BrokenPipeError(32, "the process has ended")
        with self._stdin:
            try:
                return os.write(self.stdin_fileno(), data[:_PIECE])
            except BlockingIOError:
                return 0

    def stdin_fileno(self) -> int:
        """The descriptor of its standard input, to wait for room there."""
        if self._streams.stdin < 0:
            raise InvalidCall("its standard input is closed")
        return self._streams.stdin

    def end_fileno(self) -> int:
        """Readable when it has ended."""
        return self._spawned.fileno()

    def close_stdin(self) -> None:
        """The end of its standard input. A second time does nothing."""
        with self._stdin:
            self._streams.close_stdin()

    def kill(self, signal: int = SIGKILL) -> None:
        """Send it, and all that it started, a signal."""
        if self.poll() is None:
            self._spawned.signal(_number(signal), everything=True)

    def __repr__(self) -> str:
        code = self.poll()
        return f"<Process {self.pid}: {'running' if code is None else f'ended with {code}'}>"


class Job:
    """A job that a command left in the background (`command &`), and what it prints since.

    How it ended only its shell knows: ask that with `wait PID`.
    """

    def __init__(self, pid: int, command: str, late: list[BackgroundOutput], tell: Tell) -> None:
        self.pid, self.command = pid, command
        self._late, self._tell = late, tell
        self.running = True  # as of the moment it was listed

    def poll(self) -> int | None:
        """None while it runs, else -1."""
        self.running = self.running and bool(self._tell([self.pid], 0))
        return None if self.running else -1

    def output(self) -> Output:
        """Its output after its command was over."""
        return Output(*self._late)

    def kill(self, signal: int = SIGKILL) -> None:
        """Send it a signal."""
        self._tell([self.pid], _number(signal))

    def __repr__(self) -> str:
        return f"<Job {self.pid}: {'running' if self.running else 'ended'}>"


class EndedProcess(Value):
    """A process that was ended with all that it had started: its number inside, and its command.

    The command is what was asked for, where that is known; else the name that the process gave itself.
    """

    pid: int
    command: str


class ProcessList:
    """The processes of a sandbox, in the order they were started."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def add(self, process: Process) -> None:
        """One more."""
        ended = [known for known in self._started if known.poll() is not None]
        for known in ended[: max(0, len(ended) - _REMEMBERED)]:
            self._started.remove(known)
        self._started.append(process)

    @property
    def running(self) -> bool:
        """Whether one of those that were started has not ended."""
        return any(process.running for process in self._started)

    def close(self) -> None:
        """The sandbox has ended: hear the last of each."""
        for process in self._started:
            process.wait(_LAST_PATIENCE)

    def commands(self, sessions: Iterable[Session]) -> dict[int, str]:
        """The commands of the processes that were started, and of the jobs of these sessions, by number."""
        found = {pid: command for session in sessions for pid, command in session._jobs.items()}
        for process in self._started:
            command = process.command
            found[process.pid] = command if isinstance(command, str) else " ".join(command)
        return found

    def listed(self, sessions: Iterable[Session], tell: Tell) -> list[Process | Job]:
        """List the processes that were started, and the jobs of these sessions."""
        jobs: list[Job] = []
        for session in sessions:
            late = session._shell.background_output()
            for pid, command in list(session._jobs.items()):
                jobs.append(Job(pid, command, [item for item in late if item.job == pid], tell))
        alive = tell([job.pid for job in jobs], 0) if jobs else set()
        for job in jobs:
            job.running = job.pid in alive
        return [*self._started, *jobs]


def _number(signal: object) -> int:
    if isinstance(signal, bool) or not isinstance(signal, int) or not 1 <= signal <= 64:
        raise InvalidCall(f"{signal!r} is not a signal", fix="give a number such as 15, or signal.SIGTERM")
    return int(signal)
