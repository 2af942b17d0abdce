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
from functools import partial
from itertools import count

from ..interrupts import interruptible, original
from .command_log import CommandLog
from .open.hook_settings import CommandStart

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
        self._secrets = secrets
        self._log: CommandLog | None = None
        if settings.audit is not None:
            places = [] if sandbox.workspace is None else [sandbox.workspace]
            places += decided.plan.written()
            self._log = CommandLog.open(settings.audit, secrets, outside=places)
        self._numbers = count(1) if self._log is None else self._log.numbers
        self._begun = self._number if self._log is None else self._log.begin
        self._ended = _nothing if self._log is None else self._log.end
        self._is_told = settings.on_result is not None or settings.on_violation is not None
        #: Tell that a command is about to start.
        self.begin: Callable[[CapturedCommand, str], None] = (
            self._begun if settings.on_command is None else self._begun_and_told
        )
        #: Tell that it is over: what it was refused, then its result.
        self.end: Callable[[CapturedCommand, Result], None] = (
            self._ended_and_told if self._is_told else self._ended
        )
        if self._log is not None:
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
            interruptible(partial(self._hooks.on_command, self._start(spec, session)))

    async def begin_awaited(self, spec: CapturedCommand, session: str) -> None:
        """As `begin`; a hook that is a coroutine function is awaited."""
        self._begun(spec, session)
        if self._hooks.on_command is not None:
            await _seen(self._hooks.on_command(self._start(spec, session)))

    def _ended_and_told(self, spec: CapturedCommand, result: Result) -> None:
        self._ended(spec, result)
        for hook, value in self._told(result):
            interruptible(partial(hook, value))

    async def end_awaited(self, spec: CapturedCommand, result: Result) -> None:
        """As `end`; hooks that are coroutine functions are awaited."""
        self._ended(spec, result)
        if self._is_told:
            for hook, value in self._told(result):
                await _seen(hook(value))

    def failed(self, spec: CapturedCommand, error: BaseException) -> None:
        """A command that was begun has no result. Never raises: the error is on its way already."""
        if self._log is not None and spec.number:
            error = original(error)
            self._log.try_write("failed", id=spec.number, error=f"{type(error).__name__}: {error}")

    def background(self, command: str | tuple[str, ...], user: User, what: str = "started") -> CommandStart:
        """Tell that a program in the background, or on a terminal, is about to start."""
        start = self._in_background(command, user, what)
        if self._hooks.on_command is not None:
            interruptible(partial(self._hooks.on_command, start))
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

    def _number(self, spec: CapturedCommand, session: str) -> None:
        spec.number = next(self._numbers)

    def _start(self, spec: CapturedCommand, session: str) -> CommandStart:
        user = "" if spec.account is None else spec.account.name
        cwd = None if spec.cwd is None else str(spec.cwd)
        return CommandStart(spec.number, _shown(spec), session, user, cwd, spec.timeout, False)

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
            if self._log is not None:
                self._log.refuse(event)
            if hook is not None and not inspect.iscoroutinefunction(hook):
                hook(event)

    async def refused_awaited(self, events: Iterable[Event]) -> None:
        """The same; a hook that is a coroutine function is awaited."""
        for event in events:
            if self._log is not None:
                self._log.refuse(event)
            if self._hooks.on_violation is not None:
                await _seen(self._hooks.on_violation(event))

    def close(self, **facts: object) -> None:
        """Record the end."""
        if self._log is not None:
            self._log.close(**facts)


def _shown(spec: CapturedCommand) -> str | tuple[str, ...]:
    """The command without its secrets."""
    return spec.command if spec.secrets is None else spec.secrets.command(spec.command)


def _nothing(spec: CapturedCommand, result: Result) -> None:
    """Write nothing about a command: there is no log."""


async def _seen(value: object) -> None:
    if inspect.isawaitable(value):
        await value
