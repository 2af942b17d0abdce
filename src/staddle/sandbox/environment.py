"""An agent's file and command tools in a sandbox: the same calls as on this machine, another place.

Files are reached by the sandbox's clerk, beneath the working directory and through no link, with
the rights of the sandbox's user. Commands are programs of the sandbox.
"""

from __future__ import annotations

import os
import threading

from ..display import shown
from ..enforcement import Gap
from ..environment import commands
from ..environment.interface import CommandResult
from ..environment.revert_writes import WriteReverter
from ..environment.writable_paths import parse_globs, refuse_protected
from ..errors import (
    CommandCancelled,
    CommandNotFound,
    CommandTimeout,
    LaunchFailed,
    PathNotAllowed,
    PolicyError,
    PolicyNotEnforceable,
    SandboxClosed,
    StaddleError,
)
from ..events import Event
from ..files.beneath import relative
from ..files.globs import Glob
from ..ipc import file_messages
from ..launch.output import Tail
from ..launch.redaction import RedactedTail, Secrets, secret_values
from ..policy.environment import checked_name
from ..policy.paths import several
from ..policy.workspace import PLACE
from . import command_spec, files
from .execution import Execution, drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Literal, Protocol

    from ..environment.rules import CommandRules
    from ..files.beneath import AnyPath
    from ..layers.changes import Change
    from ..policy import Policy
    from ..shell.outcome import Outcome
    from .files import Files
    from .open.settings import Settings
    from .open_sandbox import OpenSandbox

    class EnvironmentHost(Protocol):
        """The part of a `Sandbox` that its environment uses."""

        _settings: Settings

        @property
        def policy(self) -> Policy: ...
        @property
        def files(self) -> Files: ...
        def diff(self) -> Sequence[Change]: ...
        def discard(self, paths: Collection[str]) -> object: ...
        def _now(self) -> OpenSandbox: ...


#: Reasons of an end that nothing in a CommandResult has room for but an event.
_LIMITS = ("memory", "processes", "disk")


class SandboxEnvironment:
    """Reads, writes and runs in a directory of `sandbox`, by default the one that its session is in.

    With `writable_paths` only what the globs name is written: by the file tools exactly, and
    commands are held to it afterwards (see `limits()`). `rules` and `secrets` are as for
    LocalEnvironment. It lives as long as the sandbox; there is nothing to close.
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
        if on_unavailable not in ("refuse", "record"):
            raise PolicyError(f"on_unavailable is {on_unavailable!r}", fix="say 'refuse' or 'record'")
        if rules is not None:
            rules.ready()
        self._sandbox, self._rules = sandbox, rules
        self._secrets = frozenset(checked_name(name, "secrets") for name in several(secrets, "secrets"))
        self._globs = None if writable_paths is None else parse_globs(writable_paths)
        inside, name = sandbox.files._at(path)
        (row,) = inside.clerk.ask(file_messages.REAL, name).rows
        self._path = os.fsdecode(row[0])
        self._reverter = (
            None if self._globs is None else WriteReverter(sandbox, self._modified, self._path, self._globs)
        )
        gaps = self.limits()
        if gaps and on_unavailable == "refuse":
            raise PolicyNotEnforceable(
                "writable_paths cannot be held against commands in this sandbox",
                why=gaps[0].why,
                fix=f"{gaps[0].fix}, or say on_unavailable='record'",
                gaps=gaps,
            )
        self._turn = threading.Lock()

    @property
    def working_dir(self) -> str:
        """The directory in the sandbox, absolute and without links."""
        return self._path

    def limits(self) -> tuple[Gap, ...]:
        """Where commands may write more than `writable_paths` names. The file tools may not."""
        if self._reverter is None or self._sandbox._settings.mode == "readonly":
            return ()
        if self._sandbox._now().opened.workspace is not None and _covers(PLACE, self._path):
            return ()
        why = "its changes are made directly: what a command wrote cannot be put back"
        return (Gap("write", why, "open the sandbox with mode='overlay' on the namespaces backend"),)

    # ------------------------------------------------------------ files

    def read_file(self, path: AnyPath, *, limit: int = files.MOST_READ) -> str:
        """The content of a file. Bytes that are not UTF-8 survive a read and a write (surrogateescape)."""
        name = relative(path)
        with files.named(name):
            fd = self._inside().clerk.open(file_messages.OPEN_BENEATH, *self._words(name))
            with open(fd, "rb") as file:
                return files.within(file, limit, name).decode("utf-8", "surrogateescape")

    def write_file(self, path: AnyPath, content: str) -> None:
        """Put `content` at `path`, whole or not at all; directories above it are made."""
        name = relative(path)
        self._refuse_unwritable(name)
        with files.named(name):
            files.put(self._inside(), content, file_messages.WRITE_BENEATH, *self._words(name))

    def remove_file(self, path: AnyPath) -> None:
        """Remove a file; a link is removed itself."""
        name = relative(path)
        self._refuse_unwritable(name)
        with files.named(name):
            self._inside().clerk.ask(file_messages.REMOVE_BENEATH, *self._words(name))

    def glob(self, pattern: str) -> list[str]:
        """The files and directories that `pattern` names, sorted. The grammar is that of writable_paths."""
        Glob(pattern)
        with files.named(pattern):
            rows = self._inside().clerk.ask(file_messages.GLOB_BENEATH, *self._words(pattern)).rows
        return files.checked_names(rows)

    # ------------------------------------------------------------ commands

    def exec_command(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> CommandResult:
        """Run a program to its end; no shell looks at it. It has the session's exported variables.

        A non-zero exit is a result. CommandTimeout and CommandCancelled (when `cancel` is set)
        carry what it had printed. Whatever it started is dead afterwards.
        """
        return self.exec_command_with_limit(command, args, timeout, cancel=cancel)

    def exec_command_with_limit(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        output_limit: int = 0,
        env: Mapping[str, str] | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> CommandResult:
        """The same, with the last `output_limit` bytes of each stream kept, and `env` added inside."""
        if isinstance(args, str | bytes):
            raise PolicyError(
                "args is a list of arguments, not one string", fix=f"wrong: {args!r}  right: [{args!r}]"
            )
        limits = self._sandbox.policy.limits
        allowed = commands.seconds(timeout, limits.timeout)
        kept = commands.size(output_limit, limits.output)
        argv = command_spec.arguments(_words((command, *args)))
        if self._rules is not None:
            self._rules.check(list(argv))
        added = {} if env is None else command_spec.variables(env)
        secrets = self._secrets_with(added)
        try:
            if cancel is not None and cancel.is_set():
                raise CommandCancelled(
                    "the command was cancelled before it started", result=CommandResult("", "", 128 + 9)
                )
            if self._reverter is None or self.limits():
                return self._run(argv, allowed, kept, added, cancel, secrets)
            with self._turn, self._reverter as reverter:  # one at a time: whose change it was must be known
                try:
                    result = self._run(argv, allowed, kept, added, cancel, secrets)
                except (CommandTimeout, CommandCancelled) as error:
                    if error.result is not None:
                        error.result = _with(error.result, reverter.revert(), secrets)
                    raise
                return _with(result, reverter.revert(), secrets)
        except StaddleError as error:
            secrets.strip(error)
            raise

    def _run(  # noqa: PLR0917 - what was asked for, checked
        self,
        argv: tuple[str, ...],
        timeout: float | None,
        kept: int | None,
        added: Mapping[str, str],
        cancel: threading.Event | None,
        secrets: Secrets,
    ) -> CommandResult:
        inside = self._sandbox._now()
        out, err = (RedactedTail(kept, secrets.values) if secrets.values else Tail(kept) for _ in range(2))
        running = Execution(
            inside.opened.link,
            argv,
            {**inside.main.surroundings.env, **added},
            self._path,
            uid=inside.opened.uid,
            stdin=None,
            timeout=timeout,
            out=out.feed,
            err=err.feed,
            known=inside.executions,
            whole=True,
            account=inside.account(),
        )
        outcome = drive(running, cancel)
        if running.failure:
            if outcome.exit_code == 127:
                raise CommandNotFound(f"there is no program {argv[0]!r}")
            raise LaunchFailed("the command did not start", why=shown(running.failure))
        result = _result(outcome, out, err)
        if outcome.reason == "timeout":
            raise CommandTimeout(f"the command was ended after {timeout:g} seconds", result=result)
        if outcome.reason == "cancelled":
            raise CommandCancelled("the command was cancelled", result=result)
        if outcome.reason == "closed":
            raise SandboxClosed("the sandbox was closed while the command ran", fix="open another one")
        return result

    def __repr__(self) -> str:
        return f"<SandboxEnvironment {self._path!r} in {self._sandbox!r}>"

    def _modified(self, path: str) -> float:
        """The modification time of a file; 0 if it is gone."""
        try:
            return self._sandbox.files.stat(path, follow_symlinks=False).modified
        except OSError:
            return 0.0

    def _inside(self) -> OpenSandbox:
        return self._sandbox._now()

    def _words(self, name: str) -> tuple[bytes, bytes]:
        return os.fsencode(self._path), os.fsencode(name)

    def _secrets_with(self, added: Mapping[str, str]) -> Secrets:
        policy, settings = self._sandbox.policy, self._sandbox._settings
        passed = {name: os.environ[name] for name in policy.pass_env if name in os.environ}
        return Secrets(secret_values((passed, policy.env, settings.env, added), self._secrets))

    def _refuse_unwritable(self, name: str) -> None:
        if self._globs is not None:
            if name in self._globs.literals:
                return  # named in full: also what is protected was meant
            if not self._globs.matches(name):
                raise PathNotAllowed(
                    f"{name!r} may not be written",
                    why="no glob of writable_paths names it",
                    fix="write elsewhere, or add it there",
                )
        if self._sandbox._settings.mode != "overlay":  # else commit looks at it, before the host has it
            refuse_protected(name, self._sandbox.policy.unprotect)


def _result(outcome: Outcome, out: Tail, err: Tail) -> CommandResult:
    limit = str(outcome.reason)
    stdout, stderr = out.value(), err.value()  # before anything is counted: this ends the stream
    return CommandResult(
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        exit_code=outcome.exit_code,
        stdout_truncated=out.dropped > 0,
        stdout_bytes_dropped=out.dropped,
        stderr_truncated=err.dropped > 0,
        stderr_bytes_dropped=err.dropped,
        violations=(Event("violation", limit, outcome.why or f"limits.{limit}"),) if limit in _LIMITS else (),
    )


def _with(result: CommandResult, events: tuple[Event, ...], secrets: Secrets) -> CommandResult:
    return result.replace(violations=(*result.violations, *map(secrets.event, events)))


def _words(argv: tuple[str, ...]) -> list[str]:
    found = commands.words(argv)
    if not found[0] or any("\0" in word for word in found):
        raise PolicyError(f"{argv[0]!r} cannot be run", why="it has no name, or an argument has a NUL in it")
    return found


def _covers(above: str, path: str) -> bool:
    return path == above or path.startswith(f"{above}/")
