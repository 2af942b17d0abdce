"""An agent's file and command tools in a sandbox, with the same methods as LocalEnvironment.

The sandbox's file server accesses files with the rights of the sandbox's user, only beneath the working
directory and never through a link. Commands run in the sandbox.
"""

from __future__ import annotations

import os
import threading

from ..display import shown
from ..enforcement import Gap
from ..environment import commands
from ..environment.base import EnvironmentBase
from ..environment.revert_writes import WriteReverter
from ..errors import (
    CommandCancelled,
    CommandNotFound,
    CommandTimeout,
    LaunchFailed,
    PolicyError,
    PolicyNotEnforceable,
    SandboxClosed,
)
from ..events import Event
from ..files.beneath import relative
from ..files.globs import Glob
from ..ipc import file_messages
from ..paths import WORKSPACE_PATH, covers
from ..shell.command import CommandSpec
from . import arguments, files
from .capture import CapturedCommand
from .execution import Execution, drive
from .open.settings import APART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Literal, Protocol

    from ..command_rules.rules import CommandRules
    from ..environment.interface import CommandResult
    from ..files.beneath import AnyPath
    from ..layers.changes import Change
    from ..observe.output import Tail
    from ..observe.redaction import Secrets
    from ..policy import Policy
    from ..shell.command import Outcome
    from .files import Files
    from .open.settings import SandboxSettings
    from .open_sandbox import OpenSandbox

    class EnvironmentHost(Protocol):
        """Part of `Sandbox` that its environment uses."""

        _settings: SandboxSettings

        @property
        def policy(self) -> Policy: ...
        @property
        def files(self) -> Files: ...
        def diff(self) -> Sequence[Change]: ...
        def discard(self, paths: Collection[str]) -> object: ...
        def _now(self) -> OpenSandbox: ...


#: Reasons of an end that are reported as events.
_LIMITS = ("memory", "processes", "disk")


class SandboxEnvironment(EnvironmentBase):
    """Reads, writes and runs in a directory of `sandbox` (default: the session's directory).

    With `writable_paths`, the file tools write only paths that the globs match, and other writes of a command
    are reverted after it (see `limits()`). `rules` and `secrets` are as for LocalEnvironment. It needs no
    close: it ends with the sandbox.
    """

    def __init__(
        self,
        sandbox: EnvironmentHost,
        writable_paths: Iterable[str] | None = None,
        *,
        path: AnyPath = ".",
        on_unavailable: Literal["refuse", "record"] = "refuse",
        rules: CommandRules | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        super().__init__(sandbox.policy, writable_paths, on_unavailable, rules, secrets)
        self._sandbox = sandbox
        inside, name = sandbox.files._at(path)
        (row,) = inside.file_client.ask(file_messages.REAL, name).rows
        self._path = os.fsdecode(row[0])
        self._reverter = (
            None if self._globs is None else WriteReverter(sandbox, self._modified, self._path, self._globs)
        )
        gaps = self.limits()
        if gaps and on_unavailable == "refuse":
            raise PolicyNotEnforceable(
                "writable_paths cannot be enforced for commands in this sandbox",
                why=gaps[0].why,
                fix=f"{gaps[0].fix}, or use on_unavailable='record'",
                gaps=gaps,
            )
        self._turn = threading.Lock()

    def limits(self) -> tuple[Gap, ...]:
        """Gaps: cases in which commands, unlike the file tools, can write outside `writable_paths`."""
        if self._reverter is None or self._sandbox._settings.mode == "readonly":
            return ()
        if self._sandbox._now().workspace is not None and covers(WORKSPACE_PATH, self._path):
            return ()
        why = "its changes are made directly: what a command wrote cannot be put back"
        return (Gap("write", why, "open the sandbox with mode='overlay' on the namespaces backend"),)

    # ------------------------------------------------------------ files

    def read_file(self, path: AnyPath, *, limit: int = files.MOST_READ) -> str:
        """Return the text of a file. Bytes that are not UTF-8 survive a round trip (surrogateescape)."""
        name = relative(path)
        with files.named(name):
            fd = self._inside().file_client.open(file_messages.OPEN_BENEATH, *self._words(name))
            with open(fd, "rb") as file:
                return files.within(file, limit, name).decode("utf-8", "surrogateescape")

    def write_file(self, path: AnyPath, content: str) -> None:
        """Write `content` to `path`, whole or not at all. Creates parent directories."""
        name = relative(path)
        self._refuse_unwritable(name)
        with files.named(name):
            files.put(self._inside().file_client, content, file_messages.WRITE_BENEATH, *self._words(name))

    def remove_file(self, path: AnyPath) -> None:
        """Remove a file, or a symlink itself."""
        name = relative(path)
        self._refuse_unwritable(name)
        with files.named(name):
            self._inside().file_client.ask(file_messages.REMOVE_BENEATH, *self._words(name))

    def glob(self, pattern: str) -> list[str]:
        """Return the sorted paths that match `pattern`, which has the grammar of `writable_paths`."""
        Glob(pattern)
        with files.named(pattern):
            rows = self._inside().file_client.ask(file_messages.GLOB_BENEATH, *self._words(pattern)).rows
        return files.checked_names(rows)

    # ------------------------------------------------------------ commands

    def _checked_argv(self, argv: list[str]) -> list[str]:
        if not argv[0] or any("\0" in word for word in argv):
            why = "it has no name, or an argument has a NUL in it"
            raise PolicyError(
                f"{argv[0]!r} cannot be run", why=why, fix="name a program, and take the NUL out"
            )
        return super()._checked_argv(list(arguments.arguments(argv)))

    def _run(
        self,
        argv: list[str],
        env: Mapping[str, str] | None,
        bounds: commands.CommandBounds,
        secrets: Secrets,
    ) -> CommandResult:
        added = {} if env is None else arguments.variables(env)
        if self._reverter is None or self.limits():
            return self._execute(argv, added, bounds, secrets)
        with self._turn:  # one at a time, to know which command made a change
            before = self._reverter.fingerprints()
            try:
                result = self._execute(argv, added, bounds, secrets)
            except (CommandTimeout, CommandCancelled) as error:
                if error.result is not None:
                    error.result = _with(error.result, self._reverter.revert(before), secrets)
                raise
            return _with(result, self._reverter.revert(before), secrets)

    def _execute(
        self,
        argv: list[str],
        added: Mapping[str, str],
        bounds: commands.CommandBounds,
        secrets: Secrets,
    ) -> CommandResult:
        inside = self._sandbox._now()
        hooks = inside.hooks
        out, err = commands.tail(bounds, secrets), commands.tail(bounds, secrets)
        spec = CommandSpec(b"", timeout=bounds.timeout, out=out.feed, err=err.feed)
        if hooks is None:
            return self._finished(self._drive(inside, spec, argv, added, bounds), argv, bounds, out, err)
        told = CapturedCommand(
            tuple(argv),
            self._policy.limits,
            program=True,
            timeout=bounds.timeout,
            cwd=self._path,
            env=added,
            secrets=secrets,
        )
        told.also(out.feed, err.feed)
        try:
            hooks.begin(told, "")
            running = self._drive(inside, told, argv, added, bounds)
        except BaseException as error:
            hooks.failed(told, error)
            raise
        hooks.end(told, told.result(running[1]))
        return self._finished(running, argv, bounds, out, err)

    def _drive(
        self,
        inside: OpenSandbox,
        spec: CommandSpec,
        argv: list[str],
        added: Mapping[str, str],
        bounds: commands.CommandBounds,
    ) -> tuple[Execution, Outcome]:
        running = Execution(
            inside.agent,
            spec,
            argv,
            {**inside.main._exec_context.env, **added},
            self._path,
            uid=inside.uid,
            known=inside.executions,
            whole=True,
            meter=inside.meter(),
        )
        return running, drive(running, bounds.cancel)

    def _finished(
        self,
        ran: tuple[Execution, Outcome],
        argv: list[str],
        bounds: commands.CommandBounds,
        out: Tail,
        err: Tail,
    ) -> CommandResult:
        """Return the result of a program that has ended, or raise its error."""
        running, outcome = ran
        if running.failure:
            if outcome.exit_code == 127:
                raise CommandNotFound(
                    f"there is no program {argv[0]!r}",
                    why="it is in no directory of the PATH inside",
                    fix="give its full path, or install it inside",
                )
            raise LaunchFailed(
                "the command did not start",
                why=shown(running.failure),
                fix="check the program and its permissions",
            )
        result = commands.result_of(outcome.exit_code, out, err, _violations(outcome))
        if outcome.reason == "closed":
            raise SandboxClosed(
                "the sandbox was closed while the command ran",
                fix="open another one",
                why="close() was called, or a limit stopped it",
            )
        return commands.unless_ended(outcome.reason, bounds.timeout, result)

    def __repr__(self) -> str:
        return f"<SandboxEnvironment {self._path!r} in {self._sandbox!r}>"

    def _modified(self, path: str) -> float:
        """Return the modification time of a file; 0 if it is gone."""
        try:
            return self._sandbox.files.stat(path, follow_symlinks=False).modified
        except OSError:
            return 0.0

    def _inside(self) -> OpenSandbox:
        return self._sandbox._now()

    def _words(self, name: str) -> tuple[bytes, bytes]:
        return os.fsencode(self._path), os.fsencode(name)

    def _variables(self) -> tuple[Mapping[str, str], ...]:
        return (*super()._variables(), self._sandbox._settings.env)

    def _refuse_protected(self, name: str) -> None:
        if self._sandbox._settings.mode not in APART:  # else commit checks it before it reaches the host
            super()._refuse_protected(name)


def _violations(outcome: Outcome) -> tuple[Event, ...]:
    """Return the limit that ended the command as an event: a CommandResult has no field for it."""
    limit = str(outcome.reason)
    return (Event("violation", limit, outcome.why or f"limits.{limit}"),) if limit in _LIMITS else ()


def _with(result: CommandResult, events: tuple[Event, ...], secrets: Secrets) -> CommandResult:
    return result.replace(violations=(*result.violations, *map(secrets.event, events)))
