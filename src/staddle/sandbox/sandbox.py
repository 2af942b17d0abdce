"""`Sandbox`: runs an agent's commands in a shell that keeps its state, programs, processes and terminals.

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

    `workspace` is a host directory, mounted at /workspace; without it /workspace is empty and deleted on
    close. `mode` decides about writes to it. "overlay" keeps changes in the sandbox; with `freeze` it also
    hides later edits on the host, as "copy" always does. "bind" writes to the directory, "readonly" forbids
    writes. `env` sets variables for all programs inside. If the host cannot enforce part of the policy, the
    call raises PolicyNotEnforceable before anything runs, or with `best_effort` lists that part in
    `enforced`. `keep` names the changes, so that they stay after `close()` for the next sandbox of that name
    and `staddle diff`. `on_connect` decides about destinations that the policy's network leaves open; any
    answer but True within `on_connect_timeout` seconds refuses them. `on_command` is called before each
    command starts, `on_violation` for each refusal during a command, `on_result` after it; their errors
    propagate from the call. `audit` is a file, a stream or a function that receives a record of each of these
    and of every state change; see `staddle audit`. `identity`, `environment` and `base` replace the policy's
    fields. `workspace_at` is another path inside that links to the workspace; commands start there. `name`,
    `labels` and `id` identify it.

    All methods are thread-safe. After `close()` they raise SandboxClosed. A command that was running then
    returns a result with `Reason.closed`.
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
        """Open a sandbox from validated settings."""
        made = cls.__new__(cls)
        unmistaken(lambda: owned(lambda: made._begin(settings)))
        return made

    @classmethod
    def _continued(cls, settings: sandbox_settings.SandboxSettings, snapshot: Snapshot) -> Self:
        """Open a sandbox that continues from a snapshot."""
        made = cls.__new__(cls)
        made._begin(settings, snapshot)
        return made

    @staticmethod
    def check(**given: Any) -> None:
        """Raise the error that Sandbox(**given) would raise before it starts anything."""
        decide(sandbox_settings.settings(**given))

    # ------------------------------------------------------------ commands

    @arguments.with_options_shown
    def run(self, command: str, *, user: User = None, **options: Unpack[WaitedRunOptions]) -> Result:
        """Run `command` in the main session and wait for its end; see `Session.run`.

        Options: timeout, cwd, env, stdin, merge, check, output_limit, spill, on_stdout, on_stderr, cancel.
        With `user`, a name or a uid, a separate shell runs it as that user inside. It starts with the
        session's directory and exported variables, and does not change the session.
        """
        inside = self._now()
        if user is None or (other := spawn.account(inside, user)) is None:
            return inside.main.run(command, **options)
        command_bytes(command)
        return self._executed(command, (inside.bash, "-c", command), options, other)

    @arguments.with_options_shown
    def stream(self, command: str, *, user: User = None, **options: Unpack[StreamOptions]) -> Stream:
        """Run `command` in the main session and iterate over its output as it arrives.

        `user` is as in `run`, but background processes of the command end with it.
        """
        inside = self._now()
        if (other := spawn.account(inside, user)) is None:
            return inside.main.stream(command, **options)
        return inside.single_session(other, inside.main._exec_context).stream(command, **options)

    @arguments.with_options_shown
    def exec(self, argv: Sequence[str], *, user: User = None, **options: Unpack[WaitedRunOptions]) -> Result:
        """Run a program with exactly these arguments, without a shell, in the session's directory.

        It inherits the session's exported variables. Options: timeout, cwd, env, stdin, merge, check,
        output_limit, spill, on_stdout, on_stderr, cancel. The exit code is 127 if the program does not exist,
        126 if it cannot be executed. It does not wait for a command that runs in the session, and then gets
        the directory and variables from before that command.
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
        """Run a program. With `ours` it is staddle's own, and hooks are not called."""
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
        """Start `command`, shell text or an argument list, in the background, in the session's directory.

        It inherits the session's exported variables. It ends with the sandbox, or after `timeout` seconds.
        `merge` sends stderr to stdout. `on_stdout` and `on_stderr` are called with text as it arrives, in a
        separate thread; an error in them ends the process.
        """
        inside = self._now()
        start = None if inside.hooks is None else inside.hooks.background(arguments.shown(command), user)
        context = inside.main._exec_context
        return spawn.background(inside, command, cwd, env, context, user=user, start=start, **following)

    def processes(self) -> list[Process | Job]:
        """List started processes and jobs that commands left running, including those that ended recently."""
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
        """Open a terminal inside with an interactive shell, or with the program `argv`."""
        inside, options = self._now(), {"term": term, "cwd": cwd, "env": env}
        context, start = inside.main._exec_context, None
        if inside.hooks is not None:
            words = (inside.bash, "-i") if argv is None else arguments.shown(argv)
            start = inside.hooks.background(words, user, "terminal")
        return spawn.open_terminal(
            inside, argv, rows, cols, context=context, user=user, start=start, **options
        )

    def interrupt(self) -> None:
        """End the commands that run now, in every session. Background processes continue."""
        inside = self._now()
        for session in inside.every_session():
            session.interrupt()
        for execution in list(inside.executions):
            execution.interrupt()

    # ------------------------------------------------------------ files and network

    @property
    def files(self) -> Files:
        """Files inside, with the rights of the sandbox's own user."""
        return Files(self)

    def upload_tar(self, f: ByteSource, path: AnyPath = ".", *, user: User = None) -> None:
        """Unpack a tar (plain or gzip), read from `f`, into the directory `path`, created if missing.

        It unpacks everything or nothing. ArchiveRefused: names and links that lead outside, devices,
        duplicate entries, a truncated archive. It replaces existing files and merges into directories.
        """
        from .files import upload

        upload(self, f, path, user)

    def download_tar(
        self, f: IO[bytes], path: AnyPath = ".", *, limit: int | None = 16 << 30, user: User = None
    ) -> None:
        """Write the file or the contents of the directory `path` to `f`, as a tar of at most `limit` bytes.

        It keeps links as links, and omits pipes, sockets and devices. The sandbox chose the contents: unpack
        them where links that lead outside do no harm, or with tarfile's data filter.
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
        """Return an agent's tools (ExecutionEnvironment) for the directory `path`.

        They write only what the globs `writable_paths` match. Where changes are in a layer, other writes of a
        command are reverted after it. Elsewhere "refuse" raises PolicyNotEnforceable, and "record" lists the
        gap in `limits()`. `rules` and `secrets` are as for LocalEnvironment.
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

    # ------------------------------------------------------------ sessions and lifetime

    def session(self, name: str, *, user: User = None) -> Session:
        """Return the session with this name, another shell in the same sandbox; the first call creates it.

        With `user` the shell runs as that user. Snapshots do not include such a session.
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
        """Replace the sandbox with a fresh one; nothing inside is kept.

        Writes to a host directory (mode "bind", or `write` in the policy) remain.
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
        """End the sandbox and all its processes. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            for session in self._inside.every_session():
                session._refuse_from_within()
            self._closed = True
        if self._inside.is_ours:  # a forked child of the program must not end it
            self._inside.close()

    def set_timeout(self, seconds: float | None) -> None:
        """Close it `seconds` from now, in place of `limits.max_lifetime`; None removes the limit."""
        self._now()
        life = arguments.seconds(seconds)
        LIFETIMES.set_end(self, self.policy.limits.replace(max_lifetime=life))

    def extend(self, seconds: float) -> float | None:
        """Close it `seconds` later. Returns the seconds left, or None if it has no time limit."""
        self._now()
        return LIFETIMES.extend(self, arguments.seconds(seconds) or 0.0)

    def pause(self) -> None:
        """Freeze all its processes until `resume()`. Timeouts of commands keep running."""
        self._now().pause()
        self._now().record("paused")

    def resume(self) -> None:
        """Continue all processes after `pause()`."""
        self._now().resume()
        self._now().record("resumed")

    @property
    def usage(self) -> Usage:
        """Resources used by the whole sandbox so far; without cgroups the memory is an estimate."""
        return self._now().usage()

    @property
    def state(self) -> SessionState:
        """State of the main session: env, cwd, functions, aliases, options, history, ..."""
        return self._now().main.state

    @property
    def enforced(self) -> Enforcement:
        """Protections in force, and every gap (a part of the policy that is not enforced)."""
        return self._inside.decided.enforced

    @property
    def policy(self) -> Policy:
        """Policy that it was opened with."""
        return self._settings.policy

    @property
    def id(self) -> str:
        """Unique identifier of this sandbox."""
        return self._id

    @property
    def name(self) -> str:
        """Name given when it was opened; empty if none."""
        return self._settings.name

    @property
    def labels(self) -> dict[str, str]:
        """Labels given when it was opened."""
        return dict(self._settings.labels)

    @property
    def plan(self) -> Plan:
        """Policy, resolved for this host."""
        return self._inside.decided.plan

    @property
    def alive(self) -> bool:
        """Whether it can run commands: it is open, and neither it nor its network gateway was killed."""
        return not self._closed and self._inside.alive

    def violations(self) -> tuple[Event, ...]:
        """Protected names that appeared in the host's writable directories since it was opened."""
        from ..launch.view import appeared

        workspace = self._inside.decided.workspace
        return (*appeared(self.plan), *(() if workspace is None else appeared(workspace)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and not sys.is_finalizing():  # else the sandbox ends with this process
            self.close()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        where = f" of {str(self._settings.workspace)!r}" if self._settings.workspace else ""
        closed = " (closed)" if self._closed else ""
        return f"<Sandbox {self.id}{name}{where} on {self.enforced.backend}{closed}>"

    # ------------------------------------------------------------ for LIFETIMES

    @property
    def _is_open(self) -> bool:
        """Whether it is not closed."""
        return not self._closed

    @property
    def _in_use(self) -> bool:
        """Whether something that a caller asked for is running."""
        return self._inside.in_use

    def _end(self, why: str) -> None:
        """Close it even if something runs; later calls raise SandboxClosed with `why`."""
        self._ended_by = why
        self.close()

    # ------------------------------------------------------------ for Sandbox and AsyncSandbox

    def _warm_up(self) -> None:
        """Do the setup that the first command would otherwise wait for."""
        shell = self._now().main._shell
        said: list[bytes] = []
        shell.run(CommandSpec(b"", out=said.append, err=said.append))  # opens the files that stay open
        shell.state()

    def _tell(self, pids: Sequence[int], signal: int) -> set[int]:
        """Send `signal` to these processes inside (0: only test). Returns the pids that exist."""
        # A program inside sends them: it cannot reach processes outside.
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
