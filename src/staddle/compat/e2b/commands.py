"""`sandbox.commands`: programs in the foreground and in the background."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from staddle import Reason

from ...adapters._common import CommandEnding, ending
from .errors import CommandExitException, NotFoundException, TimeoutException, translated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from staddle import Result, Sandbox

    Heard = Callable[[str], Any] | None

#: Seconds between two looks at the output of a program in the background, while it is followed.
_LOOK_EVERY = 0.05
HOME = "/home/user"


@dataclass
class E2BCommandResult:
    """Output and exit code of a command; `error` says why it did not run, or was killed."""

    stderr: str
    stdout: str
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


class Commands:
    """The commands of one sandbox: `run`, `list`, `kill`, `connect`, `send_stdin`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._started: dict[int, Any] = {}

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
    ) -> Any:
        """Run shell text; with `background` a CommandHandle. CommandExitException unless it exits with 0."""
        options: dict[str, Any] = {"cwd": at(cwd or HOME), "env": envs, "user": user}
        options |= {"on_stdout": on_stdout, "on_stderr": on_stderr, "timeout": timeout or None}
        with translated():
            if background:
                process = self._sandbox.start(["/bin/bash", "-l", "-c", cmd], **options)
                self._started[process.pid] = process
                if not stdin:
                    process.close_stdin()
                return CommandHandle(process, self._sandbox)
            result = self._sandbox.exec(["/bin/bash", "-l", "-c", cmd], **options)
        return _checked(result)

    def list(self, request_timeout: float | None = None) -> list[RunningProcess]:
        """The programs that were started in the background and run."""
        return [
            RunningProcess(pid, None, "/bin/bash", ["-l", "-c", str(process.command[-1])])
            for pid, process in self._started.items()
            if process.running
        ]

    def kill(self, pid: int, request_timeout: float | None = None) -> bool:
        """Kill a program in the background with everything it started; whether it ran."""
        process = self._started.get(pid)
        if process is None or not process.running:
            return False
        with translated():
            process.kill()
        return True

    def connect(
        self, pid: int, timeout: float | None = 60, request_timeout: float | None = None
    ) -> CommandHandle:
        """A handle of a program that runs in the background."""
        return CommandHandle(self._running(pid), self._sandbox)

    def send_stdin(self, pid: int, data: str | bytes, request_timeout: float | None = None) -> None:
        """Write to the standard input of a program that was started with `stdin=True`."""
        with translated():
            self._running(pid).send_stdin(data)

    def close_stdin(self, pid: int, request_timeout: float | None = None) -> None:
        """Close its standard input."""
        self._running(pid).close_stdin()

    def _running(self, pid: int) -> Any:
        process = self._started.get(pid)
        if process is None or not process.running:
            raise NotFoundException(f"there is no process {pid}")
        return process


class CommandHandle:
    """A program in the background: `wait()`, `kill()`, `send_stdin()`; iterate for its output as it comes."""

    def __init__(self, process: Any, sandbox: Sandbox) -> None:
        self._process, self._sandbox = process, sandbox

    @property
    def pid(self) -> int:
        """Its number inside."""
        return int(self._process.pid)

    @property
    def stdout(self) -> str:
        """Its standard output so far."""
        return str(self._process.output().stdout)

    @property
    def stderr(self) -> str:
        """Its standard error so far."""
        return str(self._process.output().stderr)

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
            if over:
                self._in_time()
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
                self._process.wait()
            else:
                for out, err, _ in self:
                    if out is not None and on_stdout is not None:
                        on_stdout(out)
                    if err is not None and on_stderr is not None:
                        on_stderr(err)
            said, code = self._process.output(), self._process.poll()
        self._in_time()
        if code:
            raise CommandExitException(said.stdout, said.stderr, code, None)
        return E2BCommandResult(said.stderr, said.stdout, code or 0)

    def _in_time(self) -> None:
        if self._process.timed_out:
            raise TimeoutException("the command was killed: its time was up")
        if not self._sandbox.alive:
            raise TimeoutException("the sandbox was killed or reached its end of life")

    def kill(self) -> bool:
        """Kill it with everything it started; whether it ran."""
        running = bool(self._process.running)
        with translated():
            self._process.kill()
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


def _checked(result: Result) -> E2BCommandResult:
    if ending(result) is CommandEnding.TIMEOUT:
        raise TimeoutException(f"the command was ended after {result.duration:.3g} seconds")
    if result.exit_code:
        error = result.why or (None if result.reason is Reason.exited else str(result.reason))
        raise CommandExitException(result.stdout, result.stderr, result.exit_code, error)
    return E2BCommandResult(result.stderr, result.stdout, result.exit_code)
