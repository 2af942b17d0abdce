"""A Python interpreter in a sandbox that keeps its variables from cell to cell.

It is an untrusted program of the sandbox. Its variables exist only in that process. A snapshot can keep a
twin of it, a forked process that waits (`interpreter_twins`). Forks and kept sandboxes begin without
variables.
"""

from __future__ import annotations

import array
import base64
import json
import secrets
import select
import socket
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from ..errors import InvalidCall, SandboxLost
from ..interrupts import interruptible
from ..launch.signals import SIGINT, SIGKILL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Protocol

    from ..ipc.agent_client import SpawnedProcess
    from .workspace.snapshot import InterpreterTwin

    class RunsInterpreters(Protocol):
        """Part of a sandbox that an interpreter uses."""

        @property
        def _inside(self) -> Any: ...
        def _start_interpreter(
            self, argv: Sequence[str], stdio: int, cwd: str | None, env: Mapping[str, str]
        ) -> SpawnedProcess: ...
        def _tell(self, pids: Sequence[int], signal: int) -> set[int]: ...


_KERNEL = Path(__file__).parents[1] / "inside" / "interpreter_kernel.py"
#: Seconds for the interpreter to start, to react to an interrupt, and to fork.
_TO_START, _TO_STOP, _TO_FORK = 60.0, 5.0, 10.0
#: Seconds from the last that a process sends to its end.
_TO_EXIT = 1.0
#: The longest answer that is read. The kernel bounds output itself; this bounds a malicious one.
_LONGEST = 256 << 20
OUTPUT_LIMIT = 4 << 20


class InterpreterLine:
    """Our end of a socket to an interpreter or to a twin. The kernel drops descriptors that arrive on it."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unread = b""

    @property
    def has_ended(self) -> bool:
        """Return whether the other end of the socket is closed."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(0)) and not self._socket.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):  # we have closed it
            return True

    def write(self, data: bytes, descriptor: int = -1, *, patience: float | None = None) -> None:
        """Write it all, the first part with a descriptor. TimeoutError after `patience` seconds."""
        self._socket.settimeout(patience)  # reads poll first
        rights = array.array("i", [descriptor] if descriptor >= 0 else [])
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
        sent = self._socket.sendmsg([data], extra, socket.MSG_NOSIGNAL)
        if sent < len(data):
            self._socket.sendall(data[sent:], socket.MSG_NOSIGNAL)

    def read(self, until: float | None) -> bytes | None:
        """Return the next line, or None at the end. Raises TimeoutError after `until`."""
        while b"\n" not in self._unread:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not interruptible(partial(poll.poll, None if left is None else left * 1000)):
                continue
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                return None
            self._unread += data
            if not data or len(self._unread) > _LONGEST:
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    @property
    def rest(self) -> bytes:
        """The bytes that have arrived after the last whole line."""
        return self._unread

    def close(self) -> None:
        """Close it."""
        self._socket.close()
        self.theirs.close()


class Twin:
    """A process that continues an interpreter from one moment, as often as it is asked to."""

    def __init__(self, agent: object, line: InterpreterLine) -> None:
        self.agent, self.pid, self._line = agent, 0, line
        #: Id of the request that forks it.
        self.name = secrets.token_hex(8)
        #: Why it cannot continue any more.
        self.gone = ""
        self._ended_at = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether it cannot continue."""
        return bool(self.gone) or self._line.has_ended

    @property
    def is_there(self) -> bool:
        """Whether its process may exist. Of a closed one, the kernel first frees the memory."""
        if not self._ended_at and self.has_ended:
            self._ended_at = time.monotonic()
        return not self._ended_at or time.monotonic() - self._ended_at < _TO_EXIT

    def wake(self) -> InterpreterLine:
        """Make it fork; return the line to its child. OSError if it is gone."""
        made = InterpreterLine()
        try:
            self._line.write(b"w", made.theirs.fileno(), patience=_TO_FORK)
        except BaseException:
            made.close()
            raise
        made.theirs.close()
        return made

    def close(self, why: str = "its snapshot was closed") -> None:
        """End it."""
        self.gone = self.gone or why
        self._line.close()


@dataclass
class CellResult:
    """Output and results of a cell. `results` are dicts with `text` and richer forms; `error` has details.

    `lost` is True if the interpreter had to be replaced, which loses its variables.
    """

    stdout: str = ""
    stderr: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    timed_out: bool = False
    lost: bool = False

    @property
    def ok(self) -> bool:
        """Whether the cell ended without an exception."""
        return self.error is None

    @property
    def text(self) -> str | None:
        """Value of the last expression, as its repr."""
        return next((str(each["text"]) for each in self._each() if each.get("is_main_result")), None)

    @property
    def images(self) -> list[bytes]:
        """Images that the cell showed, PNG or JPEG, including open matplotlib figures."""
        found = [each[kind] for each in self._each() for kind in ("png", "jpeg") if kind in each]
        return [base64.b64decode(data) for data in found if isinstance(data, str)]

    @property
    def html(self) -> list[str]:
        """Output as HTML, such as pandas tables. It comes from the sandbox: never trust it."""
        return [each["html"] for each in self._each() if isinstance(each.get("html"), str)]

    def _each(self) -> list[dict[str, Any]]:
        return [each for each in self.results if isinstance(each, dict)]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        printed = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n"), self.text or ""]
        if self.error is not None:
            told = f"{self.error.get('name')}: {self.error.get('value')}"
            printed.append(str(self.error.get("traceback") or told).rstrip("\n"))
        return "\n".join(part for part in printed if part)


class Interpreter:
    """One interpreter, the sandbox's `python3`, started by the first cell. Runs one cell at a time."""

    def __init__(
        self,
        sandbox: RunsInterpreters,
        *,
        python: str = "python3",
        cwd: str | None = None,
        is_anew: bool = False,
    ) -> None:
        """Begin without a process. With `is_anew`, the first result says that variables were lost."""
        self._sandbox, self.python, self.cwd = sandbox, python, cwd
        self.turn = threading.Lock()
        self._line: InterpreterLine | None = None
        self._woken: InterpreterLine | None = None  # to a child of a twin that has not answered yet
        self._process: SpawnedProcess | None = None  # unless it continues a twin
        self._former: list[SpawnedProcess] = []  # whose end the agent has not reported yet
        self.pid = 0
        self._begun = False  # whether the last cell began
        self._is_anew = is_anew

    @property
    def is_started(self) -> bool:
        """Whether it runs."""
        return self._line is not None and not self._has_ended()

    def drop(self) -> None:
        """Close the line to it: its sandbox ends."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
        env: dict[str, str] | None = None,
    ) -> CellResult:
        """Run a cell, with `env` as additional environment variables while it runs.

        On a timeout the interpreter is interrupted, and replaced if that does not end the cell.
        """
        if not isinstance(code, str):
            raise InvalidCall(f"the code is {code!r}", why="it is not text", fix="give the text of a cell")
        with self.turn:
            lost = (self._line is not None and self._has_ended()) or self._is_anew
            if lost:
                self._end()
            cell = {"code": code, "limit": output_limit, "env": dict(env or {})}
            result = self._asked(cell, timeout)
            # The interpreter may have died unnoticed, as after restore(): then the cell did not run.
            if result.lost and not result.timed_out and not self._begun:
                lost, result = True, self._asked(cell, timeout)
            result.lost, self._is_anew = result.lost or lost, False
            return result

    def _asked(self, cell: dict[str, Any], timeout: float | None) -> CellResult:
        line = self._line or self._start()
        name, self._begun = secrets.token_hex(8), False
        until = None if timeout is None else time.monotonic() + timeout
        try:
            line.write(json.dumps({"id": name, **cell}).encode() + b"\n", patience=timeout)
        except TimeoutError:
            pass
        except OSError:
            return self._exited()
        try:
            return self._answer(name, until)
        except TimeoutError:
            return self._stopped(name)

    def restart(self) -> None:
        """End the interpreter; the next cell starts a new one."""
        with self.turn:
            self._end()

    close = restart

    # ------------------------------------------------------------ for snapshots, with the turn

    def begin_twin(self) -> Twin:
        """Have it begin to fork a twin for a snapshot; `end_twin` waits for that."""
        ours = InterpreterLine()
        made = Twin(self._sandbox._inside.agent, ours)
        try:
            if self._line is None:
                made.close("it does not run")
            else:
                request = _request(made.name, twin=True)
                self._line.write(request, ours.theirs.fileno(), patience=_TO_FORK)
                ours.theirs.close()
        except OSError:  # also the time-out
            self._end()
            made.close("it does not answer")
        except BaseException:
            made.close()
            raise
        return made

    def end_twin(self, twin: Twin) -> str:
        """Wait until it has forked this twin; return why it has not, or an empty text."""
        if twin.gone:
            return twin.gone
        try:
            answer = self._reply(twin.name, time.monotonic() + _TO_FORK) or {}
        except OSError:  # also the time-out
            self._end()
            twin.close("it does not answer")
        else:
            why = str(answer.get("why") or "")[:200]
            twin.pid = 0 if why else _pid(answer)
            if not twin.pid:
                twin.close(why or "it has ended")
        return twin.gone

    def enter_again(self) -> None:
        """Have it open its directory and its files again, in the trees that are mounted now.

        It does so before it serves the next request.
        """
        try:
            if self._line is not None:
                self._line.write(_request("", enter=True), patience=_TO_FORK)
        except OSError:
            self._end()

    def wake(self, twin: InterpreterTwin) -> str:
        """Begin to continue as `twin`, after the end of its process; return why not, or an empty text.

        `go_on` must follow.
        """
        self._end(is_dead=True)
        self._is_anew = True
        if twin.gone:
            return twin.gone
        try:
            self._woken = twin.wake()
        except OSError:
            return "its twin has ended"
        return ""

    def go_on(self, twin: InterpreterTwin) -> str:
        """Wait until it continues as `twin`, after `wake`; return why it does not, or an empty text."""
        line, self._woken = self._woken, None
        if line is None:
            return "its twin has ended"
        try:
            answer = _parsed(line.read(time.monotonic() + _TO_FORK))
        except TimeoutError:
            answer = {}
        except BaseException:
            line.close()
            raise
        pid = _pid(answer)
        if not pid:
            line.close()
            twin.close("its twin did not answer")
            self._sandbox._tell([twin.pid], SIGKILL)
            return twin.gone
        self._line, self.pid, self._is_anew = line, pid, False
        return ""

    # ------------------------------------------------------------ its process

    def _start(self) -> InterpreterLine:
        self._line = line = InterpreterLine()
        number = line.theirs.fileno()
        try:
            argv = [self.python, "-u", "-c", _KERNEL.read_text()]
            self._process = process = self._sandbox._start_interpreter(
                argv, number, self.cwd, {"MPLBACKEND": "agg"}
            )
            self.pid = process.pid
            line.theirs.close()
            said = line.read(time.monotonic() + _TO_START)
        except TimeoutError:
            said = None
        except BaseException:
            self._end()
            raise
        if said is None or b'"ready"' not in said:
            process.wait(1)
            failure, told = process.failure, (said or b"") + line.rest
            self._end()
            raise SandboxLost(
                f"{self.python} did not start in the sandbox",
                why=failure or told.decode("utf-8", "replace")[-500:],
                fix="run it once with sb.exec, and read what it prints",
            )
        return line

    def _answer(self, name: str, until: float | None) -> CellResult:
        answer = self._reply(name, until, "stdout")
        if answer is None:
            return self._exited()
        self._begun = True
        try:
            given = answer["results"], answer["error"]
            return CellResult(str(answer["stdout"]), str(answer["stderr"]), list(given[0]), given[1])
        except (KeyError, TypeError):
            return self._exited()

    def _exited(self) -> CellResult:
        self._end()
        error = {"name": "InterpreterExited", "value": "the interpreter has exited", "traceback": ""}
        return CellResult(error=error, lost=True)

    def _reply(self, name: str, until: float | None, field: str = "") -> dict[str, Any] | None:
        """Return the answer to a request, with `field` the one that has it; None if it ends before."""
        line = self._line
        while line is not None and (text := line.read(until)) is not None:
            answer = _parsed(text)
            if answer.get("id") == name:
                self._begun = True
                if not field or field in answer:
                    return answer
        return None

    def _stopped(self, name: str) -> CellResult:
        """Interrupt the cell and return its result."""
        self._sandbox._tell([self.pid], SIGINT)
        try:
            result = self._answer(name, time.monotonic() + _TO_STOP)
        except TimeoutError:
            self._end()
            result = CellResult(lost=True)
        result.timed_out = True
        result.error = {"name": "TimeoutError", "value": "the cell took too long", "traceback": ""}
        return result

    def _has_ended(self) -> bool:
        if self._line is None or (self._process is not None and self._process.poll() is not None):
            return True
        return self._line.has_ended

    def _end(self, *, is_dead: bool = False) -> None:
        line, self._line, pid, self.pid = self._line, None, self.pid, 0
        woken, self._woken = self._woken, None
        if woken is not None:
            woken.close()
        process, self._process = self._process, None
        if line is not None:
            line.close()
        if process is not None:
            if not is_dead and process.poll() is None:
                # Its twins are below it. They belong to snapshots.
                process.signal(SIGKILL, everything=not self._sandbox._inside.twins)
            self._former.append(process)
        elif line is not None and not is_dead and self._sandbox._inside.agent.alive:
            self._sandbox._tell([pid], SIGKILL)
        # To close the line to a living process would kill what is below it.
        for former in [former for former in self._former if former.poll() is not None]:
            former.close()
            self._former.remove(former)


def _request(name: str, **fields: object) -> bytes:
    return json.dumps({"id": name, **fields}).encode() + b"\n"


def _pid(answer: dict[str, Any]) -> int:
    """Return the pid in an answer; 0 if there is none."""
    pid = answer.get("pid")
    return pid if type(pid) is int and 1 < pid < 1 << 22 else 0


def _parsed(line: bytes | None) -> dict[str, Any]:
    """Return an answer; empty if it is none: a program may have written to the socket."""
    try:
        answer = json.loads(line or b"{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
