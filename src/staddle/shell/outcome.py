"""The outcome of one command: of a shell's, or of a program that was started beside the shells."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits.usage import Usage


class Outcome:
    """How a run ended. `reason` is the name of a Reason; `newest_job` is `$!` afterwards.

    Of a command that a signal ended, a shell knows by its status only: 128 and the signal.
    `usage` is what it used, where that is measured, and `why` the limit that made it fail, in a sentence.
    """

    __slots__ = (
        *("exit_code", "signal", "reason", "shell_exited", "duration", "cwd", "newest_job"),
        *("usage", "why"),
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
