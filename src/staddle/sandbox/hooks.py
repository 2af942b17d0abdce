"""Hooks and the audit log of a sandbox: who is told of each command, before it starts and when it is over.

    on_command(start)       before a command starts; an error here means that it does not
    on_violation(event)     for each refusal that a command met, before its result is told
    on_result(result)       when it is over
    audit                   one line for all of that, and for every change of state; see launch.audit

They are called in the caller's own thread, or awaited by the caller's own task: nothing is told later
than the call returns, and an error in one comes out of that call.
"""

from __future__ import annotations

import inspect
from itertools import count
from json.encoder import encode_basestring_ascii as quoted

from ..launch.audit import MOST_LETTERS, AuditLog
from .open.hook_settings import CommandStart
from .result import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..events import Event
    from ..ipc.agent_client import SpawnedProcess
    from ..launch.redaction import Secrets
    from .arguments import User
    from .capture import CapturedCommand
    from .open.decide import Decision
    from .open.hook_settings import HookSettings
    from .open.settings import SandboxSettings
    from .result import Result

_EXITED = Reason.exited
#: What a line contains about a command that succeeded.
_SUCCEEDED = '"ok":true,"exit_code":0,"reason":"exited"'


class Hooks:
    """The hooks of one open sandbox."""

    def __init__(
        self,
        settings: HookSettings,
        sandbox: SandboxSettings,
        decided: Decision,
        secrets: Secrets | None,
    ) -> None:
        self._hooks = settings
        # On every command's path, just after a wait, when code is slow: no step is one too many.
        #: Tell that a command is about to start.
        self.begin: Callable[[CapturedCommand, str], None] = (
            self._begun if settings.on_command is None else self._begun_and_told
        )
        self._is_told = settings.on_result is not None or settings.on_violation is not None
        #: Tell that it is over: what it was refused, then its result.
        self.end: Callable[[CapturedCommand, Result], None] = (
            self._ended_and_told if self._is_told else self._ended
        )
        self._secrets = secrets
        self._numbers = count(1)
        self._log: AuditLog | None = None
        self._sessions: dict[str, str] = {}  # their names as JSON
        if settings.audit is not None:
            places = () if sandbox.workspace is None else (sandbox.workspace,)
            self._log = AuditLog.open(settings.audit, secrets, outside=places)
            gaps = [gap.protection for gap in decided.enforced.gaps]
            self.record(
                "opened",
                backend=decided.backend.name,
                workspace=sandbox.workspace,
                mode=sandbox.mode,
                keep=sandbox.keep,
                network=str(decided.plan.network),
                gaps=gaps,
            )

    # ------------------------------------------------------------ commands

    def _begun_and_told(self, spec: CapturedCommand, session: str) -> None:
        self._begun(spec, session)
        if self._hooks.on_command is not None:
            self._hooks.on_command(self._start(spec, session))

    async def begin_awaited(self, spec: CapturedCommand, session: str) -> None:
        """As `begin`; a hook that is a coroutine function is awaited."""
        self._begun(spec, session)
        if self._hooks.on_command is not None:
            await _seen(self._hooks.on_command(self._start(spec, session)))

    def _ended_and_told(self, spec: CapturedCommand, result: Result) -> None:
        self._ended(spec, result)
        for hook, value in self._told(result):
            hook(value)

    async def end_awaited(self, spec: CapturedCommand, result: Result) -> None:
        """As `end`; hooks that are coroutine functions are awaited."""
        self._ended(spec, result)
        if self._is_told:
            for hook, value in self._told(result):
                await _seen(hook(value))

    def failed(self, spec: CapturedCommand, error: BaseException) -> None:
        """A command that was begun has no result. Never raises: the error is on its way already."""
        if self._log is not None and spec.number:
            self._log.try_write("failed", id=spec.number, error=f"{type(error).__name__}: {error}")

    def background(self, command: str | tuple[str, ...], user: User, what: str = "started") -> CommandStart:
        """Tell that a program in the background, or on a terminal, is about to start."""
        start = self._in_background(command, user, what)
        if self._hooks.on_command is not None:
            self._hooks.on_command(start)
        return start

    async def background_awaited(
        self, command: str | tuple[str, ...], user: User, what: str = "started"
    ) -> CommandStart:
        """The same; a hook that is a coroutine function is awaited."""
        start = self._in_background(command, user, what)
        if self._hooks.on_command is not None:
            await _seen(self._hooks.on_command(start))
        return start

    def follow(self, start: CommandStart, spawned: SpawnedProcess) -> None:
        """Record the end of a program in the background when it is noticed."""
        log = self._log
        if log is not None:
            spawned.ended = lambda status: log.try_write("ended", id=start.number, exit_code=status)

    def _in_background(self, command: str | tuple[str, ...], user: User, what: str) -> CommandStart:
        name = "" if user is None else str(user)
        shown = command if self._secrets is None else self._secrets.command(command)
        start = CommandStart(next(self._numbers), shown, "", name, background=True)
        self.record(what, id=start.number, command=shown, user=name or None)
        return start

    def _begun(self, spec: CapturedCommand, session: str) -> None:
        spec.number = number = next(self._numbers)
        log, command = self._log, spec.command
        if log is None:
            return
        named = self._sessions.get(session)
        if named is None:
            named = self._sessions[session] = log.spell(session)
        if log.is_simple and spec.secrets is None and type(command) is str and len(command) <= MOST_LETTERS:
            text = quoted(command)
        else:
            text = log.spell(_shown(spec))
        if spec.account is not None or spec.cwd is not None or spec.env:
            text += self._more(log, spec)
        log.append(f'"what":"command","id":{number},"session":{named},"command":{text}')

    def _more(self, log: AuditLog, spec: CapturedCommand) -> str:
        """Fields that most commands do not have."""
        user = "" if spec.account is None else f',"user":{log.spell(spec.account.name)}'
        cwd = "" if spec.cwd is None else f',"cwd":{log.spell(str(spec.cwd))}'
        return f'{user}{cwd},"env":{log.spell(sorted(spec.env))}' if spec.env else f"{user}{cwd}"

    def _start(self, spec: CapturedCommand, session: str) -> CommandStart:
        user = "" if spec.account is None else spec.account.name
        cwd = None if spec.cwd is None else str(spec.cwd)
        return CommandStart(spec.number, _shown(spec), session, user, cwd, spec.timeout, False)

    def _ended(self, spec: CapturedCommand, result: Result) -> None:
        log = self._log
        if log is None:
            return
        of = result.__dict__
        usage, time, more = of["usage"], of["duration"], ""
        spent, memory = usage.user, usage.memory
        if of["violations"]:
            for event in result.violations:
                self._record_refusal(event, spec.number)
        ended = _SUCCEEDED
        if of["exit_code"] or of["reason"] is not _EXITED:
            ok = "true" if result.ok else "false"
            ended = f'"ok":{ok},"exit_code":{result.exit_code},"reason":"{result.reason}"'
        # By whole numbers below a second: the text of a float takes as long as to write the line.
        lasted = f"0.{f'{int(time * 1e6) + 1000000}'[1:]}" if 0 <= time < 1 else f"{time:.6f}"
        if spent is not None:
            digits = f"0.{f'{int(spent * 1e6) + 1000000}'[1:]}" if 0 <= spent < 1 else f"{spent:.6f}"
            more = f',"user_time":{digits}'
        if memory is not None:
            more += f',"memory":{memory}'
        if of["changes"]:
            more += f',"changes":{log.spell([f"{each.kind} {each.path}" for each in result.changes or ()])}'
        if of["why"]:
            more += f',"why":{log.spell(result.why)}'
        out = len(of["stdout_bytes"]) + of["stdout_bytes_dropped"]
        err = len(of["stderr_bytes"]) + of["stderr_bytes_dropped"]
        log.append(
            f'"what":"result","id":{spec.number},{ended},"duration":{lasted}'
            f',"stdout":{out},"stderr":{err}{more}'
        )

    def _told(self, result: Result) -> Iterable[tuple[Callable[[Any], Any], object]]:
        if self._hooks.on_violation is not None:
            for event in result.violations:
                yield self._hooks.on_violation, event
        if self._hooks.on_result is not None:
            yield self._hooks.on_result, result

    # ------------------------------------------------------------ everything else

    @property
    def audits(self) -> bool:
        """Whether there is an audit log."""
        return self._log is not None

    def record(self, what: str, **facts: object) -> None:
        """Write a line to the audit log, if there is one."""
        if self._log is not None:
            self._log.write(what, **facts)

    def attempt(self, event: Event) -> None:
        """Record an attempt on the network. Never raises: a thread of the sandbox's network calls it."""
        if self._log is not None and event.kind != "refused":  # those come with the command that met them
            self._log.try_write("network", kind=event.kind, host=event.what, rule=event.rule)

    def refused(self, events: Iterable[Event]) -> None:
        """Tell of refusals that no result has reported."""
        hook = self._hooks.on_violation
        for event in events:
            self._record_refusal(event)
            if hook is not None and not inspect.iscoroutinefunction(hook):
                hook(event)

    async def refused_awaited(self, events: Iterable[Event]) -> None:
        """The same; a hook that is a coroutine function is awaited."""
        for event in events:
            self._record_refusal(event)
            if self._hooks.on_violation is not None:
                await _seen(self._hooks.on_violation(event))

    def _record_refusal(self, event: Event, number: int | None = None) -> None:
        self.record("refused", id=number, host=event.what, rule=event.rule, allow=event.allow)

    def close(self, **facts: object) -> None:
        """Record the end."""
        if self._log is not None:
            self._log.close(**facts)


def _shown(spec: CapturedCommand) -> str | tuple[str, ...]:
    """The command without its secrets."""
    return spec.command if spec.secrets is None else spec.secrets.command(spec.command)


async def _seen(value: object) -> None:
    if inspect.isawaitable(value):
        await value
