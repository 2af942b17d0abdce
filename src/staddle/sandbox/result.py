"""The result of a command: all that a caller can know about it, as one value."""

from __future__ import annotations

from enum import StrEnum

from .._value import Value
from ..limits.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import Event
    from ..layers.changes import Change

#: A shell knows of a command that a signal ended it by its status only, which is 128 and the signal.
_SIGNALS = range(1, 65)


class Reason(StrEnum):
    """Why a command is over."""

    exited = "exited"
    signalled = "signalled"
    timeout = "timeout"
    cancelled = "cancelled"
    output_limit = "output_limit"
    memory = "memory"
    processes = "processes"
    disk = "disk"
    shell_exited = "shell_exited"
    closed = "closed"
    #: No program ran: 127 it is not there, 126 it cannot be run, 125 it could not be confined.
    not_started = "not_started"


class Result(Value):
    """A command that is over, whichever way. A failing command is a result like any other.

    The bytes are what it printed, as far as they were kept: the beginning and the end, when it
    was more than `limits.output`. The texts are the same with U+FFFD for what is not UTF-8.
    `signal` is the signal that ended it. In a shell that is a matter of convention: a command
    that ends with 137 by its own choice looks the same as one that was killed.
    """

    command: str | tuple[str, ...]
    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration: float
    reason: Reason
    signal: int | None
    shell_exited: bool
    cwd: str
    usage: Usage
    #: By this command, to the workspace, then elsewhere; None when too much is changed already (see `diff`).
    changes: tuple[Change, ...] | None = ()
    violations: tuple[Event, ...] = ()
    stdout_bytes_dropped: int = 0
    stderr_bytes_dropped: int = 0
    stdout_spill: str | None = None
    stderr_spill: str | None = None
    #: The limit that made it fail, or why it was not started, in a sentence; empty when it was none.
    why: str = ""
    #: The kernel's number of why it was not started (`errno.ENOENT`), if it was not.
    errno: int | None = None

    @property
    def stdout(self) -> str:
        """Its standard output, as text."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Its standard error, as text."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether it came to its own end, with status 0."""
        return self.exit_code == 0 and self.reason in _ENDED_BY_ITSELF

    @property
    def timed_out(self) -> bool:
        """Whether it was ended because its time was up."""
        return self.reason is Reason.timeout

    @property
    def stdout_truncated(self) -> bool:
        """Whether some of what it printed was not kept."""
        return self.stdout_bytes_dropped > 0

    @property
    def stderr_truncated(self) -> bool:
        """Whether some of what it printed to standard error was not kept."""
        return self.stderr_bytes_dropped > 0

    def check(self) -> Result:
        """Itself, if the command succeeded; CommandFailed or CommandTimeout else."""
        if not self.ok:
            from ..errors import CommandFailed, CommandTimeout

            kind = CommandTimeout if self.timed_out else CommandFailed
            raise kind(
                f"{_short(self.command)!r} {_ending(self)}",
                why=self.why or _last_line(self.stderr_bytes),
                status=self.exit_code,
                output=self.stdout_bytes,
                result=self,
            )
        return self

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, ready for JSON: the texts in place of the bytes."""
        data = super().as_dict()
        del data["stdout_bytes"], data["stderr_bytes"]
        more = ("stdout", "stderr", "ok", "timed_out", "stdout_truncated", "stderr_truncated")
        return {**data, "reason": str(self.reason), **{name: getattr(self, name) for name in more}}


_ENDED_BY_ITSELF = (Reason.exited, Reason.shell_exited)


def signal_in(exit_code: int) -> int | None:
    """The signal that a shell means by this status, if it means one."""
    return exit_code - 128 if exit_code - 128 in _SIGNALS else None


def _short(command: str | tuple[str, ...]) -> str:
    text = command if isinstance(command, str) else " ".join(command)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _ending(result: Result) -> str:
    words = {
        Reason.timeout: f"was ended after {result.duration:.3g} seconds",
        Reason.cancelled: "was interrupted",
        Reason.closed: "was ended: the sandbox was closed",
        Reason.signalled: f"was ended by signal {result.signal}",
        Reason.not_started: "was not started",
    }
    return words.get(result.reason, f"ended with {result.exit_code}")


def _last_line(said: bytes) -> str:
    from ..display import shown

    lines = said[-500:].decode("utf-8", "replace").split("\n")
    return shown(next((line.strip() for line in reversed(lines) if line.strip()), ""))
