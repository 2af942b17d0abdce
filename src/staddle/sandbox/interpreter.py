"""A Python interpreter in a sandbox that keeps its variables from cell to cell.

It is an untrusted program of the sandbox. Its variables exist only in that process: snapshots, forks and kept
sandboxes do not include them.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import InvalidCall, SandboxLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class RunsPrograms(Protocol):
        """Part of a sandbox that an interpreter uses."""

        def terminal(self, argv: Sequence[str] | None, *, cwd: str | None, env: dict[str, str]) -> Any: ...
        def exec(self, argv: Sequence[str], *, timeout: float) -> Any: ...


_KERNEL = Path(__file__).parents[1] / "inside" / "interpreter_kernel.py"
#: Seconds for the interpreter to start, and to react to an interrupt.
_TO_START, _TO_STOP = 60.0, 5.0
#: The longest answer that is read. The kernel bounds output itself; this bounds a malicious one.
_LONGEST = 256 << 20
OUTPUT_LIMIT = 4 << 20


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

    def __init__(self, sandbox: RunsPrograms, *, python: str = "python3", cwd: str | None = None) -> None:
        self._sandbox, self._python, self._cwd = sandbox, python, cwd
        self._turn = threading.Lock()
        self._terminal: Any = None
        self._unread = b""
        self._begun = False  # whether the last cell began

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
        with self._turn:
            lost = self._terminal is not None and self._terminal.poll() is not None
            if lost:
                self._end()
            cell = {"code": code, "limit": output_limit, "env": dict(env or {})}
            result = self._asked(cell, timeout)
            # The interpreter may have died unnoticed, as after restore(): then the cell did not run.
            if result.lost and not result.timed_out and not self._begun:
                lost, result = True, self._asked(cell, timeout)
            result.lost = result.lost or lost
            return result

    def _asked(self, cell: dict[str, Any], timeout: float | None) -> CellResult:
        if self._terminal is None:
            self._start()
        name, self._begun = secrets.token_hex(8), False
        self._terminal.write(json.dumps({"id": name, **cell}).encode() + b"\n")
        try:
            return self._answer(name, timeout)
        except TimeoutError:
            return self._stopped(name)

    def restart(self) -> None:
        """End the interpreter; the next cell starts a new one."""
        with self._turn:
            self._end()

    close = restart

    def _start(self) -> None:
        self._unread = b""
        argv = [self._python, "-u", "-c", _KERNEL.read_text()]
        self._terminal = self._sandbox.terminal(argv, cwd=self._cwd, env={"MPLBACKEND": "agg"})
        line = self._line(time.monotonic() + _TO_START)
        if line is None or b'"ready"' not in line:
            failure, said = self._terminal.failure, (line or b"") + self._unread
            self._end()
            why = failure or said.decode("utf-8", "replace")[-500:]
            raise SandboxLost(
                f"{self._python} did not start in the sandbox",
                why=why,
                fix="run it once with sb.exec, and read what it prints",
            )

    def _answer(self, name: str, timeout: float | None) -> CellResult:
        until = None if timeout is None else time.monotonic() + timeout
        while (line := self._line(until)) is not None:
            try:
                answer = json.loads(line)
                if answer["id"] == name:
                    self._begun = True
                    return CellResult(
                        str(answer["stdout"]), str(answer["stderr"]), list(answer["results"]), answer["error"]
                    )
            except (ValueError, KeyError, TypeError):
                continue  # a program wrote directly to the terminal
        self._end()
        error = {"name": "InterpreterExited", "value": "the interpreter has exited", "traceback": ""}
        return CellResult(error=error, lost=True)

    def _stopped(self, name: str) -> CellResult:
        """Interrupt the cell and return its result."""
        self._sandbox.exec(["kill", "-INT", str(self._terminal.pid)], timeout=10)
        try:
            result = self._answer(name, _TO_STOP)
        except TimeoutError:
            self._end()
            result = CellResult(lost=True)
        result.timed_out = True
        result.error = {"name": "TimeoutError", "value": "the cell took too long", "traceback": ""}
        return result

    def _line(self, until: float | None) -> bytes | None:
        """Return its next line, or None at its end. Raises TimeoutError after `until`."""
        while b"\n" not in self._unread:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            data = self._terminal.read(timeout=left)
            if not data and (left is None or self._terminal.poll() is not None):
                return None
            self._unread += data
            if len(self._unread) > _LONGEST:
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _end(self) -> None:
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.kill()
            terminal.close()
