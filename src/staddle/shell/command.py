"""A command: its specification, passed whole to the code that runs it, and its outcome."""

from __future__ import annotations

import os

from ..errors import InvalidCall
from ..observe.output import OutputFlood

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from ..limits.usage import Usage
    from ..observe.redaction import Secrets
    from .protocol import Run

    Sink = Callable[[bytes], None]

    class BegunCommand(Protocol):
        """A command given to a bash; `run` is set as soon as there is one."""

        spec: CommandSpec
        run: Run

        @property
        def is_given(self) -> bool: ...
        def give_out(self, data: bytes) -> None: ...
        def give_err(self, data: bytes) -> None: ...


_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class CommandSpec:
    """A command's text, options and output sinks. Raises InvalidCall if it cannot be run.

    `timeout` is in seconds; None means no limit. `env` and `cwd` apply to this command only; a variable that
    is None is unset. `merge` sends both streams to `out`, in order. A sink that blocks slows the command
    down. A sink that raises ends it, and its error propagates from the run.
    """

    __slots__ = ("cwd", "env", "err", "merge", "out", "secrets", "stdin", "text", "timeout")

    def __init__(
        self,
        text: bytes,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: str | None = None,
        out: Sink,
        err: Sink,
        merge: bool = False,
    ) -> None:
        if 0 in text:  # searching an int is ten times as fast as bytes
            raise InvalidCall("a command has no NUL in it", why="bash would leave it out", fix="use stdin=")
        _check_names(env or {})
        self.text, self.timeout, self.stdin = text, timeout, stdin
        self.env, self.cwd = env, cwd
        self.out, self.err, self.merge = out, err, merge
        #: Redacted in later output of its jobs; the sinks get the raw output.
        self.secrets: Secrets | None = None


class Outcome:
    """End of a command. `reason` is the name of a Reason; `newest_job` is `$!` afterwards.

    A shell reports a command killed by a signal only by the status 128 + signal. `usage` is set if it was
    measured. `why` names the limit that made it fail, in a sentence. `errno` tells why a program was not
    started.
    """

    __slots__ = (
        *("exit_code", "signal", "reason", "shell_exited", "duration", "cwd", "newest_job"),
        *("usage", "why", "errno"),
    )

    def __init__(  # noqa: PLR0917 - on every command's path
        self,
        exit_code: int,
        signal: int | None,
        reason: str,
        shell_exited: bool,
        duration: float,
        cwd: str,
        newest_job: int | None,
        usage: Usage | None = None,
        why: str = "",
    ) -> None:
        self.exit_code, self.signal, self.reason = exit_code, signal, reason
        self.shell_exited, self.duration = shell_exited, duration
        self.cwd, self.newest_job = cwd, newest_job
        self.usage, self.why = usage, why
        self.errno: int | None = None


def shell_outcome(run: Run, code: int, duration: float, cwd: bytes, newest_job: int) -> Outcome:
    """Return the outcome of a shell's run with the exit status `code`."""
    signal = code - 128 if 128 < code <= 192 else None
    reason = run.reason or ("shell_exited" if run.answer is None else "signalled" if signal else "exited")
    if reason == "timeout":
        code, signal = 124, None
    why = OutputFlood.why if reason == "output_limit" else ""
    return Outcome(
        code, signal, reason, run.answer is None, duration, os.fsdecode(cwd), newest_job or None, None, why
    )


def _check_names(env: Mapping[str, str | None]) -> None:
    for name, value in env.items():
        plain = name and not name[0].isdigit() and _NAME.issuperset(name.encode("utf-8", "surrogateescape"))
        if not plain or "\0" in (value or ""):
            raise InvalidCall(
                f"{name!r} cannot be a variable of a command",
                why="a name is letters, digits and underscores, and a value has no NUL",
                fix="use another name or value in env=",
            )
