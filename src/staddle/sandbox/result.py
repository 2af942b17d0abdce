"""`Result` of a command."""

from __future__ import annotations

from enum import StrEnum

from .._value import Value
from ..limits.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import Event
    from ..layers.changes import Change

#: A shell reports a command killed by a signal only by the status 128 + signal.
_SIGNALS = range(1, 65)


class Reason(StrEnum):
    """Reason why a command ended."""

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
    #: No program ran: 127 it does not exist, 126 it cannot be executed, 125 it could not be confined.
    not_started = "not_started"


class Result(Value):
    """Result of a command, whether it succeeded or failed.

    The bytes are its output; beyond `limits.output` only the beginning and the end are kept. The texts are
    the same with U+FFFD in place of bytes that are not UTF-8. `signal` is the signal that ended it. A shell
    reports it by convention: a command that exits with 137 looks the same as a killed one.
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
    #: Changes by this command, first in the workspace; None if they could not be determined (see `diff`).
    changes: tuple[Change, ...] | None = ()
    violations: tuple[Event, ...] = ()
    stdout_bytes_dropped: int = 0
    stderr_bytes_dropped: int = 0
    stdout_spill: str | None = None
    stderr_spill: str | None = None
    #: A sentence: the limit that made it fail, or why it was not started; else empty.
    why: str = ""
    #: The errno for which it was not started (such as `errno.ENOENT`); else None.
    errno: int | None = None
    #: Position in the bytes at which output was dropped; 0 if none was.
    stdout_cut: int = 0
    stderr_cut: int = 0

    @property
    def stdout(self) -> str:
        """Standard output as text; a line reports the number of bytes left out."""
        return text_of(self.stdout_bytes, self.stdout_bytes_dropped, self.stdout_cut)

    @property
    def stderr(self) -> str:
        """Standard error as text; a line reports the number of bytes left out."""
        return text_of(self.stderr_bytes, self.stderr_bytes_dropped, self.stderr_cut)

    @property
    def stdout_parts(self) -> tuple[str, str]:
        """Standard output as text, before and after the bytes left out."""
        return parts(self.stdout_bytes, self.stdout_bytes_dropped, self.stdout_cut)[:2]

    @property
    def stderr_parts(self) -> tuple[str, str]:
        """Standard error as text, before and after the bytes left out."""
        return parts(self.stderr_bytes, self.stderr_bytes_dropped, self.stderr_cut)[:2]

    def text(self, limit: int | None = 30_000, *, lines: int | None = None) -> str:
        """Return the output and the exit code as text for a model, at most `limit` characters and `lines`.

        It contains standard output, standard error and, on failure, the exit code and the reason. A long text
        is cut in the middle, at line ends, and a line reports the size of the cut. None means no limit.
        """
        why = "" if self.reason is Reason.timeout else self.why  # the ending already says it
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
        """Whether it ended by itself, with status 0."""
        return self.exit_code == 0 and self.reason in _ENDED_BY_ITSELF

    @property
    def timed_out(self) -> bool:
        """Whether a timeout ended it."""
        return self.reason is Reason.timeout

    @property
    def stdout_truncated(self) -> bool:
        """Whether part of its standard output was dropped."""
        return self.stdout_bytes_dropped > 0

    @property
    def stderr_truncated(self) -> bool:
        """Whether part of its standard error was dropped."""
        return self.stderr_bytes_dropped > 0

    def check(self) -> Result:
        """Return self if the command succeeded. Raises CommandFailed or CommandTimeout otherwise."""
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
        """Return all fields as data for JSON, with texts in place of bytes."""
        data = super().as_dict()
        del data["stdout_bytes"], data["stderr_bytes"], data["stdout_cut"], data["stderr_cut"]
        more = ("stdout", "stderr", "ok", "timed_out", "stdout_truncated", "stderr_truncated")
        return {**data, "reason": str(self.reason), **{name: getattr(self, name) for name in more}}


_ENDED_BY_ITSELF = (Reason.exited, Reason.shell_exited)


def signal_in(exit_code: int) -> int | None:
    """Return the signal that this status of a shell stands for, if any."""
    return exit_code - 128 if exit_code - 128 in _SIGNALS else None


def parts(data: bytes, dropped: int, cut: int) -> tuple[str, str, int]:
    """Return the text before the cut, the text after it, and the number of bytes in neither.

    It cuts at line ends, if there are any: half a line or half a number could mislead.
    """
    if not dropped:
        return data.decode("utf-8", "replace"), "", 0
    head, tail = data[:cut], data[cut:]
    before = head[: head.rfind(b"\n") + 1] or head
    after = tail[tail.find(b"\n") + 1 :] or tail
    if after is not tail and not after.strip():
        after = tail
    left_out = dropped + len(head) - len(before) + len(tail) - len(after)
    # Within a line, drop half a character at the cut.
    first = before.decode("utf-8", "replace").rstrip("\ufffd") if before is head else _decoded(before)
    last = after.decode("utf-8", "replace").lstrip("\ufffd") if after is tail else _decoded(after)
    return first, last, left_out


def text_of(data: bytes, dropped: int, cut: int) -> str:
    """Return the text of a stream, with a line in place of the dropped bytes."""
    if not dropped:
        return data.decode("utf-8", "replace")
    before, after, left_out = parts(data, dropped, cut)
    newline = "" if before.endswith("\n") or not before else "\n"
    return f"{before}{newline}[… {left_out:,} bytes left out …]\n{after}"


def shortened(text: str, limit: int | None, lines: int | None, dropped: int = 0) -> str:
    """Return the beginning and the end of a text, within `limit` characters and `lines`.

    `dropped` is the number of bytes that were already left out.
    """
    if lines is not None:
        rows = text.split("\n")
        if len(rows) > lines:
            mark = f"[… {len(rows) - lines:,} lines left out …]"
            text = "\n".join([*rows[: (lines + 1) // 2], mark, *rows[len(rows) - lines // 2 :]])
    if limit is None or len(text) <= limit:
        return text
    room = max(limit - 48, 0)  # for the line that reports it
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
