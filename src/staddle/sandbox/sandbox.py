"""`Sandbox`: a computer for an agent. A shell that remembers, programs, processes, terminals.

with Sandbox(workspace="project", mode="bind") as sb:
    sb.run("cd src && make").check()
    sb.run("pwd").stdout        # /workspace/src: the session remembers
"""

from __future__ import annotations

import os
import sys
import threading
import time

from ..errors import InvalidCall, SandboxClosed, SessionError
from ..interrupts import owned, owned_method, unmistakable, unmistaken, unmistaken_method
from ..linux import open_files
from ..linux.process import REAPING
from ..policy.network import PATIENCE
from ..shell.command import CommandSpec
from . import arguments, spawn
from .capture import captured, command_bytes
from .execution import drive
from .files import Files
from .network import NetworkMethods
from .open import settings as sandbox_settings
from .open.decide import decide
from .open.lifetimes import LIFETIMES
from .open_sandbox import MAIN, OpenSandbox
from .process_table import ProcessMethods
from .processes import Process
from .workspace_methods import WorkspaceMethods

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike
    from typing import IO, Any, Literal, Never, Self, Unpack

    from ..command_rules.rules import CommandRules
    from ..enforcement import BackendName, Enforcement, Mode
    from ..events import Event
    from ..limits.usage import Usage
    from ..observe.audit import AuditTarget
    from ..policy import Identity, Policy
    from ..policy.plan import Plan
    from .arguments import CommandVariables, StartOptions, StreamOptions, User, WaitedRunOptions
    from .environment import SandboxEnvironment
    from .files import AnyPath, ByteSource
    from .open.as_root import Account
    from .open.settings import CommandStart
    from .processes import Job
    from .result import Result
    from .session import Session, SessionState
    from .stream import Stream
    from .terminal import Terminal
    from .workspace.snapshot import Snapshot


@unmistakable(
    but=("run", "exec", "stream"),
    also=("usage", "state"),
    own=("close", "pause", "processes", "reset", "resume", "session", "start", "terminal"),
)
class Sandbox(WorkspaceMethods, ProcessMethods, NetworkMethods):
    """A confined place to run commands in, open until `close()`.

    `workspace` is a directory of the host, seen at /workspace. With `mode="overlay"` changes to
    it stay in the sandbox, and with `freeze` later edits on the host are not seen; with "copy" neither; with
    "bind" they are made directly, with "readonly" there are none. Without one, /workspace is empty
    and gone with the sandbox. `env` are variables for everything in it. What cannot be enforced
    raises PolicyNotEnforceable before anything runs, or, with `best_effort`, is listed in `enforced`.
    `keep` is a name under which the changes stay when it is closed, for the next sandbox of that
    name and for `staddle diff`.
    `on_connect` decides about destinations that the policy's network leaves open; what it does not
    answer with True within `on_connect_timeout` seconds is refused. `on_command` is called before each
    command starts, `on_violation` for each refusal that it met, `on_result` when it is over; an error of
    theirs comes out of the call. `audit` is a file, a stream or a function that gets all of that and every
    change of state, line by line; see `staddle audit`. `identity`, `environment` and `base` are the
    policy's fields of these names. `workspace_at` is another path inside at which the workspace is seen,
    by a link, and where commands start. `name` and `labels` are for you to know it by, as is `id`.

    Everything may be called from any thread. After `close()` everything raises SandboxClosed;
    a command that ran at that moment has a result with `Reason.closed`.
    """

    _closed = True  # until it is open

    def __init__(
        self,
        workspace: str | PathLike[str] | None = None,
        policy: Policy | None = None,
        *,
        backend: BackendName = "auto",
        mode: Mode = "overlay",
        best_effort: bool = False,
        env: Mapping[str, str] | None = None,
        keep: str | None = None,
        on_connect: Callable[[Event], Any] | None = None,
        on_connect_timeout: float = PATIENCE,
        on_command: Callable[[CommandStart], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
        on_violation: Callable[[Event], Any] | None = None,
        audit: AuditTarget | None = None,
        workspace_at: str | PathLike[str] | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        identity: Identity | None = None,
        environment: str | None = None,
        base: str | PathLike[str] | None = None,
        workdir: str | PathLike[str] | None = None,
        freeze: bool | None = False,
        **unknown: Never,
    ) -> None:
        asked = (workspace, policy, backend, mode, best_effort, env, keep, on_connect, on_connect_timeout)
        hooks = (on_command, on_result, on_violation, audit)
        rare: dict[str, Any] = {"workspace_at": workspace_at, "name": name, "labels": labels}
        rare |= {"identity": identity, "environment": environment, "base": base, "workdir": workdir}
        rare |= {"freeze": freeze, **unknown}
        unmistaken(lambda: owned(lambda: self._begin(sandbox_settings.settings(*asked, *hooks, **rare))))

    def _begin(self, settings: sandbox_settings.SandboxSettings, snapshot: Snapshot | None = None) -> None:
        self._settings = settings
        self._id = os.urandom(8).hex()
        self._lock = threading.RLock()
        self._ended_by, self._last_asked = "", time.monotonic()
        open_files.have_standard_streams()
        with REAPING:
            self._inside = OpenSandbox(settings, snapshot)
        self._closed = False
        limits = settings.policy.limits
        if limits.max_lifetime is not None or limits.idle is not None:
            LIFETIMES.watch(self, limits)

    @classmethod
    def _of(cls, settings: sandbox_settings.SandboxSettings) -> Self:
        """A sandbox with settings that are checked."""
        made = cls.__new__(cls)
        unmistaken(lambda: owned(lambda: made._begin(settings)))
        return made

    @classmethod
    def _continued(cls, settings: sandbox_settings.SandboxSettings, snapshot: Snapshot) -> Self:
        """Another sandbox that goes on where a snapshot was taken."""
        made = cls.__new__(cls)
        made._begin(settings, snapshot)
        return made

    @staticmethod
    def check(**given: Any) -> None:
        """Raise what Sandbox(**given) would raise before it starts anything."""
        decide(sandbox_settings.settings(**given))

    # ------------------------------------------------------------ commands

    @arguments.with_options_shown
    def run(self, command: str, *, user: User = None, **options: Unpack[WaitedRunOptions]) -> Result:
        """Run `command` in the sandbox's own session and wait for its end; see `Session.run`.

        Options: timeout, cwd, env, stdin, merge, check, output_limit, spill, on_stdout, on_stderr, cancel.
        With `user`, a name or a number, a shell of its own runs it, as that user of the sandbox: where the
        session is, with its exported variables. The session keeps its state.
        """
        inside = self._now()
        if user is None or (other := spawn.account(inside, user)) is None:
            return inside.main.run(command, **options)
        command_bytes(command)
        return self._executed(command, (inside.bash, "-c", command), options, other)

    @arguments.with_options_shown
    def stream(self, command: str, *, user: User = None, **options: Unpack[StreamOptions]) -> Stream:
        """Run `command` in the sandbox's own session, and read what it prints as it comes.

        With `user` as in `run`, but what it left in the background ends with it.
        """
        inside = self._now()
        if (other := spawn.account(inside, user)) is None:
            return inside.main.stream(command, **options)
        return inside.single_session(other, inside.main._exec_context).stream(command, **options)

    @arguments.with_options_shown
    def exec(self, argv: Sequence[str], *, user: User = None, **options: Unpack[WaitedRunOptions]) -> Result:
        """Run a program with exactly these arguments, without a shell, where the session is.

        It has the session's exported variables. Options: timeout, cwd, env, stdin, merge, check,
        output_limit, spill, on_stdout, on_stderr, cancel. A program that is not there ends with 127, one that
        cannot be run with 126. While a command runs in the session, it does not wait for that, and finds
        the directory and variables of before it.
        """
        words = arguments.arguments(argv)
        return self._executed(words, words, options, spawn.account(self._now(), user))

    @unmistaken_method
    @owned_method
    def _executed(
        self,
        command: str | tuple[str, ...],
        argv: tuple[str, ...],
        options: WaitedRunOptions,
        other: Account | None = None,
        *,
        ours: bool = False,
    ) -> Result:
        """Run a program. With `ours` it is not the caller's, and hooks are not told."""
        rest = dict(options)
        cancel: threading.Event | None = rest.pop("cancel", None)  # type: ignore[assignment]
        inside = self._now()
        secrets = None if ours else inside.secrets
        spec, check = captured(command, self.policy.limits, rest, program=True, secrets=secrets)
        spec.account = other
        if not ours:
            spawn.check_rules(inside, argv)
        hooks = None if ours else inside.hooks
        try:
            if hooks is not None:
                hooks.begin(spec, "")
            outcome = drive(spawn.execution(inside, spec, argv, inside.main._exec_context), cancel)
        except BaseException as error:
            if hooks is not None:
                hooks.failed(spec, error)
            raise
        result = spec.result(outcome)
        if hooks is not None:
            hooks.end(spec, result)
        return result.check() if check else result

    @arguments.with_options_shown
    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | PathLike[str] | None = None,
        env: CommandVariables = None,
        user: User = None,
        **following: Unpack[StartOptions],
    ) -> Process:
        """Start `command`, shell text or a list of arguments, in the background, where the session is.

        It has the session's exported variables; it ends with the sandbox, or after `timeout` seconds. With
        `merge` its streams are one. `on_stdout` and `on_stderr` are called with text as it comes, in a
        thread of its own; an error of theirs ends it.
        """
        inside = self._now()
        start = None if inside.hooks is None else inside.hooks.background(arguments.shown(command), user)
        context = inside.main._exec_context
        return spawn.background(inside, command, cwd, env, context, user=user, start=start, **following)

    def processes(self) -> list[Process | Job]:
        """List what was started, and the jobs that commands left behind; also those that ended lately."""
        inside = self._now()
        return inside.processes.listed(inside.every_session(), self._tell)

    def terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        rows: int = 24,
        cols: int = 80,
        term: str = "xterm-256color",
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: User = None,
    ) -> Terminal:
        """A terminal of the sandbox with an interactive shell on it, or the program that `argv` says."""
        inside, options = self._now(), {"term": term, "cwd": cwd, "env": env}
        context, start = inside.main._exec_context, None
        if inside.hooks is not None:
            words = (inside.bash, "-i") if argv is None else arguments.shown(argv)
            start = inside.hooks.background(words, user, "terminal")
        return spawn.open_terminal(
            inside, argv, rows, cols, context=context, user=user, start=start, **options
        )

    def interrupt(self) -> None:
        """End the commands that run now, in every session; processes in the background go on."""
        inside = self._now()
        for session in inside.every_session():
            session.interrupt()
        for execution in list(inside.executions):
            execution.interrupt()

    # ------------------------------------------------------------ files and network

    @property
    def files(self) -> Files:
        """The files inside, as the sandbox's own user sees them."""
        return Files(self)

    def upload_tar(self, f: ByteSource, path: AnyPath = ".", *, user: User = None) -> None:
        """Unpack the tar (also with gzip) that is read from `f` into the directory `path`, which is made.

        All of it or nothing: ArchiveRefused for names and links that lead out, devices, an entry
        that is there twice, an early end. Files that are there are replaced, directories added to.
        """
        from .files import upload

        upload(self, f, path, user)

    def download_tar(
        self, f: IO[bytes], path: AnyPath = ".", *, limit: int | None = 16 << 30, user: User = None
    ) -> None:
        """Write what is in the directory `path`, or a file, to `f` as a tar of at most `limit` bytes.

        Links are kept as links; pipes, sockets and devices are left out. What a sandbox made is
        its choice: unpack it where links that lead out do no harm, or with tarfile's data filter.
        """
        from .files import download

        download(self, f, path, limit, user)

    def environment(
        self,
        writable_paths: Iterable[str] | None = None,
        *,
        path: AnyPath = ".",
        on_unavailable: Literal["refuse", "record"] = "refuse",
        rules: CommandRules | None = None,
        secrets: Iterable[str] = (),
    ) -> SandboxEnvironment:
        """The tools of an agent (ExecutionEnvironment) in the directory `path`, with the globs it may write.

        Commands are held to `writable_paths` too, where changes are in a layer: what does not
        match is put back after each command. Elsewhere "refuse" raises PolicyNotEnforceable,
        and "record" says it in `limits()`. `rules` and `secrets` are as for LocalEnvironment.
        """
        from .environment import SandboxEnvironment

        return SandboxEnvironment(
            self,
            writable_paths,
            path=path,
            on_unavailable=on_unavailable,
            rules=rules,
            secrets=secrets,
        )

    # ------------------------------------------------------------ the whole

    def session(self, name: str, *, user: User = None) -> Session:
        """The session of that name: another shell in the same sandbox, made when it is first asked for.

        With `user` it is that user's. Such a session is not part of snapshots.
        """
        if not isinstance(name, str) or not name:
            raise InvalidCall(
                f"the session's name is {name!r}", fix="give it a short text", why="it is empty, or no text"
            )
        with self._lock:
            inside = self._now()
            other = spawn.account(inside, user)
            if name == MAIN and other is not None:
                raise InvalidCall(
                    f"the session {MAIN!r} is not {other.name}'s",
                    fix="choose another name",
                    why="it is the sandbox's own user's",
                )
            return inside.main if name == MAIN else inside.session(name, other)

    def reset(self) -> None:
        """Begin anew: a fresh sandbox takes the place of this one, with nothing left of what was in it.

        What was written to a host directory (mode "bind", or `write` of the policy) stays written.
        """
        with self._lock:
            self._now()
            if self._settings.keep is not None:
                raise InvalidCall(
                    "a sandbox with keep= cannot be reset",
                    fix="discard() its changes",
                    why="what is kept would be lost",
                )
            fresh = OpenSandbox(self._settings)
            old, self._inside = self._inside, fresh
        old.close()

    def close(self) -> None:
        """End everything in it. A second time does nothing."""
        with self._lock:
            if self._closed:
                return
            for session in self._inside.every_session():
                session._refuse_from_within()
            self._closed = True
        if self._inside.is_ours:  # a fork of the program has nothing to end here
            self._inside.close()

    def set_timeout(self, seconds: float | None) -> None:
        """Close it so many seconds from now, in place of `limits.max_lifetime`; None is no end."""
        self._now()
        life = arguments.seconds(seconds)
        LIFETIMES.set_end(self, self.policy.limits.replace(max_lifetime=life))

    def extend(self, seconds: float) -> float | None:
        """Close it so many seconds later; the seconds that are left then, None if it has no end."""
        self._now()
        return LIFETIMES.extend(self, arguments.seconds(seconds) or 0.0)

    def pause(self) -> None:
        """Stop everything in it where it stands, until `resume()`. The time of commands goes on."""
        self._now().pause()
        self._now().record("paused")

    def resume(self) -> None:
        """Let everything go on after `pause()`."""
        self._now().resume()
        self._now().record("resumed")

    @property
    def usage(self) -> Usage:
        """The usage of everything in it. Without limits on the whole only the time on the clock is known."""
        return self._now().usage()

    @property
    def state(self) -> SessionState:
        """The state of its own session: env, cwd, functions, aliases, options, history, ..."""
        return self._now().main.state

    @property
    def enforced(self) -> Enforcement:
        """The protections that are in force, and every gap."""
        return self._inside.decided.enforced

    @property
    def policy(self) -> Policy:
        """The policy it was opened with."""
        return self._settings.policy

    @property
    def id(self) -> str:
        """An identifier that no other sandbox has."""
        return self._id

    @property
    def name(self) -> str:
        """The name that it was given; else empty."""
        return self._settings.name

    @property
    def labels(self) -> dict[str, str]:
        """The labels that it was given."""
        return dict(self._settings.labels)

    @property
    def plan(self) -> Plan:
        """The policy, resolved for this host."""
        return self._inside.decided.plan

    @property
    def alive(self) -> bool:
        """Whether commands can be run in it: it is open, and nothing has killed it or its network gateway."""
        return not self._closed and self._inside.alive

    def violations(self) -> tuple[Event, ...]:
        """Protected names that appeared in what may be written on the host since it was opened."""
        from ..launch.view import appeared

        workspace = self._inside.decided.workspace
        return (*appeared(self.plan), *(() if workspace is None else appeared(workspace)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and not sys.is_finalizing():  # then it ends with us, by itself
            self.close()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        where = f" of {str(self._settings.workspace)!r}" if self._settings.workspace else ""
        closed = " (closed)" if self._closed else ""
        return f"<Sandbox {self.id}{name}{where} on {self.enforced.backend}{closed}>"

    # ------------------------------------------------------------ for the clock

    @property
    def _is_open(self) -> bool:
        """Whether it has not been closed."""
        return not self._closed

    @property
    def _in_use(self) -> bool:
        """Whether something that was asked for runs in it now."""
        return self._inside.in_use

    def _end(self, why: str) -> None:
        """Close it, whatever runs; later calls raise SandboxClosed with `why`."""
        self._ended_by = why
        self.close()

    # ------------------------------------------------------------ for both faces

    def _warm_up(self) -> None:
        """Do now what the first command would have to wait for."""
        shell = self._now().main._shell
        said: list[bytes] = []
        shell.run(CommandSpec(b"", out=said.append, err=said.append))  # opens what is kept open
        shell.state()

    def _tell(self, pids: Sequence[int], signal: int) -> set[int]:
        """Send processes of the sandbox a signal, 0 for none; which of them are there."""
        # As any program of the sandbox would: it can reach no other process than its own.
        script = 'for pid; do kill -s "$0" "$pid" 2>/dev/null && echo "$pid"; done'
        argv = (self._inside.bash, "-c", script, str(signal), *map(str, pids))
        done = self._executed(argv, argv, {"timeout": 10, "cwd": "/"}, ours=True)
        return {int(line) for line in done.stdout_bytes.split() if line.isdigit()} & set(pids)

    def _now(self) -> OpenSandbox:
        if self._closed:
            raise SandboxClosed("the sandbox is closed", why=self._ended_by, fix="open another one")
        self._last_asked = time.monotonic()
        if not self._inside.is_ours:
            raise SandboxClosed(
                "the sandbox belongs to another process",
                why="this one is a fork of the program that opened it",
                fix="open one here",
            )
        if (user := os.geteuid()) != self._inside.user:
            raise SessionError(
                "the sandbox belongs to another user",
                why=f"this process has opened it as uid {self._inside.user}, and runs as uid {user} now",
                fix="use and close it before the process changes its user, or open one afterwards",
            )
        return self._inside
