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
from functools import partial

from .. import check
from ..background import repeat
from ..errors import InvalidCall, LayerError, SandboxClosed, SessionError
from ..interrupts import owned, owned_method, unmistakable, unmistaken, unmistaken_method
from ..launch.signals import SIGKILL
from ..layers.drift import MOST_PATHS
from ..linux import open_files
from ..linux.process import REAPING
from ..policy.network import PATIENCE
from ..shell.command import CommandSpec
from . import arguments, changes, network_access, spawn
from .capture import captured, command_bytes
from .execution import drive
from .files import Files
from .open import settings as sandbox_settings
from .open.decide import decide
from .open.lifetimes import LIFETIMES
from .open_sandbox import MAIN, OpenSandbox
from .processes import LIST_SCRIPT, Process, parse_list
from .workspace.frozen import covered_in_workspace
from .workspace.snapshot import checked, extend, history, loaded, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from os import PathLike
    from socket import socket
    from typing import IO, Any, Literal, Never, Self, Unpack

    from ..command_rules.rules import CommandRules
    from ..egress_request import EgressRequest
    from ..enforcement import BackendName, Enforcement, Mode
    from ..events import Event
    from ..ipc.agent_client import SpawnedProcess
    from ..layers.changes import Change
    from ..layers.drift import Drift
    from ..layers.review import Committed, OnConflict, Review
    from ..learn.proposal import Learned
    from ..limits.usage import Usage
    from ..observe.audit import AuditTarget
    from ..packages.installed import Package
    from ..policy import Identity, Policy
    from ..policy.network import Network
    from ..policy.plan import Plan
    from .arguments import CommandVariables, StartOptions, StreamOptions, User, WaitedRunOptions
    from .changes import Restored
    from .environment import SandboxEnvironment
    from .files import AnyPath, ByteSource
    from .history.bisect import Bisected
    from .history.blame import BlamedLine
    from .history.past import PastFiles
    from .history.point import HistoryPoint, HistoryStep
    from .history.recorder import Recorder
    from .interpreter import CellResult
    from .merging import BestOf, ForkAttempt, Merge, OnMergeConflict, Test
    from .open.as_root import Account
    from .open.settings import CommandStart
    from .processes import Job, ProcessInfo
    from .result import Result
    from .session import Session, SessionState
    from .stream import Stream
    from .terminal import Terminal
    from .workspace.snapshot import Snapshot


@unmistakable(
    but=("run", "exec", "stream", "merge", "best_of"),
    also=("usage", "state"),
    own=(
        *("close", "pause", "processes", "reset", "resume", "session", "start", "terminal", "ps", "kill"),
        *("commit", "diff", "discard", "drift", "fork", "restore", "review", "snapshot"),
        *("history", "redo", "undo"),
    ),
)
class Sandbox:
    """A confined place to run commands in, open until `close()`.

    `workspace` is a host directory, mounted at /workspace; without it /workspace is empty and deleted on
    close. `mode` decides about writes to it. "overlay" keeps changes in the sandbox; with `freeze` it also
    hides later edits on the host, as "copy" always does. "bind" writes to the directory, "readonly" forbids
    writes. `env` sets variables for all programs inside. If the host cannot enforce part of the policy, the
    call raises PolicyNotEnforceable before anything runs, or with `best_effort` lists that part in
    `enforced`. With `history` there is a point to `undo` to after each command that changed files; with
    "interpreter" the points keep idle interpreters of `python` too. With `learn` its programs are watched,
    may read what you may read except secrets, and `learned` proposes a policy; with "refuse" they are watched
    under the policy itself, with "http" their requests to allowed hosts are inspected, too. `keep` names the
    changes, so that they stay after `close()` for the next sandbox of that name and `staddle diff`.
    `on_connect` decides about
    destinations that the policy's network leaves open; any answer but True within `on_connect_timeout`
    seconds refuses them. `on_request` decides in the same way about HTTP requests that no rule allows; the
    answer "always" also allows equal requests later. `on_command` is called before each command starts,
    `on_violation` for each refusal during a command, `on_result` after it; their errors propagate from the
    call. `audit` is a file, a stream or a function that receives a record of each of these and of every state
    change; see `staddle audit`.
    `identity`, `environment` and `base` replace the policy's fields. `workspace_at` is another path inside at
    which the workspace is also mounted; commands start there. `name`, `labels` and `id` identify it.

    All methods are thread-safe. After `close()` they raise SandboxClosed. A command that was running then
    returns a result with `Reason.closed`.
    """

    _closed = True  # until it is open

    def __init__(
        self,
        /,
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
        history: bool | Literal["interpreter"] = False,
        learn: bool | Literal["refuse", "http"] = False,
        on_request: Callable[[Event], Any] | None = None,
        **unknown: Never,
    ) -> None:
        asked = (workspace, policy, backend, mode, best_effort, env, keep, on_connect, on_connect_timeout)
        hooks = (on_command, on_result, on_violation, audit)
        rare: dict[str, Any] = {"workspace_at": workspace_at, "name": name, "labels": labels}
        rare |= {"identity": identity, "environment": environment, "base": base, "workdir": workdir}
        rare |= {"freeze": freeze, "history": history, "learn": learn, "on_request": on_request, **unknown}
        unmistaken(lambda: owned(lambda: self._begin(sandbox_settings.settings(*asked, *hooks, **rare))))

    def _begin(self, settings: sandbox_settings.SandboxSettings, snapshot: Snapshot | None = None) -> None:
        self._settings = settings
        self._id = os.urandom(8).hex()
        self._lock = threading.RLock()
        self._ended_by, self._last_asked = "", time.monotonic()
        open_files.have_standard_streams()
        with REAPING:
            self._inside = OpenSandbox(settings, snapshot)
        self._history = self._begin_history(self._inside)
        self._closed = False
        limits = settings.policy.limits
        if limits.max_lifetime is not None or limits.idle is not None:
            LIFETIMES.watch(self, limits)

    def _begin_history(self, inside: OpenSandbox) -> Recorder | None:
        if not self._settings.history:
            return None
        from .history.recorder import Recorder

        try:
            keeps = self._settings.history == "interpreter"
            recorder = inside.recorder = Recorder(inside, interpreters=keeps)
        except BaseException:
            inside.close()
            raise
        for session in inside.every_session():
            session._recorder = recorder
        return recorder

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
        hooks, recorder = None if ours else inside.hooks, self._history
        try:
            if hooks is not None:
                hooks.begin(spec, "")
            if recorder is not None and recorder.pending and not ours:
                recorder.begin()
            outcome = drive(spawn.execution(inside, spec, argv, inside.main._exec_context), cancel)
        except BaseException as error:
            if hooks is not None:
                hooks.failed(spec, error)
            raise
        result = spec.result(outcome)
        if recorder is not None and not ours:
            recorder.ended(result, spec.number)
        elif recorder is not None:
            recorder.wrote(result.changes, "background")
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

    def python(
        self,
        code: str,
        *,
        timeout: float | None = arguments.FROM_POLICY,
        session: str = "main",
        env: Mapping[str, str] | None = None,
        program: str = "python3",
        cwd: str | None = None,
    ) -> CellResult:
        """Run a cell in a Python interpreter of the sandbox. Returns its output, results and error.

        The first cell starts `python3` from the PATH inside; it keeps its variables for the next cells. Each
        `session` has its own interpreter. A fork begins with new ones. restore() ends it, unless the snapshot
        was taken with `processes="interpreter"`. If variables were lost, `lost` is True. After `timeout`
        seconds (default: the policy's) the cell is interrupted; None means no limit.

        `env` adds environment variables for this cell. A cell that starts the interpreter starts `program` in
        `cwd`; other cells ignore both.
        """
        from .interpreter import Interpreter

        interpreters = self._now().interpreters
        found = interpreters.get(session)
        if found is None:
            found = interpreters.setdefault(session, Interpreter(self))
        if not found.is_started:
            found.python = check.instance("program", program, str, 'use program="python3"')
            found.cwd = None if cwd is None else check.path("cwd", cwd, 'use cwd="src"')
        most = self._now().limits.timeout if timeout is arguments.FROM_POLICY else arguments.seconds(timeout)
        result = found.run(code, timeout=most, env=None if env is None else dict(env))
        if self._history is not None:
            self._history.program_ended(code, int(result.error is not None))
        return result

    def code(
        self,
        language: Literal["python"],
        code: str,
        *,
        timeout: float | None = arguments.FROM_POLICY,
        session: str = "main",
    ) -> CellResult:
        """Run a cell in a language's interpreter; only Python has one, see `python`."""
        if language != "python":
            raise InvalidCall(
                f"code({language!r}, …)",
                why="there is an interpreter that keeps its variables for Python only",
                fix="run the language's own program: sb.run, sb.exec, or sb.terminal for one that stays",
            )
        return self.python(code, timeout=timeout, session=session)

    def ps(self) -> list[ProcessInfo]:
        """List the running processes by pid, at most 2,000."""
        argv = (self._now().bash, "-c", LIST_SCRIPT)
        done = self._executed(argv, argv, {"timeout": 10, "cwd": "/"}, ours=True)
        return parse_list(done.stdout_bytes)

    def kill(self, pid: int, signal: int = SIGKILL) -> bool:
        """Send a signal to a process inside. Returns False if it does not exist or is another user's.

        `pid` is a number that `ps` lists.
        """
        check.count("pid", pid, 2, fix="give the number of a process, see ps()")
        check.count("the signal", signal, 1, 64, fix="give a number such as 15, or signal.SIGTERM")
        return bool(self._tell([pid], int(signal)))

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

    def connect(self, port: int) -> socket:
        """Connect to a server in the sandbox, at `port` of its 127.0.0.1 or ::1."""
        return network_access.connect(self._now(), port)

    def expose(self, port: int, host_port: int = 0) -> int:
        """Forward a port of the host's 127.0.0.1 (0: any free one) to `port` inside. Returns the host port.

        Every user of this host can connect to it.
        """
        return network_access.expose(self._now(), port, host_port)

    def set_network(self, network: Network) -> None:
        """Replace the network policy of the running sandbox; connections that it forbids are ended.

        The sandbox must have been opened with Network.allow(), Network.packages() or `on_connect`. `network`
        is an allow list or Network.deny(). Without `on_connect` it may not add ports that the first list
        lacks: then the call raises PolicyNotEnforceable and changes nothing.
        """
        inside = self._now()
        network_access.change(inside, network)
        self._settings = self._settings.replace(policy=self._settings.policy.with_network(network))
        inside.record("network", network=str(network))

    def refusals(self) -> tuple[Event, ...]:
        """Return the network's refusals that no result has reported yet."""
        inside = self._now()
        changed, found = inside.side_effects()
        if self._history is not None:
            self._history.wrote(changed, "background")
        if inside.hooks is not None:
            inside.hooks.refused(found)
        return found

    def events(self) -> tuple[Event, ...]:
        """Return the network attempts since the last call: allowed, refused, failed."""
        inside = self._now()
        return () if inside.network is None else inside.redacted(inside.network.events())

    def requests(self) -> list[EgressRequest]:
        """Return the HTTP requests to hosts with HTTP rules or secrets: the last thousand."""
        inside = self._now()
        return [] if inside.network is None else inside.network.requests()

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

    # ------------------------------------------------------------ changes and snapshots

    def diff(
        self, paths: Collection[str] | None = None, *, everything: bool = False, wait: bool = True
    ) -> list[Change]:
        """Return the changes that the sandbox made to the workspace, with paths as seen inside.

        `paths` limits them to these files or directories, relative to the session's directory; they may be in
        the home or in /tmp. `everything` adds the changes in the home and /tmp, after the workspace's. The
        call waits for running commands; background processes may change more meanwhile. With `wait=False` it
        waits for none, so files may be half written: to show them, not to judge them.
        """
        if not wait:
            if paths is not None or everything:
                raise InvalidCall(
                    "wait=False is for the whole workspace",
                    why="paths or everything is given",
                    fix="leave it out",
                )
            return changes.diff_now(self._now())
        return changes.diff(self._now(), paths, everything=everything)

    def packages(self) -> tuple[Package, ...]:
        """List the packages that pip, apt and npm installed inside, judged by the files in its layers."""
        from ..packages.installed import installed

        return installed(self.diff(everything=True))

    def keep_downloads(self) -> int:
        """Keep the downloads of its pip, uv and npm for `use_downloads`. Returns the number of files.

        Other sandboxes trust them as if the index had sent them: keep only what you would install.
        """
        from ..packages.installed import KEPT, keep

        home = self._now().decided.plan.identity.home
        return keep(self.diff([f"{home}/{path.rstrip('/')}" for path in KEPT]), home)

    def use_downloads(self) -> None:
        """Mount the kept downloads, which it cannot change, below the sandbox's own caches."""
        from ..packages.installed import PLACES, trees

        inside = self._now()
        workspace = changes.workspace_of(inside)
        home, store = inside.decided.plan.identity.home, workspace.stack.store
        for name in PLACES:
            self.files.mkdir(f"{home}/{name}", parents=True)
        found = trees(home, store.path, store.owner[0] if store.owner else None)
        extend(workspace, found)

    def commit(
        self,
        paths: Collection[str] | None = None,
        *,
        to: str | PathLike[str] | None = None,
        on_conflict: OnConflict = "refuse",
        allow: Collection[str] = (),
        allow_protected: bool = False,
        progress: Callable[[int, int], object] | None = None,
        review: Review | None = None,
    ) -> Committed:
        """Write the changes, or only those of `paths`, to the host: all of them or none.

        Before it writes, it raises CommitRefused with every file that has changed on the host meanwhile, and
        with protected names and new programs. `on_conflict` "overwrite", or a function that decides per file,
        overrides conflicts. `allow` lists accepted names, as paths below the workspace or globs;
        `allow_protected` accepts all. `progress` is called with the number of files done and the total. `to`
        is another directory to write to, where each file to be replaced is a conflict. With `review`, it
        writes only the reviewed changes; see `Review.commit`.
        """
        inside = self._now()
        work = partial(
            changes.commit,
            inside,
            paths,
            to,
            review,
            on_conflict=on_conflict,
            allow=allow,
            allow_protected=allow_protected,
            progress=progress,
        )
        if self._history is None or to is not None:
            return work()
        return self._history.commit(work, lambda done: bool(done.changes))

    def review(self, paths: Collection[str] | None = None) -> Review:
        """Return what `commit` would do, taken at one moment. Writes nothing.

        Background processes are stopped meanwhile. `review.commit()` writes exactly the reviewed changes, or
        reports which have changed since.
        """
        found = changes.review(self._now(), paths)
        found._set("_commit", self.commit)
        return found

    def discard(self, paths: Collection[str] | None = None) -> None:
        """Drop the changes, or those of `paths`: the workspace is again as on the host now.

        The home and /tmp stay unless `paths` names something in them. Shells and background processes
        continue; a background process in a replaced directory stays in the old one.
        """
        inside = self._now()
        work = partial(changes.discard, inside, paths)
        if self._history is None:
            return work()
        return self._history.around("discard", "", work)

    def snapshot(self, label: str = "", *, processes: Literal["none", "interpreter"] = "none") -> Snapshot:
        """Save the workspace, the home, /tmp, and the state of every session.

        It waits for running commands. The sandbox keeps the newest snapshot of each `label` until it is
        closed. A snapshot without a label lives as long as you hold it. With `processes="interpreter"`, a
        restore in this sandbox also continues the interpreters of `python`, with their variables;
        `Snapshot.processes` tells which.
        """
        inside = self._now()
        check.one_of("processes", processes, ("none", "interpreter"))
        if inside.enforced_limits is not None and inside.enforced_limits.is_disk_full:
            raise LayerError(
                "no snapshot can be taken",
                why="the sandbox and its snapshots take more than limits.disk",
                fix="close snapshots, remove files, or open the sandbox with a higher limit",
            )
        if processes == "none":
            taken = changes.at_rest(inside, partial(take, label=label))
        else:
            from .interpreter_twins import snapshot_with

            taken = changes.at_rest(inside, partial(snapshot_with, inside, label))
        if label:
            inside.labelled[label] = taken
        inside.record("snapshot", label=label, method=taken.method)
        return taken

    def snapshots(self) -> list[Snapshot]:
        """List the snapshots that are not closed, oldest first; their `parent` makes them a tree.

        `close()` deletes one.
        """
        return history(changes.workspace_of(self._now())).listed()

    def restore(self, snapshot: Snapshot | str, *, processes: Literal["end", "keep"] = "end") -> Restored:
        """Return to a snapshot of this sandbox, of its parent, or of a fork of it.

        A string is a label: the newest snapshot that has it.

        The call waits for running commands. It ends background processes, jobs and terminals and lists them
        in `ended`: they would go on with files that no longer exist. With `processes="keep"` they continue in
        directories that nobody else sees. `drift` lists the host's changes since the snapshot, judged by a
        sample of entries; `snapshot.drift()` checks all.
        """
        check.one_of("processes", processes, ("end", "keep"))
        if isinstance(snapshot, str):
            snapshot = changes.labelled(self.snapshots(), snapshot)
        inside = self._now()
        work = partial(changes.go_back, inside, checked(snapshot), processes)
        return work() if self._history is None else self._history.around("restore", snapshot.label, work)

    def drift(self, *, limit: int = MOST_PATHS) -> Drift:
        """Return the host's changes to the workspace since this sandbox, or its origin by fork, opened it.

        For a frozen workspace: since the copy, which does not show them. Paths that the sandbox changed as
        well are omitted; see `Change.conflict`. It walks the workspace and returns at most `limit` paths.
        """
        return changes.at_rest(self._now(), lambda workspace, _: workspace.drift(limit))

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot | str | PathLike[str],
        workspace: str | PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Open a new sandbox from a snapshot, or from a saved snapshot file, with all its sessions.

        If the file holds a copy of the workspace's directory, that copy is below the layers. If not, or with
        `freeze=False`, give a `workspace` with the contents of that time. Without either, only files that the
        sandbox wrote are there. `options` are those of a new sandbox.
        """
        with loaded(snapshot) as point:
            made = cls(workspace, **options)
            try:
                made._go_on(point, options.get("freeze") is not False)
            except BaseException:
                made.close()
                raise
            return made

    @property
    def frozen(self) -> bool:
        """Whether its workspace hides later edits on the host: below it is a copy, or no directory."""
        workspace = self._now().workspace
        return workspace is not None and workspace.is_frozen

    def fork(self, n: int = 1, *, freeze: bool | None = None) -> list[Self]:
        """Open `n` sandboxes that continue from here, each with its own processes and changes.

        If the workspace's directory is small, all share one copy of it, so that later edits on the host are
        not seen. `freeze=True` also copies a large directory, and raises LayerError if it cannot. With
        `freeze=False` they use the directory itself, unless this sandbox is frozen.
        """
        check.count("the number of forks", n, fix="use fork(2)")
        point = self.snapshot("fork")
        try:
            settings = self._settings if freeze is False else self._freeze(point, asked=bool(freeze))
            made = repeat(partial(self._continued, settings, point), n, undo=lambda fork: fork.close())
        finally:
            point.close()
        for name in self._now().interpreters:
            from .interpreter import Interpreter

            for each in made:
                each._inside.interpreters[name] = Interpreter(each, is_anew=True)
        self._now().record("forked", count=n)
        return made

    def merge(
        self,
        *forks: Sandbox,
        test: Test | None = None,
        on_conflict: OnMergeConflict = "refuse",
        paths: Collection[str] | None = None,
    ) -> Merge:
        """Merge the work of `forks` into this sandbox, by file and by line: all of it or nothing.

        The changes of each fork since it was forked are added to the files here, one fork after the other.
        `test`, a command or a function that gets a sandbox, is run in a fork that has the merge; if it fails,
        nothing is written. Conflicts are in the result, and nothing is written. `on_conflict` resolves them:
        "ours" keeps this sandbox's version, "theirs" the fork's, in a text only of the lines in conflict. A
        function gets each `MergeConflict`, and returns one of these, "refuse", or the content as bytes.
        `paths` limits the merge. The home and /tmp are not merged. Forks stay open. To undo the merge,
        restore its `before`.
        """
        from .merging import merge

        return merge(self, forks, test, on_conflict, paths)

    def best_of(
        self,
        n: int,
        attempt: Callable[[Sandbox, int], object],
        test: Test,
        *,
        keep: Literal["all", "first"] = "all",
        progress: Callable[[ForkAttempt], object] | None = None,
    ) -> BestOf:
        """Make `n` attempts in forks, in parallel, and merge those that pass the test.

        `attempt` gets a fork and its index, in a thread of its own. `test`, a command or a function that gets
        a sandbox, decides, in a fork of the attempt and again for the merge. Of attempts that conflict, or
        fail together, the earlier ones are merged. `keep="first"` merges only the first that passed. An
        exception of an attempt is in its row. `progress` gets each `ForkAttempt` at its end. All forks are
        closed then.
        """
        from .merging import best_of

        return best_of(self, n, attempt, test, keep=keep, progress=progress)

    def learned(self) -> Learned:
        """Propose the smallest policy for the commands so far, for a sandbox opened with `learn=True`.

        `text()` of the result is a policy file with a reason for each line, `policy` its value, `facts` what
        was used. What the default denies for a reason is only a comment, and in `warnings`. The record is
        advice: a hostile command can make it wrong.
        """
        if self._settings.learning is None:
            raise InvalidCall(
                "this sandbox does not learn", why="it was opened without learn=True", fix="open it with that"
            )
        return self._learned()

    def _learned(self, before: str = "") -> Learned:
        """Propose a policy that adds to the policy file `before`."""
        learning, network = self._settings.learning, self._now().network
        assert learning is not None  # noqa: S101 - the callers have asked for it
        if network is not None:
            network.settle()
        return learning.learned(before, self.requests())

    # ------------------------------------------------------------ history

    def history(self) -> list[HistoryPoint]:
        """List the points of a sandbox opened with `history=True`, oldest first, up to the present.

        The first point is the beginning; each further one is the state after a command that changed files.
        Changes of `files` and of background programs are points of their own.
        """
        return self._recorder().listed()

    def undo(self, n: int = 1) -> HistoryStep:
        """Take back the last `n` points: files and shells are as before them. Returns the points taken back.

        It waits for running commands, and ends background processes, jobs and terminals. `redo` returns until
        something else changes. The host's files do not change: `undo` does not go back over a commit.
        """
        return self._recorder().undo(check.count("the number of points", n, fix="use undo(2)"))

    def redo(self, n: int = 1) -> HistoryStep:
        """Return to the state before the last undo, or `n` points forward. Ends processes, as `undo`."""
        return self._recorder().redo(check.count("the number of points", n, fix="use redo(2)"))

    def at(self, point: HistoryPoint | int) -> PastFiles:
        """Return the files as they were at a point of `history()`, for reading; a number names the point."""
        from .history.past import PastFiles

        recorder = self._recorder()
        found = recorder.found(point)
        return PastFiles(found, partial(self._fork_at, found, hooks=None))

    def bisect(
        self,
        test: str | Sequence[str] | Callable[[Sandbox], object],
        *,
        good: HistoryPoint | int | None = None,
        bad: HistoryPoint | int | None = None,
        repeat: int = 1,
    ) -> Bisected:
        """Find the first point after which `test` fails, between `good` (default: first) and `bad` (last).

        It runs the test in one fork, and the present does not change. `test` is a command, an argv, or a
        function of a sandbox that returns a Result, an exit code or a bool. Exit codes: 0 is good, 125 skips
        the point, any other up to 127 is bad. With `repeat`, a point is good if the test passes each time.
        """
        from .history.bisect import Bisection

        points = self._recorder().between(good, bad)
        with self._fork_at(points[-1]) as fork:
            return Bisection(points, test, repeat, fork).run()

    def blame(self, path: AnyPath, *, audit: bool = False) -> list[BlamedLine]:
        """Return the lines of a text file, each with the point that last wrote it.

        A renamed file begins at its new name. Lines from before the history belong to its first point. With
        `audit` the audit log gets the numbers of the lines by point.
        """
        from .history.blame import blame, by_point

        recorder = self._recorder()
        hooks = self._now().hooks
        if audit and (hooks is None or not hooks.audits):
            raise InvalidCall(
                "there is no audit log to write to",
                why="the sandbox was opened without audit=",
                fix="open it with Sandbox(..., audit=FILE)",
            )
        self.files.open(path).close()  # with the rights of the sandbox's user
        place = os.fsdecode(self.files.realpath(path))
        points = recorder.listed()
        ((root, (below,)),) = changes.workspace_of(self._now()).by_tree([place], "/").items()
        found = blame(points, root, below)
        if audit:
            self._now().record("blame", path=place, points=by_point(found))
        return found

    def _recorder(self) -> Recorder:
        self._now()
        recorder = self._history
        if recorder is None:
            raise InvalidCall(
                "this sandbox has no history",
                why="it was opened without history=True",
                fix="open it with Sandbox(..., history=True)",
            )
        return recorder

    def _fork_at(self, point: HistoryPoint, **without: None) -> Self:
        """Open a fork at a point, without a history."""
        settings = self._settings.replace(history=False, **without)
        if point.snapshot.frozen and settings.freeze is False:
            settings = settings.replace(freeze=None)
        return unmistaken(lambda: owned(lambda: self._continued(settings, point.snapshot)))

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
            history = self._begin_history(fresh)
            old, self._inside, self._history = self._inside, fresh, history
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

    def _go_on(self, snapshot: Snapshot, with_base: bool) -> None:
        """Restore the snapshot with all its sessions and its copy of the directory."""
        for name in snapshot.sessions:
            self.session(name)
        inside = self._now()
        if with_base and inside.workspace is not None and not covered_in_workspace(inside.decided.plan):
            inside.workspace.takes_saved_base = True
        self.restore(snapshot)
        if inside.workspace is not None:
            inside.workspace.takes_saved_base = False

    def _freeze(self, point: Snapshot, *, asked: bool) -> sandbox_settings.SandboxSettings:
        """Freeze the directory below a snapshot if possible. Returns the settings for the forks."""
        from .workspace.overlay import OverlayWorkspace

        given, workspace = self._settings, self._now().workspace
        base = point.freeze(asked=asked)
        if base is not None and isinstance(workspace, OverlayWorkspace):
            workspace.keep_for_forks(base)
        return given.replace(freeze=None) if point.frozen and given.freeze is False else given

    def _start_interpreter(
        self, argv: Sequence[str], stdio: int, cwd: str | None, env: Mapping[str, str]
    ) -> SpawnedProcess:
        return owned(lambda: spawn.interpreter(self._now(), argv, stdio, cwd, env))

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
