"""Processes of a sandbox: started programs, jobs that commands left, and a list of all of them."""

from __future__ import annotations

import os
import select
import threading
import time

from .. import check
from .._value import Value
from ..background import start_thread
from ..display import shown
from ..errors import InvalidCall, WaitTimeout
from ..interrupts import uninterrupted, unmistakable
from ..ipc.forkserver_messages import COMMAND_LINE
from ..launch.signals import SIGKILL, SIGTERM
from ..linux.process import split_stat
from ..shell.background_output import BackgroundOutput, Transcript
from .arguments import input_bytes, patience
from .capture import TextCallback
from .stream import Chunk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from ..ipc.agent_client import SpawnedProcess
    from ..observe.redaction import Secrets
    from .arguments import Heard
    from .execution import Streams
    from .session import Session

    #: Sends a signal (0: none) to processes of the sandbox; returns those that exist.
    Tell = Callable[[Sequence[int], int], set[int]]

_PIECE = 64 << 10
#: Seconds from SIGTERM to SIGKILL, and between two checks of a port.
_GRACE, _PORT_EVERY = 2.0, 0.05
#: Seconds to wait for the exit code of a process whose output has ended.
_TO_END = 5.0
#: Seconds between two checks for its end while it does not read.
_LOOK_EVERY = 0.5
#: Seconds to wait for each exit code after the sandbox has ended.
_LAST_PATIENCE = 5.0
#: The number of ended processes that are still listed.
_REMEMBERED = 100
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: The most processes listed, and the most characters of each command.
_MOST_LISTED, _LONGEST_COMMAND = 2000, 300
# Bash only: ps may be missing, and there may be no room for more processes. Each stat and command ends with a
# NUL, which no argument can contain.
LIST_SCRIPT = rf"""
cd /proc && count=0
for pid in [0-9]*; do
    [ "$pid" = "$$" ] && continue
    IFS= read -r -d '' stat < "$pid/stat"; [ -n "$stat" ] || continue
    words=(); mapfile -t -d '' -n 64 words < "$pid/cmdline"
    text="${{words[*]}}"
    printf '%s\0%s\0' "$stat" "${{text:0:{_LONGEST_COMMAND}}}"
    [ $((++count)) -lt {_MOST_LISTED} ] || break
done 2>/dev/null
"""
#: Name of staddle's own processes inside, which are children of PID 1. The kernel truncates names.
_OURS = COMMAND_LINE[:15]


class Output(str):
    """Output of a process so far, as text: standard output, then standard error.

    `stdout` and `stderr` are the streams separately; the `_bytes` fields hold the raw bytes. Long output
    keeps its beginning and end; the bytes between are counted.
    """

    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_bytes_dropped: int
    stderr_bytes_dropped: int
    #: Bytes printed so far to both streams: the `offset` of the next output.
    end: int = 0

    @classmethod
    def since(cls, transcript: Transcript, offset: int) -> Self:
        """Return the output from `offset` on, in order of arrival; lost bytes count as dropped."""
        pieces, lost = transcript.since(offset)
        made = super().__new__(cls, b"".join(data for _, data in pieces).decode("utf-8", "replace"))
        made.stdout_bytes = b"".join(data for stream, data in pieces if stream == "stdout")
        made.stderr_bytes = b"".join(data for stream, data in pieces if stream == "stderr")
        made.stdout_bytes_dropped, made.stderr_bytes_dropped = lost, 0
        made.end = offset + lost + sum(len(data) for _, data in pieces)
        return made

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
        """Standard output as text."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_bytes.decode("utf-8", "replace")


@unmistakable()
class Process:
    """A background program in a sandbox. It ends with the sandbox at the latest."""

    def __init__(
        self,
        command: str | tuple[str, ...],
        spawned: SpawnedProcess,
        streams: Streams,
        limit: int | None,
        *,
        timeout: float | None = None,
        has_port: Callable[[int], bool] = lambda _: False,
        secrets: Secrets | None = None,
    ) -> None:
        """Follow the program. It is ended after `timeout` seconds; `has_port` tests for a server."""
        self.command = command
        self.pid = spawned.pid  # pid inside the sandbox
        #: Whether its timeout ended it.
        self.timed_out = False
        self._spawned, self._has_port = spawned, has_port
        self._streams = streams
        self._is_tidied = False
        self._stdin = threading.Lock()
        self._transcript = Transcript(limit)
        self._follower: threading.Thread | None = None
        self._error: BaseException | None = None  # of a callback
        self._log = BackgroundOutput(spawned.pid, b"", limit, transcript=self._transcript, secrets=secrets)
        stderr = -1 if streams.stderr < 0 else streams.give_away(streams.stderr)
        self._log.follow(streams.give_away(streams.stdout), stderr)
        if timeout is not None:
            timer = threading.Timer(timeout, self._out_of_time)
            timer.daemon = True
            self._timer: threading.Timer | None = timer
            timer.start()
        else:
            self._timer = None

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self.poll() is None

    def poll(self) -> int | None:
        """Return its exit code, 128+N for signal N; None while it runs."""
        return self._noted(self._spawned.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end. Returns its exit code, or None if it still runs after `timeout` seconds.

        The code is 124 if its own timeout ended it. Raises the error of a callback.
        """
        code = self._noted(self._spawned.wait(patience(timeout)))
        if code is not None and self._follower is not None:
            self._follower.join(_LAST_PATIENCE)
            error, self._error = self._error, None
            if error is not None:
                raise error
        return code

    def _noted(self, code: int | None) -> int | None:
        if code is not None and not self._is_tidied:
            uninterrupted(self._tidy)
        return 124 if code is not None and self.timed_out else code

    def _tidy(self) -> None:
        """Close what an ended program leaves. A second call does nothing."""
        self.close_stdin()
        self._spawned.close()
        if self._timer is not None:
            self._timer.cancel()
        self._is_tidied = True

    def _out_of_time(self) -> None:
        if self._spawned.poll() is None:
            self.timed_out = True
            self._spawned.signal(SIGTERM, everything=True)
            if self._spawned.wait(_GRACE) is None:
                self._spawned.signal(SIGKILL, everything=True)

    @property
    def failure(self) -> str:
        """Reason why it was not started, once it is over; empty if it was."""
        return self._spawned.failure

    # ------------------------------------------------------------ what it prints

    def output(self, offset: int | None = None) -> Output:
        """Return its output so far; with `offset`, the output from there on, in order of arrival.

        `.end` of an output is the offset of the next one.
        """
        if offset is None:
            made = Output(self._log)
            made.end = self._transcript.end
            return made
        self._log.catch_up()
        return Output.since(self._transcript, _offset(offset))

    def wait_for_output(self, timeout: float | None = None, *, offset: int = 0) -> Output:
        """Wait for output after `offset` and return it; empty after the timeout or its end."""
        limit, start = patience(timeout), _offset(offset)
        self._log.catch_up()
        self._transcript.wait(start, limit)
        return Output.since(self._transcript, start)

    def wait_for_text(self, text: str, timeout: float | None = None) -> Output:
        """Wait until `text` is in its output, and return the output. Raises WaitTimeout otherwise."""
        if not isinstance(text, str) or not text:
            raise InvalidCall(
                f"the text is {text!r}",
                why="it is not a text to wait for",
                fix="give some text that it prints",
            )
        until = _until(timeout)
        while True:
            seen = self.output(0)
            if text in seen:
                return seen
            is_over = self._transcript.closed and self._transcript.end == seen.end
            left = None if until is None else until - time.monotonic()
            if is_over or (left is not None and left <= 0):
                raise self._missed(f"{text!r} is not in its output", str(seen)[-500:])
            self._transcript.wait(seen.end, left)

    def wait_for_port(self, port: int, timeout: float | None = None) -> None:
        """Wait until a server inside listens on `port` of its loopback. Raises WaitTimeout otherwise."""
        check.count("the port", port, 1, 65535)
        until = _until(timeout)
        while not self._has_port(port):
            if not self.running or (until is not None and time.monotonic() >= until):
                raise self._missed(f"nothing listens at port {port}", str(self.output())[-500:])
            time.sleep(_PORT_EVERY)

    def _missed(self, what: str, said: str) -> WaitTimeout:
        until = time.monotonic() + _TO_END
        while (code := self.poll()) is None and self._transcript.closed and time.monotonic() < until:
            time.sleep(_PORT_EVERY)  # its output has ended: it may be exiting
        why = "the time is up" if code is None else f"it ended with {code}"
        return WaitTimeout(
            what,
            why=f"{why}{f': {shown(said.strip())}' if said.strip() else ''}",
            fix="wait longer with timeout=, or read output()",
        )

    def stream(self) -> Iterator[Chunk]:
        """Iterate over its further output as it arrives, to its end.

        A chunk may end anywhere, even within a character; only a chunk of `Sandbox.stream` never does. Its
        `data` joined is the output, its `text` shows U+FFFD for a part of a character. A slow reader misses
        output beyond the policy's limit.
        """
        return self._chunks_from(self._transcript.end)

    def _chunks_from(self, offset: int) -> Iterator[Chunk]:
        while True:
            chunks, offset = self._since(offset)
            yield from chunks
            if self._transcript.closed and self._transcript.end <= offset:
                return
            self._transcript.wait(offset, None)

    def _since(self, offset: int) -> tuple[list[Chunk], int]:
        """Return the kept output from `offset` on, and the offset after it."""
        pieces, lost = self._transcript.since(offset)
        chunks = [Chunk(stream, data) for stream, data in pieces]
        return chunks, offset + lost + sum(len(data) for _, data in pieces)

    def follow(self, on_stdout: Heard, on_stderr: Heard) -> None:
        """Call these with text as it arrives, in a separate thread. An error in them ends the process."""
        told = {"stdout": on_stdout, "stderr": on_stderr}
        for name, callback in told.items():
            if callback is not None:
                check.function(f"on_{name}", callback, "give a function that takes a text")
        callbacks = {name: TextCallback(callback) for name, callback in told.items() if callback is not None}

        def work() -> None:
            offset = 0
            try:
                while not self._transcript.closed or self._transcript.end > offset:
                    self._transcript.wait(offset, None)
                    chunks, offset = self._since(offset)
                    for chunk in chunks:
                        if chunk.stream in callbacks:
                            callbacks[chunk.stream].feed(chunk.data)
                for callback in callbacks.values():
                    callback.finish()
            except BaseException as error:
                self._error = error
                self.kill()

        if callbacks:
            self._follower = start_thread(work, "staddle-callbacks")

    # ------------------------------------------------------------ what it reads

    def send_stdin(self, data: bytes | str) -> None:
        """Write to its standard input. Waits while it does not read; raises BrokenPipeError after its end."""
        rest = memoryview(input_bytes(data))
        while rest:
            sent = self.send_some(rest)
            rest = rest[sent:]
            if not sent:
                waiting = select.poll()
                waiting.register(self.stdin_fileno(), select.POLLOUT)
                waiting.poll(_LOOK_EVERY * 1000)

    def send_some(self, data: bytes | memoryview) -> int:
        """Write as much as fits. Returns the number of bytes."""
        if self.poll() is not None:  # a child that it left may hold the pipe without reading
            raise BrokenPipeError(32, "the process has exited")
        with self._stdin:
            try:
                return os.write(self.stdin_fileno(), data[:_PIECE])
            except BlockingIOError:
                return 0

    def stdin_fileno(self) -> int:
        """Return the descriptor of its standard input, to wait until it is writable."""
        if self._streams.stdin < 0:
            raise InvalidCall(
                "its standard input is closed",
                why="close_stdin() was called, or the process has exited",
                fix="start it again",
            )
        return self._streams.stdin

    def end_fileno(self) -> int:
        """Return a descriptor that is readable when it has ended."""
        return self._spawned.fileno()

    def close_stdin(self) -> None:
        """Close its standard input. A second call does nothing."""
        uninterrupted(self._close_stdin)

    def _close_stdin(self) -> None:
        with self._stdin:
            self._streams.close_stdin()

    def kill(self, signal: int = SIGKILL) -> None:
        """Send a signal to it and all processes that it started."""
        if self.poll() is None:
            self._spawned.signal(_number(signal), everything=True)

    def __repr__(self) -> str:
        code = self.poll()
        return f"<Process {self.pid}: {'running' if code is None else f'ended with {code}'}>"


class Job:
    """A job that a command left in the background (`command &`), and its output since.

    Only its shell knows its exit code: run `wait PID` there.
    """

    def __init__(self, pid: int, command: str, late: list[BackgroundOutput], tell: Tell) -> None:
        self.pid, self.command = pid, command
        self._late, self._tell = late, tell
        self.running = True  # when it was listed

    def poll(self) -> int | None:
        """Return None while it runs, else -1."""
        self.running = self.running and bool(self._tell([self.pid], 0))
        return None if self.running else -1

    def output(self) -> Output:
        """Return its output since the end of its command."""
        return Output(*self._late)

    def kill(self, signal: int = SIGKILL) -> None:
        """Send it a signal."""
        self._tell([self.pid], _number(signal))

    def __repr__(self) -> str:
        return f"<Job {self.pid}: {'running' if self.running else 'ended'}>"


class EndedProcess(Value):
    """A process that was ended with all its children: its pid inside, and its command.

    The command is the one a caller asked for, if known, else the name that the process gave itself.
    """

    pid: int
    command: str

    @classmethod
    def of(cls, pid: int, name: bytes, commands: Mapping[int, str]) -> Self:
        """Build it from a process name; `commands` are the known commands by pid."""
        return cls(pid, commands.get(pid) or name.decode("utf-8", "replace"))


class ProcessList:
    """Processes of a sandbox, in the order of their start."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def add(self, process: Process) -> None:
        """Add a process."""
        ended = [known for known in self._started if known.poll() is not None]
        for known in ended[: max(0, len(ended) - _REMEMBERED)]:
            self._started.remove(known)
        self._started.append(process)

    @property
    def started(self) -> tuple[Process, ...]:
        """Started processes, including the most recently ended ones."""
        return tuple(self._started)

    @property
    def running(self) -> bool:
        """Whether a started process is still running."""
        return any(process.running for process in self._started)

    def close(self) -> None:
        """Collect the exit code of each process, after the sandbox has ended."""
        for process in self._started:
            process._noted(process._spawned.wait(_LAST_PATIENCE))

    def commands(self, sessions: Iterable[Session]) -> dict[int, str]:
        """Return the commands of started processes and of these sessions' jobs, by pid."""
        found = {pid: command for session in sessions for pid, command in session._jobs.items()}
        for process in self._started:
            command = process.command
            found[process.pid] = command if isinstance(command, str) else " ".join(command)
        return found

    def listed(self, sessions: Iterable[Session], tell: Tell) -> list[Process | Job]:
        """List the started processes and the jobs of these sessions."""
        jobs: list[Job] = []
        for session in sessions:
            late = session._shell.background_output()
            for pid, command in list(session._jobs.items()):
                jobs.append(Job(pid, command, [item for item in late if item.job == pid], tell))
        alive = tell([job.pid for job in jobs], 0) if jobs else set()
        for job in jobs:
            job.running = job.pid in alive
        return [*self._started, *jobs]


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


def parse_list(data: bytes) -> list[ProcessInfo]:
    """Return the processes that LIST_SCRIPT printed, by pid."""
    return sorted(_rows(data), key=lambda process: process.pid)


def _rows(data: bytes) -> Iterator[ProcessInfo]:
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


def _offset(offset: object) -> int:
    return check.count("the offset", offset, 0, fix="give output().end")


def _until(timeout: float | None) -> float | None:
    limit = patience(timeout)
    return None if limit is None else time.monotonic() + limit


def _number(signal: object) -> int:
    return int(check.count("the signal", signal, 1, 64, fix="give a number such as 15, or signal.SIGTERM"))
