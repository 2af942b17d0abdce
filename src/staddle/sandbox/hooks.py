"""Hooks and the audit log of a sandbox, called before each command starts and after it ends.

    on_command(start)       before a command starts; an error prevents the start
    on_violation(event)     for each refusal during a command, before on_result
    on_result(result)       after the end
    audit                   one line for each of these, and for every state change; see launch.audit

The caller's thread calls them, or the caller's task awaits them, before the call returns. Their errors
propagate from that call.
"""

from __future__ import annotations

import inspect
from functools import partial
from itertools import count
from json.encoder import encode_basestring_ascii as quoted
from time import time_ns

from ..interrupts import interruptible, original
from ..observe.audit import MOST_LETTERS, AuditLog, line_hash
from .open.settings import CommandStart
from .result import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..events import Event
    from ..ipc.agent_client import SpawnedProcess
    from ..observe.redaction import Secrets
    from .arguments import User
    from .capture import CapturedCommand
    from .open.decide import Decision
    from .open.settings import HookSettings, SandboxSettings
    from .result import Result


class Hooks:
    """Hooks of one open sandbox."""

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
        #: Report that a command is about to start.
        self.begin: Callable[[CapturedCommand, str], None] = (
            self._begun if settings.on_command is None else self._begun_and_told
        )
        #: Report its end: refusals first, then the result.
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
        """As `begin`, but awaits coroutine hooks."""
        self._begun(spec, session)
        if self._hooks.on_command is not None:
            await _seen(self._hooks.on_command(self._start(spec, session)))

    def _ended_and_told(self, spec: CapturedCommand, result: Result) -> None:
        self._ended(spec, result)
        for hook, value in self._told(result):
            interruptible(partial(hook, value))

    async def end_awaited(self, spec: CapturedCommand, result: Result) -> None:
        """As `end`, but awaits coroutine hooks."""
        self._ended(spec, result)
        if self._is_told:
            for hook, value in self._told(result):
                await _seen(hook(value))

    def failed(self, spec: CapturedCommand, error: BaseException) -> None:
        """Record that a command has no result. Never raises: another error is propagating already."""
        if self._log is not None and spec.number:
            error = original(error)
            self._log.try_write("failed", id=spec.number, error=f"{type(error).__name__}: {error}")

    def background(self, command: str | tuple[str, ...], user: User, what: str = "started") -> CommandStart:
        """Report that a background program or a terminal is about to start."""
        start = self._in_background(command, user, what)
        if self._hooks.on_command is not None:
            interruptible(partial(self._hooks.on_command, start))
        return start

    async def background_awaited(
        self, command: str | tuple[str, ...], user: User, what: str = "started"
    ) -> CommandStart:
        """As `background`, but awaits a coroutine hook."""
        start = self._in_background(command, user, what)
        if self._hooks.on_command is not None:
            await _seen(self._hooks.on_command(start))
        return start

    def follow(self, start: CommandStart, spawned: SpawnedProcess) -> None:
        """Record the end of a background program when it is noticed."""
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
        """Record a network attempt. Never raises: a thread of the sandbox's network calls it."""
        if self._log is not None and event.kind != "refused":  # refusals are logged with their command
            self._log.try_write("network", kind=event.kind, host=event.what, rule=event.rule)

    def refused(self, events: Iterable[Event]) -> None:
        """Report refusals that are in no result."""
        hook = self._hooks.on_violation
        for event in events:
            if self._log is not None:
                self._log.refuse(event)
            if hook is not None and not inspect.iscoroutinefunction(hook):
                hook(event)

    async def refused_awaited(self, events: Iterable[Event]) -> None:
        """As `refused`, but awaits a coroutine hook."""
        for event in events:
            if self._log is not None:
                self._log.refuse(event)
            if self._hooks.on_violation is not None:
                await _seen(self._hooks.on_violation(event))

    def close(self, **facts: object) -> None:
        """Record the end of the sandbox."""
        if self._log is not None:
            self._log.close(**facts)


def _shown(spec: CapturedCommand) -> str | tuple[str, ...]:
    """Return the command with its secrets redacted."""
    return spec.command if spec.secrets is None else spec.secrets.command(spec.command)


def _nothing(spec: CapturedCommand, result: Result) -> None:
    """Write nothing: there is no log."""


async def _seen(value: object) -> None:
    if inspect.isawaitable(value):
        await value


# The audit log of a sandbox, optimized for the two lines of each command.
#
# These lines are on every command's path, just after a wait, when caches are cold. A usual line takes one
# frame, one string and one system call. It has the fields that `AuditLog.write` would write.


_EXITED = Reason.exited
#: Fields of a successful command.
_SUCCEEDED = b'"ok":true,"exit_code":0,"reason":"exited"'


class CommandLog(AuditLog):
    """Audit log of a sandbox's commands."""

    def __init__(self, secrets: Secrets | None) -> None:
        super().__init__(secrets)
        #: Numbers of commands.
        self.numbers = count(1)
        self._secrets = secrets if secrets is not None and secrets.values else None
        self._acquire, self._release = self._lock.acquire, self._lock.release  # faster than `with`
        self._command = f'{self._head}"command","id":%d%b%b}}\n'.encode()
        self._result = (
            f'{self._head}"result","id":%d,%b,"duration":%de-6,"stdout":%d,"stderr":%d%b}}\n'.encode()
        )
        self._sessions: dict[str, bytes] = {}  # names, encoded for a line
        #: User time and memory of the previous command, and their encoding.
        self._used: tuple[float | None, int | None, bytes] = (None, None, b"")

    def begin(self, spec: CapturedCommand, session: str) -> None:
        """Number a command, and write that it is about to start."""
        spec.number = number = next(self.numbers)
        command, named = spec.command, self._sessions.get(session)
        if (
            named is None
            or spec.secrets is not self._secrets
            or spec.account is not None
            or spec.cwd is not None
            or spec.env
            or type(command) is not str
            or len(command) > MOST_LETTERS
        ):
            self._begin(spec, session)
            return
        text = quoted(command if self._texts is None else self._texts(command)).encode()
        self._acquire()
        try:
            self._number = line = self._number + 1
            data = self._command % (line, time_ns(), self._last, number, named, text)
            if self._put(data) != len(data):
                self._tear()
            self._last = line_hash(data)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._release()

    def _begin(self, spec: CapturedCommand, session: str) -> None:
        """Write the start of a command that `begin` has no fast path for."""
        shown = spec.command if spec.secrets is None else spec.secrets.command(spec.command)
        more: dict[str, object] = {}
        if spec.account is not None:
            more["user"] = spec.account.name
        if spec.cwd is not None:
            more["cwd"] = str(spec.cwd)
        if spec.env:
            more["env"] = sorted(spec.env)
        if self._function is None:
            self._sessions[session] = self._fields({"session": session}) + b',"command":'
            self.write("command", id=spec.number, session=session, command=shown, **more)
            return
        record: dict[str, object] = {
            "log": self.name,
            "n": 0,
            "at": 0.0,
            "what": "command",
            "id": spec.number,
            "session": self._plain(session),
            "command": self._plain(shown),
        }
        self._pass(record | {name: self._plain(fact) for name, fact in more.items()} if more else record)

    def end(self, spec: CapturedCommand, result: Result) -> None:
        """Write the end of a command: refusals first, then the result."""
        if self._function is not None:
            for event in result.violations:
                self.refuse(event, spec.number)
            self._pass(self._record(spec, result))
            return
        of = result.__dict__  # one lookup per field
        usage, ended = of["usage"].__dict__, _SUCCEEDED
        user_time, memory, used = self._used
        if usage["user"] != user_time or usage["memory"] != memory:
            used = self._use(usage["user"], usage["memory"])
        if of["exit_code"] or of["reason"] is not _EXITED:
            ok = b"true" if result.ok else b"false"
            ended = b'"ok":%b,"exit_code":%d,"reason":"%b"' % (ok, of["exit_code"], of["reason"].encode())
        if of["violations"] or of["changes"] or of["why"]:
            for event in result.violations:
                self.refuse(event, spec.number)
            used += self._fields(_rare(result))
        out = len(of["stdout_bytes"]) + of["stdout_bytes_dropped"]
        err = len(of["stderr_bytes"]) + of["stderr_bytes_dropped"]
        time = int(of["duration"] * 1000000)
        self._acquire()
        try:
            self._number = line = self._number + 1
            data = self._result % (line, time_ns(), self._last, spec.number, ended, time, out, err, used)
            if self._put(data) != len(data):
                self._tear()
            self._last = line_hash(data)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._release()

    def _use(self, user_time: float | None, memory: int | None) -> bytes:
        """Return the fields for a command's usage."""
        if user_time is not None and memory is not None:
            used = b',"user_time":%de-6,"memory":%d' % (int(user_time * 1000000), memory)
        else:
            used = self._fields({"user_time": user_time, "memory": memory})
        self._used = (user_time, memory, used)
        return used

    def _record(self, spec: CapturedCommand, result: Result) -> dict[str, object]:
        """Return the record of a result for an audit function."""
        usage = result.usage
        made: dict[str, object] = {
            "log": self.name,
            "n": 0,
            "at": 0.0,
            "what": "result",
            "id": spec.number,
            "ok": result.ok,
            "exit_code": result.exit_code,
            "reason": str(result.reason),
            "duration": result.duration,
            "stdout": len(result.stdout_bytes) + result.stdout_bytes_dropped,
            "stderr": len(result.stderr_bytes) + result.stderr_bytes_dropped,
        }
        if usage.user is not None:
            made["user_time"] = usage.user
        if usage.memory is not None:
            made["memory"] = usage.memory
        if result.changes or result.why:
            made |= {name: self._plain(fact) for name, fact in _rare(result).items() if fact is not None}
        return made

    def refuse(self, event: Event, number: int | None = None) -> None:
        """Write a refusal, with the command's number if it is known."""
        self.write("refused", id=number, host=event.what, rule=event.rule, allow=event.allow)


def _rare(result: Result) -> dict[str, object]:
    """Fields that most results do not have."""
    changes = [f"{each.kind} {each.path}" for each in result.changes or ()]
    return {"changes": changes or None, "why": result.why or None}
