"""`sandbox.commands`: programs in the foreground and in the background."""

from __future__ import annotations

import posixpath
import shlex
import time
from dataclasses import dataclass, field

from staddle import Reason

from ...adapters._common import CommandEnding, ending
from .errors import (
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

    from staddle import Result, Sandbox

    Heard = Callable[[str], Any] | None

#: Seconds between two looks at the output of a program in the background, while it is followed.
_LOOK_EVERY = 0.05
HOME = "/home/user"
#: Seconds to wait for a program that was killed.
TO_END = 10


@dataclass
class E2BCommandResult:
    """Output and exit code of a command; `error` says why it did not run, or was killed.

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
    """Send the pieces of an input in their order. TimeoutException between two of them, if time is up."""
    if isinstance(data, str | bytes | bytearray | memoryview):
        raise InvalidArgumentException("`data` is one piece: give a list of pieces, such as `[data]`")
    until = time.monotonic() + timeout if timeout else None
    for piece in data:
        if until is not None and time.monotonic() > until:
            raise TimeoutException(f"the input was not sent in {timeout} seconds")
        send(piece)


class Commands:
    """The commands of one sandbox: `run`, `list`, `kill`, `connect`, `send_stdin`.

    `programs` returns the directory that comes first on the PATH of a command, or an empty string.
    """

    def __init__(self, sandbox: Sandbox, programs: Callable[[], str]) -> None:
        self._sandbox, self._programs = sandbox, programs
        self._started: dict[int, tuple[Any, str]] = {}

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
            # A login shell sets PATH anew, so the directory is added in it.
            programs = self._programs()
            text = f"PATH={shlex.quote(programs)}:$PATH; {cmd}" if programs else cmd
            argv = ["/bin/bash", "-l", "-c", text]
            if background:
                process = self._sandbox.start(argv, **options)
                self._started[process.pid] = process, cmd
                if not stdin:
                    process.close_stdin()
                return CommandHandle(process, self._sandbox, retain_output=retain_output)
            result = self._sandbox.exec(argv, **options)
        return _checked(result, retain_output)

    def list(self, request_timeout: float | None = None) -> list[RunningProcess]:
        """The programs that were started in the background and run."""
        return [
            RunningProcess(pid, None, "/bin/bash", ["-l", "-c", cmd])
            for pid, (process, cmd) in self._started.items()
            if process.running
        ]

    def kill(self, pid: int, request_timeout: float | None = None) -> bool:
        """Kill a program in the background with everything it started; whether it ran."""
        process, _ = self._started.get(pid, (None, ""))
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
        """A handle of a program that runs in the background.

        The handle waits for at most `timeout` seconds from now (0 and None: no end). The program runs on.
        """
        return CommandHandle(self._running(pid), self._sandbox, timeout, retain_output)

    def send_stdin(self, pid: int, data: str | bytes, request_timeout: float | None = None) -> None:
        """Write to the standard input of a program that was started with `stdin=True`."""
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
        process, _ = self._started.get(pid, (None, ""))
        if process is None or not process.running:
            raise NotFoundException(f"there is no process {pid}")
        return process


class CommandHandle:
    """A program in the background: `wait()`, `kill()`, `send_stdin()`; iterate for its output as it comes."""

    def __init__(
        self, process: Any, sandbox: Sandbox, timeout: float | None = None, retain_output: bool = True
    ) -> None:
        self._process, self._sandbox, self._retain = process, sandbox, retain_output
        self._until = time.monotonic() + timeout if timeout else None

    @property
    def pid(self) -> int:
        """Its number inside."""
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
        """Kill it with everything it started; whether it ran."""
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
        """Do nothing: it runs on."""


def _checked(result: Result, retain_output: bool) -> E2BCommandResult:
    if ending(result) is CommandEnding.TIMEOUT:
        raise TimeoutException(f"the command was ended after {result.duration:.3g} seconds")
    out, err = (result.stdout, result.stderr) if retain_output else (None, None)
    if result.exit_code:
        error = result.why or (None if result.reason is Reason.exited else str(result.reason))
        raise CommandExitException(out, err, result.exit_code, error)
    return E2BCommandResult(err, out, result.exit_code)
