"""Base of LocalEnvironment and SandboxEnvironment: their common arguments, checks and error handling."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from .. import check
from ..check import several
from ..errors import CommandCancelled, CommandTimeout, PathNotAllowed, PolicyError, StaddleError
from ..observe.redaction import Secrets, secret_values
from ..policy.environment import checked_name
from . import commands
from .interface import CommandResult
from .writable_paths import parse_globs, refuse_protected

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping, Sequence

    from ..command_rules.rules import CommandRules
    from ..observe.audit import CommandAudit
    from ..policy import Policy


class EnvironmentBase(ABC):
    """The common parts of environments.

    A subclass sets `_path`, and implements `_run` and the file tools.
    """

    _path: str

    def __init__(
        self,
        policy: Policy,
        writable_paths: Iterable[str] | None,
        on_unavailable: str,
        rules: CommandRules | None,
        secrets: Iterable[str],
    ) -> None:
        self._audit: CommandAudit | None = None
        check.one_of("on_unavailable", on_unavailable, ("refuse", "record"), PolicyError)
        for each in (rules, policy.rules):
            if each is not None:
                each.ready()
        self._policy, self._rules = policy, rules
        self._secrets = frozenset(checked_name(name, "secrets") for name in several(secrets, "secrets"))
        self._globs = None if writable_paths is None else parse_globs(writable_paths)

    @property
    def working_dir(self) -> str:
        """The directory, absolute and without links."""
        return self._path

    def exec_command(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> CommandResult:
        """Run a program without a shell, and wait for its end. The policy's limit bounds its output.

        A non-zero exit is a result. CommandTimeout and CommandCancelled (when `cancel` is set) contain the
        output so far. Afterwards all processes that it started have exited, always. In a sandbox, it gets the
        session's exported variables.
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
        """Run a program, keep the last `output_limit` bytes of each stream, and add `env` inside.

        A limit of zero or less means the policy's limit.
        """
        if isinstance(args, str | bytes):
            raise PolicyError(
                "args is a list of arguments, not one string",
                fix=f"wrong: {args!r}  right: [{args!r}]",
                why="splitting it would be guessing",
            )
        seconds = self._seconds(timeout)
        kept = commands.size(output_limit, self._policy.limits.output)
        secrets = self._secrets_with(env)
        try:
            argv = self._checked_argv(commands.words((command, *args)))
            if cancel is not None and cancel.is_set():
                raise CommandCancelled(
                    "the command was cancelled before it started",
                    result=CommandResult("", "", 128 + 9),
                    why="its `cancel` event was set already",
                    fix="clear the event for the next command",
                )
            bounds = commands.CommandBounds(seconds, kept, cancel)
            if self._audit is None:
                return self._run(argv, env, bounds, secrets)
            return self._audited(self._audit, argv, env, bounds, secrets)
        except StaddleError as error:
            secrets.strip(error)
            raise

    def _audited(
        self,
        audit: CommandAudit,
        argv: list[str],
        env: Mapping[str, str] | None,
        bounds: commands.CommandBounds,
        secrets: Secrets,
    ) -> CommandResult:
        """Run a command, with a line in the audit log before and after it."""
        audited = audit.begin(secrets.command(tuple(argv)), self._path)
        try:
            result = self._run(argv, env, bounds, secrets)
        except (CommandTimeout, CommandCancelled) as error:
            late = error.result
            if late is None:
                audited.failed(error)
            else:
                reason = "timeout" if isinstance(error, CommandTimeout) else "cancelled"
                audited.end(late.exit_code, reason, events=late.violations)
            raise
        except BaseException as error:
            if isinstance(error, StaddleError):
                secrets.strip(error)
            audited.failed(error)
            raise
        audited.end(
            result.exit_code,
            "exited" if result.exit_code <= 128 else "signalled",
            stdout=len(result.stdout) + result.stdout_bytes_dropped,
            stderr=len(result.stderr) + result.stderr_bytes_dropped,
            events=result.violations,
        )
        return result

    def _seconds(self, timeout: float | None) -> float | None:
        """Return the timeout of a command."""
        return commands.seconds(timeout, self._policy.limits.timeout)

    def _checked_argv(self, argv: list[str]) -> list[str]:
        """Return the argument list to run, after the rules have allowed it."""
        for rules in (self._rules, self._policy.rules):
            if rules is not None:
                rules.check(argv)
        return argv

    @abstractmethod
    def _run(
        self,
        argv: list[str],
        env: Mapping[str, str] | None,
        bounds: commands.CommandBounds,
        secrets: Secrets,
    ) -> CommandResult:
        """Run a command that the rules have allowed."""

    def _variables(self) -> tuple[Mapping[str, str], ...]:
        """Return the variables of every command, besides those that are passed from ours."""
        return (self._policy.env,)

    def _secrets_with(self, env: Mapping[str, str] | None) -> Secrets:
        """Return the secret values among a command's variables, including `env`. They are redacted."""
        passed = {name: os.environ[name] for name in self._policy.pass_env if name in os.environ}
        added = env if hasattr(env, "items") else {}  # other types are refused where it is used
        layers = (passed, *self._variables(), added or {})
        if self._policy.redact is False:  # names in `secrets` are still hidden
            named = {
                name: value for layer in layers for name, value in layer.items() if name in self._secrets
            }
            return Secrets(secret_values((named,), self._secrets))
        return Secrets(secret_values(layers, (*self._secrets, *self._policy.secret_names)))

    def _refuse_unwritable(self, name: str) -> None:
        """Raise PathNotAllowed unless the file tools may write `name`. Does not access the disk."""
        if self._globs is not None:
            if name in self._globs.literals:
                return  # named in full, so even a protected name is meant
            if not self._globs.matches(name):
                raise PathNotAllowed(
                    f"{name!r} may not be written",
                    why="no glob of writable_paths names it",
                    fix="write elsewhere, or add it there",
                )
        self._refuse_protected(name)

    def _refuse_protected(self, name: str) -> None:
        refuse_protected(name, self._policy.unprotect)
