"""`Jail`: one agent command in a workspace, with the home hidden, on any backend.

    jail = new_jail("bwrap")
    status = jail.run(RunOpts(workspace, ["claude", "-p", "fix the tests"], api_key=key, timeout=3600))

There is no shell between the caller and the command: each argument and each variable arrives as
it is. Variables, the key among them, travel by a descriptor: they are on no command line, in no
file and in no message of ours.
"""

from __future__ import annotations

import os

from .. import backends
from .._value import Value
from ..errors import CommandFailed, CommandTimedOut, PolicyError, UnknownBackend
from ..policy import Policy
from ..policy.environment import checked, checked_name
from ..wrapping import wrap
from .workspace import IDENTITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from typing import Any, Protocol

    from .workspace import Workspace

    #: Called as `wrap` is, returns what has `run` as a WrappedCommand has.
    Runner = Callable[..., Any]
else:
    Protocol = object

#: Other names that a backend is known by.
ALIASES = {"systemd-run": "systemd"}
KEY = "ANTHROPIC_API_KEY"


class RunOpts(Value):
    """One run. `env` are "NAME=value" texts; the key is given to the command only, as ANTHROPIC_API_KEY.

    `timeout` is in seconds, None for no end. `policy` takes the place of
    `Policy.coding_agent(home)`; the workspace is writable under either.
    """

    workspace: Workspace
    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    api_key: str | None = None
    timeout: float | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        for name in ("command", "env"):
            given = getattr(self, name)
            if isinstance(given, str | bytes):
                raise PolicyError(
                    f"{name} is one text", why="splitting it would be guessing", fix="give a list"
                )
            self._set(name, tuple(os.fsdecode(item) for item in given))
        if not self.command:
            raise PolicyError("the command is empty", fix="give at least a program")
        variables(self.env)
        if self.api_key is not None:
            _checked_key(self.api_key)

    def __repr__(self) -> str:
        # Values may be secrets, and a repr ends up in logs.
        names = [item.partition("=")[0] for item in self.env]
        key = "" if self.api_key is None else ", api_key=(hidden)"
        rest = f"env={names!r}{key}, timeout={self.timeout!r}"
        return f"RunOpts({self.workspace!r}, {list(self.command)!r}, {rest})"


class Jail(Protocol):
    """Runs a command in a workspace, confined."""

    def run(self, opts: RunOpts) -> int:
        """Run it on this terminal, stdin not connected; its exit status, 128 + N when signal N ended it."""

    def run_capture(self, opts: RunOpts) -> bytes:
        """What it prints to stdout; stderr passes through. CommandFailed when it ends with an error."""


def new_jail(backend: str, runner: Runner | None = None) -> Jail:
    """A jail on `backend`: a name that `wrap` knows, "auto", or "systemd-run". `runner` is for tests."""
    name = ALIASES.get(backend, backend)
    if name not in (*backends.NAMES, "auto"):
        known = ", ".join((*backends.NAMES, *ALIASES, "auto"))
        raise UnknownBackend(f"there is no jail backend {backend!r}", why=f"staddle knows {known}")
    return ConfinedJail(name, runner or wrap)


class ConfinedJail:
    """A jail whose commands are confined by `wrap` on one backend."""

    def __init__(self, backend: str, runner: Runner) -> None:
        self.backend = backend
        self._runner = runner

    def run(self, opts: RunOpts) -> int:
        """As `Jail.run`. CommandTimedOut when the time was up; nothing of it lives on then."""
        return _status(self._complete(opts))

    def run_capture(self, opts: RunOpts) -> bytes:
        """As `Jail.run_capture`. More than the policy's `limits.output` is cut in the middle."""
        import subprocess

        done = self._complete(opts, stdout=subprocess.PIPE)
        status = _status(done)
        output: bytes = done.stdout
        if status:
            raise CommandFailed(
                f"{opts.command[0]!r} ended with {status}",
                why="see what it printed",
                status=status,
                output=output,
            )
        return output

    def _complete(self, opts: RunOpts, **streams: int) -> subprocess.CompletedProcess[bytes]:
        """Claim the workspace, run, and leave it stopped; failed when it did not end by itself."""
        import subprocess

        workspace = opts.workspace
        with workspace.claim():
            workspace.move_to("running")
            ended = "failed"
            try:
                command = self._runner(
                    list(opts.command),
                    confinement(opts),
                    backend=self.backend,
                    cwd=workspace.path,
                    env=bootstrap(opts),
                )
                done: subprocess.CompletedProcess[bytes] = command.run(
                    stdin=subprocess.DEVNULL, timeout=opts.timeout, **streams
                )
                ended = "stopped"
                return done
            except subprocess.TimeoutExpired as late:
                raise CommandTimedOut(
                    f"{opts.command[0]!r} was ended",
                    why=f"it had {opts.timeout:g} s",
                    status=124,
                    output=late.output or b"",
                ) from None
            finally:
                workspace.move_to(ended)


def confinement(opts: RunOpts) -> Policy:
    """The policy of a run: the given one or `Policy.coding_agent`, and what a commit has to write.

    Of the repository, that is objects, refs, logs and the worktree's own git directory. Its
    config, its hooks and whatever else git would obey can be read only, and cannot be added.
    """
    workspace = opts.workspace
    policy = Policy.coding_agent(os.path.expanduser("~")) if opts.policy is None else opts.policy
    common = workspace.common
    return (
        policy.with_read(common)
        .with_write(
            workspace.path, workspace.admin, *(f"{common}/{part}" for part in ("objects", "refs", "logs"))
        )
        .with_limits(timeout=opts.timeout)
    )


def bootstrap(opts: RunOpts) -> dict[str, str]:
    """What the agent finds in its environment, besides what every sandbox has. PATH is the preset's."""
    return {
        **IDENTITY,
        # Housekeeping would rewrite parts of the repository that cannot be written inside.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "gc.auto",
        "GIT_CONFIG_VALUE_0": "0",
        "MISE_YES": "1",
        "MISE_TRUSTED_CONFIG_PATHS": opts.workspace.path,
        **({} if opts.api_key is None else {KEY: opts.api_key}),
        **variables(opts.env),
    }


def variables(texts: Iterable[str]) -> dict[str, str]:
    """The variables that "NAME=value" texts say; PolicyError for one that cannot be, never a dropped one."""
    found: dict[str, str] = {}
    for position, text in enumerate(texts):
        name, equals, value = text.partition("=")
        if not equals:
            # Not shown: half of a mistyped secret would be in the message.
            raise PolicyError(f"variable {position + 1} of env has no '='", fix='write "NAME=value"')
        checked_name(name, "env")
        if "\0" in value:
            raise PolicyError(f"env cannot set {name!r}", why="its value has a NUL in it")
        found[name] = value
    return dict(checked(found))


def _checked_key(key: object) -> None:
    if not isinstance(key, str) or not key or "\0" in key:
        raise PolicyError(
            "the API key cannot be passed on", why="it is empty, has a NUL in it, or is not text"
        )


def _status(done: subprocess.CompletedProcess[bytes]) -> int:
    return done.returncode if done.returncode >= 0 else 128 - done.returncode
