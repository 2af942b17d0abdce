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
    """Reason for which a command ended."""

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
    #: By this command, to the workspace, then elsewhere; None when it could not be looked at (see `diff`).
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
    #: Where in the bytes something was left out; 0 when nothing was.
    stdout_cut: int = 0
    stderr_cut: int = 0

    @property
    def stdout(self) -> str:
        """Its standard output, as text; where something was left out, a line says how much."""
        return text_of(self.stdout_bytes, self.stdout_bytes_dropped, self.stdout_cut)

    @property
    def stderr(self) -> str:
        """Its standard error, as text; where something was left out, a line says how much."""
        return text_of(self.stderr_bytes, self.stderr_bytes_dropped, self.stderr_cut)

    @property
    def stdout_parts(self) -> tuple[str, str]:
        """The beginning and the end of its standard output, as text, where something was left out between."""
        return parts(self.stdout_bytes, self.stdout_bytes_dropped, self.stdout_cut)[:2]

    @property
    def stderr_parts(self) -> tuple[str, str]:
        """The same of its standard error."""
        return parts(self.stderr_bytes, self.stderr_bytes_dropped, self.stderr_cut)[:2]

    def text(self, limit: int | None = 30_000, *, lines: int | None = None) -> str:
        """The output and the exit code as a text for a model: at most `limit` characters, and `lines`.

        Standard output, standard error, and unless it succeeded its exit code and why. What is too long is
        left out in the middle, at line ends, and a line says how much. Each None is no limit.
        """
        why = "" if self.reason is Reason.timeout else self.why  # which says the same
        ending = "" if self.ok else f"[{_ending(self)}{f': {why}' if why else ''}]"
        room = None if limit is None else max(limit - len(ending) - 1, 0)
        printed = [part for part in (self.stdout, self.stderr) if part]
        dropped = self.stdout_bytes_dropped + self.stderr_bytes_dropped
        said = shortened("\n".join(part.rstrip("\n") for part in printed), room, lines, dropped)
        return "\n".join(part for part in (said, ending) if part)

    def __str__(self) -> str:
        return self.text(None)

    def __repr__(self) -> str:
        sizes = [
            f"{len(data) + dropped:,} bytes of {name}"
            for name, data, dropped in (
                ("stdout", self.stdout_bytes, self.stdout_bytes_dropped),
                ("stderr", self.stderr_bytes, self.stderr_bytes_dropped),
            )
            if data
        ]
        ended = ", ".join([_ending(self), *sizes, f"{self.duration:.3g} s"])
        return f"<Result of {_short(self.command)!r}: {ended}>"

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
        del data["stdout_bytes"], data["stderr_bytes"], data["stdout_cut"], data["stderr_cut"]
        more = ("stdout", "stderr", "ok", "timed_out", "stdout_truncated", "stderr_truncated")
        return {**data, "reason": str(self.reason), **{name: getattr(self, name) for name in more}}


_ENDED_BY_ITSELF = (Reason.exited, Reason.shell_exited)


def signal_in(exit_code: int) -> int | None:
    """The signal that a shell means by this status, if it means one."""
    return exit_code - 128 if exit_code - 128 in _SIGNALS else None


def parts(data: bytes, dropped: int, cut: int) -> tuple[str, str, int]:
    """(the text before what is left out, the text after it, how many bytes are in neither).

    Cut at line ends, if there are any: half a line, or half a number, reads as something else.
    """
    if not dropped:
        return data.decode("utf-8", "replace"), "", 0
    head, tail = data[:cut], data[cut:]
    before = head[: head.rfind(b"\n") + 1] or head
    after = tail[tail.find(b"\n") + 1 :] or tail
    if after is not tail and not after.strip():
        after = tail
    left_out = dropped + len(head) - len(before) + len(tail) - len(after)
    # Of a line that is cut itself, half a character at the cut is no character.
    first = before.decode("utf-8", "replace").rstrip("\ufffd") if before is head else _decoded(before)
    last = after.decode("utf-8", "replace").lstrip("\ufffd") if after is tail else _decoded(after)
    return first, last, left_out


def text_of(data: bytes, dropped: int, cut: int) -> str:
    """The text of a stream, with a line in the place of what is left out."""
    if not dropped:
        return data.decode("utf-8", "replace")
    before, after, left_out = parts(data, dropped, cut)
    newline = "" if before.endswith("\n") or not before else "\n"
    return f"{before}{newline}[… {left_out:,} bytes left out …]\n{after}"


def shortened(text: str, limit: int | None, lines: int | None, dropped: int = 0) -> str:
    """The beginning and the end of a text, within so many characters and lines.

    `dropped` bytes of it were left out before.
    """
    if lines is not None:
        rows = text.split("\n")
        if len(rows) > lines:
            mark = f"[… {len(rows) - lines:,} lines left out …]"
            text = "\n".join([*rows[: (lines + 1) // 2], mark, *rows[len(rows) - lines // 2 :]])
    if limit is None or len(text) <= limit:
        return text
    room = max(limit - 48, 0)  # for the line that says it
    head, tail = text[: (room + 1) // 2], text[len(text) - room // 2 :] if room > 1 else ""
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = len(text) - len(head) - len(tail) + dropped
    newline = "" if head.endswith("\n") or not head else "\n"
    return f"{head}{newline}[… {left_out:,} characters left out …]\n{tail}"


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _short(command: str | tuple[str, ...]) -> str:
    text = command if isinstance(command, str) else " ".join(command)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _ending(result: Result) -> str:
    words = {
        Reason.timeout: f"was ended after {result.duration:.3g} seconds",
        Reason.cancelled: "was interrupted",
        Reason.closed: "was killed: the sandbox was closed",
        Reason.signalled: f"was ended by signal {result.signal}",
        Reason.not_started: "was not started",
    }
    return words.get(result.reason, f"ended with {result.exit_code}")


def _last_line(said: bytes) -> str:
    from ..display import shown

    lines = said[-500:].decode("utf-8", "replace").split("\n")
    return shown(next((line.strip() for line in reversed(lines) if line.strip()), ""))
