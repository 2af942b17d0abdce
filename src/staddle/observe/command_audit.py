"""The audit log of single commands: of `wrap`, `staddle run`, a jail and a LocalEnvironment.

The lines are the same as for a sandbox (`sandbox.hooks`): "opened", then "command" before each command
starts, "refused" for each refusal, "result" or "failed", and finally "closed".
"""

from __future__ import annotations

import time
from itertools import count

from .audit import AuditLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from ..events import Event
    from ..policy.plan import Plan
    from .audit import AuditTarget
    from .redaction import Secrets


class CommandAudit:
    """An audit log for single commands. Raises AuditFailed if a line cannot be written."""

    def __init__(
        self,
        target: AuditTarget,
        secrets: Secrets | None,
        *,
        outside: Iterable[str] = (),
        **opened: object,
    ) -> None:
        """Begin the log with a line "opened". It must not be in a directory of `outside`."""
        self._log = AuditLog.open(target, secrets, outside=outside)
        self._numbers = count(1)
        self._log.write("opened", **opened)

    @classmethod
    def of(cls, target: AuditTarget, plan: Plan, secrets: Secrets | None, backend: str) -> Self:
        """Begin a log of commands with this plan. It must not be where they can write."""
        network = str(plan.network)
        return cls(
            target, secrets, outside=plan.written(), backend=backend, workspace=plan.cwd, network=network
        )

    def begin(self, command: Sequence[str], cwd: str | None = None) -> AuditedCommand:
        """Write that a command is about to start."""
        made = AuditedCommand(self._log, next(self._numbers))
        self._log.write("command", id=made.number, command=tuple(command), cwd=cwd)
        return made

    def close(self) -> None:
        """Write the last line. Further calls do nothing."""
        self._log.close()


class AuditedCommand:
    """A command that the log has begun. Call `end` or `failed` once."""

    def __init__(self, log: AuditLog, number: int) -> None:
        self._log, self.number = log, number
        self._began = time.monotonic()

    def end(
        self,
        exit_code: int,
        reason: str,
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        why: str = "",
        events: Iterable[Event] = (),
    ) -> None:
        """Write the refusals of a finished command, then its result. `stdout`, `stderr` are byte counts."""
        for event in events:
            kind = "refused" if event.kind == "refused" else "violation"
            self._log.write(kind, id=self.number, host=event.what, rule=event.rule, allow=event.allow or None)
        self._log.write(
            "result",
            id=self.number,
            ok=exit_code == 0 and reason == "exited",
            exit_code=exit_code,
            reason=reason,
            duration=round(time.monotonic() - self._began, 6),
            stdout=stdout,
            stderr=stderr,
            why=why or None,
        )

    def failed(self, error: BaseException) -> None:
        """Write that there is no result. Never raises, because the error is already being raised."""
        self._log.try_write("failed", id=self.number, error=f"{type(error).__name__}: {error}")
