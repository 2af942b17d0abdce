"""`sandbox.commands`: programs in the foreground and in the background. And `sandbox.pty`."""

from __future__ import annotations

import posixpath
import shlex
import threading
import time
from dataclasses import dataclass, field

from ... import Reason
from ...adapters._common import CommandEnding, ending
from .info import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxNotRunningException,
    TimeoutException,
    translated,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ... import Result, Sandbox

    Heard = Callable[[str], Any] | None

#: Seconds between two polls of a background program's output, while it is followed.
_LOOK_EVERY = 0.05
HOME = "/home/user"
#: Seconds to wait for a killed program.
TO_END = 10


@dataclass
class E2BCommandResult:
    """Output and exit code of a command; `error` is the reason why it did not run, or was killed.

    The output is None with `retain_output=False`.
    """

    stderr: str | None
    stdout: str | None
    exit_code: int
    error: str | None = None


@dataclass
class RunningProcess:
    """A program in the background."""

    pid: int
    tag: str | None
    cmd: str
    args: list[str] = field(default_factory=list)
    envs: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None


def at(path: str) -> str:
    """An absolute path: relative ones are below the home."""
    return posixpath.join(HOME, path)


def streamed(send: Callable[[Any], None], data: Iterable[str | bytes], timeout: float | None) -> None:
    """Send the pieces of an input in order. TimeoutException between two pieces after the timeout."""
    if isinstance(data, str | bytes | bytearray | memoryview):
        raise InvalidArgumentException("`data` is one piece: give a list of pieces, such as `[data]`")
    until = time.monotonic() + timeout if timeout else None
    for piece in data:
        if until is not None and time.monotonic() > until:
            raise TimeoutException(f"the input was not sent in {timeout} seconds")
        send(piece)


class Commands:
    """The commands of one sandbox: `run`, `list`, `kill`, `connect`, `send_stdin`.

    `programs` returns the first directory for the PATH of a command, or an empty string.
    """

    def __init__(self, sandbox: Sandbox, programs: Callable[[], str]) -> None:
        self._sandbox, self._programs = sandbox, programs
        self._started: dict[int, tuple[Any, str]] = {}

    def _every(self) -> dict[int, tuple[Any, str]]:
        """Each background program and its shell text, by process number."""
        return self._started

    @staticmethod
    def _readable(process: Any) -> Any:
        """A program as a `CommandHandle` uses it."""
        return process

    def run(
        self,
        cmd: str,
        background: bool | None = None,
        envs: dict[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: Heard = None,
        on_stderr: Heard = None,
        stdin: bool | None = None,
        timeout: float | None = 60,
        request_timeout: float | None = None,
        retain_output: bool = True,
    ) -> Any:
        """Run shell text; with `background` a CommandHandle. CommandExitException unless it exits with 0.

        Without `retain_output` only `on_stdout` and `on_stderr` get the output.
        """
        options: dict[str, Any] = {"cwd": at(cwd or HOME), "env": envs, "user": user}
        options |= {"on_stdout": on_stdout, "on_stderr": on_stderr, "timeout": timeout or None}
        with translated():
            # A login shell sets PATH again, so the directory is added inside it.
            programs = self._programs()
            text = f"PATH={shlex.quote(programs)}:$PATH; {cmd}" if programs else cmd
            argv = ["/bin/bash", "-l", "-c", text]
            if background:
                process = self._readable(self._sandbox.start(argv, **options))
                self._started[process.pid] = process, cmd
                if not stdin:
                    process.close_stdin()
                return CommandHandle(process, self._sandbox, retain_output=retain_output)
            result = self._sandbox.exec(argv, **options)
        return _checked(result, retain_output)

    def list(self, request_timeout: float | None = None) -> list[RunningProcess]:
        """The running background programs."""
        return [
            RunningProcess(pid, None, "/bin/bash", ["-l", "-c", cmd])
            for pid, (process, cmd) in self._every().items()
            if process.running
        ]

    def kill(self, pid: int, request_timeout: float | None = None) -> bool:
        """Kill a background program with all its children; return whether it was running."""
        process, _ = self._every().get(pid, (None, ""))
        if process is None or not process.running:
            return False
        with translated():
            process.kill()
            process.wait(TO_END)  # its number is free then
        return True

    def connect(
        self,
        pid: int,
        timeout: float | None = 60,
        request_timeout: float | None = None,
        retain_output: bool = True,
    ) -> CommandHandle:
        """A handle of a running background program.

        The handle waits for at most `timeout` seconds from now (0 and None: no limit). The program continues.
        """
        return CommandHandle(self._running(pid), self._sandbox, timeout, retain_output)

    def send_stdin(self, pid: int, data: str | bytes, request_timeout: float | None = None) -> None:
        """Write to the standard input of a program started with `stdin=True`."""
        with translated():
            self._running(pid).send_stdin(data)

    def stream_input(self, pid: int, data: Iterable[str | bytes], *, timeout: float | None = 60) -> None:
        """Write each piece of `data` to the standard input of a program, as `send_stdin` does."""
        self._running(pid)
        streamed(lambda piece: self.send_stdin(pid, piece), data, timeout)

    def close_stdin(self, pid: int, request_timeout: float | None = None) -> None:
        """Close its standard input."""
        self._running(pid).close_stdin()

    def _running(self, pid: int) -> Any:
        process, _ = self._every().get(pid, (None, ""))
        if process is None or not process.running:
            raise NotFoundException(f"there is no process {pid}")
        return process


class CommandHandle:
    """A background program: `wait()`, `kill()`, `send_stdin()`; iterate over its output as it arrives."""

    def __init__(
        self, process: Any, sandbox: Sandbox, timeout: float | None = None, retain_output: bool = True
    ) -> None:
        self._process, self._sandbox, self._retain = process, sandbox, retain_output
        self._until = time.monotonic() + timeout if timeout else None

    @property
    def pid(self) -> int:
        """Its process number inside."""
        return int(self._process.pid)

    @property
    def stdout(self) -> str | None:
        """Its standard output so far; None with `retain_output=False`."""
        return str(self._process.output().stdout) if self._retain else None

    @property
    def stderr(self) -> str | None:
        """Its standard error so far; None with `retain_output=False`."""
        return str(self._process.output().stderr) if self._retain else None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        code: int | None = self._process.poll()
        return code

    def __iter__(self) -> Iterator[tuple[str | None, str | None, None]]:
        out = err = 0
        while True:
            over = self._process.wait(_LOOK_EVERY) is not None
            said = self._process.output()
            if len(said.stdout) > out:
                yield said.stdout[out:], None, None
            if len(said.stderr) > err:
                yield None, said.stderr[err:], None
            out, err = len(said.stdout), len(said.stderr)
            self._in_time()
            if over:
                return

    def wait(
        self,
        on_pty: Callable[[bytes], Any] | None = None,
        on_stdout: Heard = None,
        on_stderr: Heard = None,
    ) -> E2BCommandResult:
        """Wait for its end. CommandExitException unless it exits with 0."""
        with translated():
            if on_stdout is None and on_stderr is None:
                self._process.wait(None if self._until is None else max(0.0, self._until - time.monotonic()))
            else:
                for out, err, _ in self:
                    if out is not None and on_stdout is not None:
                        on_stdout(out)
                    if err is not None and on_stderr is not None:
                        on_stderr(err)
            code = self._process.poll()
        self._in_time()
        if code:
            raise CommandExitException(self.stdout, self.stderr, code, None)
        return E2BCommandResult(self.stderr, self.stdout, code or 0)

    def _in_time(self) -> None:
        if self._until is not None and time.monotonic() >= self._until and self._process.running:
            raise TimeoutException("the command runs on: the time of this connection to it is up")
        if self._process.timed_out:
            raise TimeoutException("the command was killed: its time was up")
        if not self._sandbox.alive:
            raise SandboxNotRunningException("the sandbox was killed or reached its end of life")

    def kill(self) -> bool:
        """Kill it with all its children; return whether it was running."""
        running = bool(self._process.running)
        with translated():
            self._process.kill()
            self._process.wait(TO_END)
        return running

    def send_stdin(self, data: str | bytes, request_timeout: float | None = None) -> None:
        """Write to its standard input."""
        with translated():
            self._process.send_stdin(data)

    def close_stdin(self, request_timeout: float | None = None) -> None:
        """Close its standard input."""
        self._process.close_stdin()

    def disconnect(self) -> None:
        """Do nothing: the program continues."""


def _checked(result: Result, retain_output: bool) -> E2BCommandResult:
    if ending(result) is CommandEnding.TIMEOUT:
        raise TimeoutException(f"the command was ended after {result.duration:.3g} seconds")
    out, err = (result.stdout, result.stderr) if retain_output else (None, None)
    if result.exit_code:
        error = result.why or (None if result.reason is Reason.exited else str(result.reason))
        raise CommandExitException(out, err, result.exit_code, error)
    return E2BCommandResult(err, out, result.exit_code)


# `sandbox.pty`: terminals with a shell on them.


@dataclass
class PtySize:
    """The size of a terminal."""

    rows: int
    cols: int


class PtyHandle:
    """A terminal; a thread passes its output to `on_data`."""

    def __init__(self, terminal: Any, on_data: Callable[[bytes], Any] | None) -> None:
        self._terminal, self._said, self._on_data = terminal, b"", on_data
        self._lock, self._until = threading.Lock(), float("inf")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process number of the shell inside."""
        return int(self._terminal.pid)

    @property
    def stdout(self) -> str:
        """The last MiB of its output so far."""
        return self._said.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Empty: a terminal has one stream."""
        return ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the shell; None while it runs."""
        code: int | None = self._terminal.poll()
        return code

    def listen(self, on_data: Callable[[bytes], Any] | None) -> None:
        """Pass further output to another function, or to none."""
        with self._lock:
            self._on_data = on_data

    def connected(self, timeout: float | None) -> None:
        """Let `wait` end this many seconds from now (0 and None: never)."""
        self._until = time.monotonic() + timeout if timeout else float("inf")

    def wait(self, on_pty: Any = None, on_stdout: Any = None, on_stderr: Any = None) -> E2BCommandResult:
        """Wait for the end of the shell. `on_pty` gets the output so far, and all further output."""
        if on_pty is not None:
            with self._lock:
                if self._said:
                    on_pty(self._said)
                self._on_data = on_pty
        left = self._until - time.monotonic()
        self._thread.join(None if left == float("inf") else max(0.0, left))
        if self._thread.is_alive():
            raise TimeoutException("the shell runs on: the time of this connection to it is up")
        code = self._terminal.wait()
        return E2BCommandResult("", self._said.decode("utf-8", "replace"), code or 0)

    def kill(self) -> bool:
        """Kill the shell with all its children."""
        running = self._terminal.poll() is None
        if running:
            self._terminal.kill()
            self._terminal.wait(TO_END)
        return running

    def send_stdin(self, data: str | bytes, request_timeout: float | None = None) -> None:
        """Type something."""
        with translated():
            self._terminal.write(data.encode() if isinstance(data, str) else data)

    def disconnect(self) -> None:
        """Stop receiving its output; the shell continues."""
        self.listen(None)

    def _follow(self) -> None:
        try:
            while data := self._terminal.read():
                with self._lock:
                    self._said = (self._said + data)[-(1 << 20) :]
                    if self._on_data is not None:
                        self._on_data(data)
        except Exception:  # noqa: S110 - the sandbox has ended
            pass


class Pty:
    """The terminals of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._terminals: dict[int, Any] = {}
        self._handles: dict[int, PtyHandle] = {}

    def create(
        self,
        size: PtySize,
        user: str | None = None,
        cwd: str | None = None,
        envs: dict[str, str] | None = None,
        timeout: float | None = 60,
        request_timeout: float | None = None,
        on_data: Callable[[bytes], Any] | None = None,
    ) -> PtyHandle:
        """A terminal with an interactive shell, which is killed after `timeout` seconds (0: never)."""
        with translated():
            terminal = self._sandbox.terminal(
                rows=size.rows, cols=size.cols, cwd=at(cwd or HOME), env=envs, user=user
            )
        self._terminals[terminal.pid] = terminal
        handle = self._handles[terminal.pid] = PtyHandle(terminal, on_data)
        if timeout:
            timer = threading.Timer(timeout, handle.kill)
            timer.daemon = True
            timer.start()
        return handle

    def connect(
        self,
        pid: int,
        timeout: float | None = 60,
        request_timeout: float | None = None,
        on_data: Callable[[bytes], Any] | None = None,
    ) -> PtyHandle:
        """The handle of an open terminal; `on_data` gets its further output.

        Its `wait` ends after at most `timeout` seconds from now. The shell continues.
        """
        self._terminal(pid)
        self._handles[pid].connected(timeout)
        if on_data is not None:
            self._handles[pid].listen(on_data)
        return self._handles[pid]

    def send_stdin(self, pid: int, data: bytes, request_timeout: float | None = None) -> None:
        """Type something."""
        with translated():
            self._terminal(pid).write(data)

    def stream_input(self, pid: int, data: Iterable[str | bytes], *, timeout: float | None = 60) -> None:
        """Type each piece of `data`."""
        self._terminal(pid)
        streamed(self._handles[pid].send_stdin, data, timeout)

    def resize(self, pid: int, size: PtySize, request_timeout: float | None = None) -> None:
        """Change the size."""
        with translated():
            self._terminal(pid).resize(size.rows, size.cols)

    def kill(self, pid: int, request_timeout: float | None = None) -> bool:
        """Kill its shell; return whether it was running."""
        try:
            terminal = self._terminal(pid)
        except NotFoundException:
            return False
        if terminal.poll() is not None:
            return False
        terminal.kill()
        terminal.wait(TO_END)  # its number is free then
        return True

    def _terminal(self, pid: int) -> Any:
        if pid not in self._terminals:
            raise NotFoundException(f"there is no terminal {pid}")
        return self._terminals[pid]
