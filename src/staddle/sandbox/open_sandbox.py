"""State of one open sandbox in the host program; a `Sandbox` has one at a time."""

from __future__ import annotations

import os
import select
import threading
from itertools import count
from weakref import WeakSet

from ..errors import InvalidCall, LaunchFailed, SessionError, StaddleError
from ..events import Event
from ..interrupts import uninterruptible
from ..ipc import file_messages
from ..layers.store import user_of_this_process
from ..linux.file_room import FILE_ROOM
from ..policy.root_scripts import NEEDS_NETWORK, NEEDS_ROOT
from ..shell.idle import TO_OPEN, TO_START
from ..shell.shell import Shell
from ..shell.shell_state import FirstState
from ..shell.usage_meter import SandboxMeter, UsageMeter
from .file_client import FileClient
from .open import as_root
from .open.open import open_agent
from .processes import ProcessList
from .session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from ..ipc.agent_messages import Who
    from ..layers.changes import Change
    from ..learn.learning import Learning
    from ..learn.recording import UseRecorder
    from ..limits.usage import Usage
    from ..observe.redaction import Secrets
    from .execution import Execution
    from .hooks import Hooks
    from .interpreter import Interpreter, Twin
    from .open.as_root import Account
    from .open.handle import SandboxHandle
    from .open.settings import SandboxSettings
    from .result import Result
    from .session import SessionState
    from .stream import PointTaker
    from .terminal import Terminal
    from .workspace.snapshot import Snapshot
    from .workspace.workspace import SandboxWorkspace

    class FilesRecorder(PointTaker, Protocol):
        """History of a sandbox, as its open state knows it."""

        def wrote(self, found: tuple[Change, ...] | None) -> None: ...
        def close(self) -> None: ...


#: Name of the session that every sandbox has.
MAIN = "main"
_NUMBERS = count(1)
#: The most seconds that closing waits for maintenance of an idle shell.
_MAINTENANCE = 5.0
#: All open sandboxes of this process.
_EVERY: WeakSet[OpenSandbox] = WeakSet()


def _after_fork() -> None:
    FILE_ROOM.forget()
    for inside in list(_EVERY):
        inside.is_ours = False
        inside.agent.forsake()
        for client in inside.file_clients:
            client.forsake()


os.register_at_fork(after_in_child=_after_fork)


class OpenSandbox:
    """One open sandbox, with the state that the host program keeps for it.

    `agent` is the client of its agent, `decided` its backend and plan. `uid` is the user id of its processes
    on the host, if not ours. `workspace` stores its changes, unless they go directly to the host.
    """

    #: False in a forked child of the process that opened it.
    is_ours = True
    #: Takes the points of its history; None without one.
    recorder: FilesRecorder | None = None
    #: Records what its programs use; None if it does not learn.
    uses: UseRecorder | None = None

    def __init__(self, settings: SandboxSettings, snapshot: Snapshot | None = None) -> None:
        self.limits, self.rules = settings.policy.limits, settings.policy.rules
        self.user = user_of_this_process()
        if self.rules is not None:
            self.rules.ready()
        if not hasattr(select, "epoll") or not hasattr(select, "poll"):
            raise LaunchFailed(
                "a sandbox cannot be opened",
                why="gevent or eventlet has patched this program, and `select` waits for nothing any more",
                fix="leave out `select` and `thread` when you patch, or open them in a process of their own",
            )
        try:
            workspace = snapshot.new_workspace if snapshot else lambda: None
            FILE_ROOM.run_with(TO_OPEN, lambda: self._take_over(open_agent(settings, workspace()), settings))
        except (BlockingIOError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "thread" not in str(error):
                raise
            raise LaunchFailed(
                "a sandbox cannot be opened",
                why=f"this user may have no more processes and threads ({error})",
                fix="raise the limit (ulimit -u, pids.max), or end some",
            ) from error
        if settings.learning is not None:
            self._learn(settings.learning)
        if snapshot is not None:
            for name in snapshot.sessions:
                snapshot.continue_in(self.main if name == MAIN else self.session(name), self.workspace)
        elif self.workspace is not None and self.workspace.keeps_shells:
            self._continue_shells(self.workspace)
        if settings.workdir is not None and snapshot is None:
            self._enter(settings.workdir)

    def _take_over(self, opened: SandboxHandle, settings: SandboxSettings) -> None:
        self.agent, self.first_shell, self.decided = opened.agent, opened.shell, opened.decided
        self.bash, self.uid = opened.bash, opened.uid
        self.ids, self._base = opened.ids, opened.base
        self._environment, self._directory = opened.decided.environment, opened.directory
        self.workspace, self.network, self.enforced_limits = opened.workspace, opened.network, opened.limits
        self._meter = SandboxMeter(self.agent, self.enforced_limits)
        self.hooks: Hooks | None = None
        #: Values that are redacted in output; None if there are none.
        self.secrets: Secrets | None = self.decided.secrets
        try:
            if settings.hooks is not None:
                self._open_hooks(settings)
            directory, plan = self._directory or None, self.decided.plan
            first = plan.derived.setdefault(FirstState, FirstState())
            shell = Shell(
                *(self.agent, self.first_shell),
                directory=directory,
                meter=self.meter(),
                start=plan.cwd,
                first=first,
            )
        except BaseException:
            self.agent.close()
            raise
        self.main = Session(
            MAIN,
            shell,
            self.limits,
            side_effects=self.side_effects,
            hooks=self.hooks,
            secrets=self.secrets,
        )
        self.main._rules = self.rules
        self._has_sudo = False
        mode, self.main._explain = self.decided.plan.network.mode, needs_root
        if mode == "deny" and not self.decided.is_filtered:
            self.main._explain = denied
        elif mode == "loopback" and not self.decided.plan.asks:
            self.main._explain = beyond_loopback
        if settings.policy.sudo and self.decided.backend.name == "namespaces":
            self.main._allow_sudo = self.allow_sudo
        self.named: dict[str, Session] = {}
        self.executions: set[Execution] = set()
        self.terminals: list[Terminal] = []
        self.interpreters: dict[str, Interpreter] = {}  # of `Sandbox.python`, by session
        self.twins: list[Twin] = []  # of interpreters, which open snapshots keep
        self.labelled: dict[str, Snapshot] = {}  # newest snapshot of each label
        self.processes = ProcessList()
        self.file_client = FileClient(self.agent)
        self.file_clients = [self.file_client]
        self._clients: dict[Who, FileClient] = {}  # of other users
        self._adding = threading.Lock()
        _EVERY.add(self)

    def _learn(self, learning: Learning) -> None:
        """Watch every program from now on; the first shell, which runs already, is replaced."""
        try:
            self.uses = learning.begin(self.agent, self.decided.backend.name)
            self.main.restart()
        except BaseException:
            self.close()
            raise

    def _open_hooks(self, settings: SandboxSettings) -> None:
        from .hooks import Hooks

        if settings.hooks is not None:
            self.hooks = Hooks(settings.hooks, settings, self.decided, self.secrets)
            if self.network is not None and self.hooks.audits:
                self.network.on_event = self.hooks.attempt

    def _enter(self, directory: str) -> None:
        """Start the main session in `directory`. Raises InvalidCall if it does not exist inside."""
        from ..shell.command import CommandSpec
        from ..shell.quoting import quoted

        text = b"builtin cd -- " + quoted(os.fsencode(directory))
        done = self.main._shell.run(CommandSpec(text, out=lambda _: None, err=lambda _: None))
        if done.exit_code:
            self.close()
            raise InvalidCall(
                f"the session cannot begin in {directory!r}",
                why="there is no such directory inside, or it cannot be entered",
                fix="name a directory of the workspace, or an absolute path inside",
            )

    def record(self, what: str, **facts: object) -> None:
        """Write a line to the audit log, if there is one."""
        if self.hooks is not None:
            self.hooks.record(what, **facts)

    def session(self, name: str, other: Account | None = None) -> Session:
        """Return the named session, created if missing; with `other`, as that user."""
        found = self.named.get(name)
        if found is None:
            environment = self._environment if other is None else other.variables(self._environment)
            found = self._add_session(name, environment, self._directory, other)
        if other is not None and found._user != other.name:
            raise InvalidCall(
                f"the session {name!r} is not {other.name}'s",
                why=f"it was made without user={other.name!r}",
                fix="choose another name",
            )
        return found

    def single_session(self, other: Account, context: SessionState) -> Session:
        """Create a session of another user for one command, with the directory and variables of `context`."""
        name = f"{other.name}-{next(_NUMBERS)}"
        made = self._add_session(name, other.variables(context.env), context.cwd, other)
        made._is_single = True
        return made

    def allow_sudo(self) -> None:
        """Make the agent serve `sudo`, and put the system in layers for its commands; once."""
        if not self._has_sudo and self.decided.plan.identity.uid:
            self._has_sudo = True
            as_root.prepare_system(self.decided, self.workspace)
            self.agent.allow_sudo()

    def client_of(self, other: Account | None) -> FileClient:
        """Return the client of the file server that has this user's rights."""
        if other is None:
            return self.file_client
        with self._adding:
            if other.who not in self._clients:
                self._clients[other.who] = FileClient(self.agent, other.who)
                self.file_clients.append(self._clients[other.who])
            return self._clients[other.who]

    def read_file(self, path: str, limit: int) -> bytes:
        """Read at most `limit` bytes of a file inside, with the rights of the session's user."""
        with open(self.file_client.open(file_messages.OPEN, os.fsencode(path)), "rb") as file:
            return file.read(limit)

    def host_uid(self, other: Account | None) -> int | None:
        """Return the host uid of this user's processes, if not ours."""
        return self.uid if other is None or self._base < 0 else self._base + other.uid

    def _add_session(
        self, name: str, environment: Mapping[str, str], directory: str, other: Account | None
    ) -> Session:
        who = None if other is None else other.who
        if directory:  # keeps the name of a linked directory
            environment = {**environment, "PWD": directory}
        with FILE_ROOM.reserve(TO_START):
            started = self.agent.shell(environment, directory, self.bash, who=who)
            start = directory or self.decided.plan.cwd
            shell = Shell(self.agent, started, meter=self.meter(), start=start)
        made = Session(
            name,
            shell,
            self.limits,
            self._forget,
            self.side_effects,
            hooks=self.hooks,
            secrets=self.secrets,
        )
        self.named[name] = made
        made._allow_sudo = None if other is not None else self.main._allow_sudo
        made._explain, made._recorder = self.main._explain, self.recorder
        made._user, made._rules = "" if other is None else other.name, self.rules
        return made

    def _forget(self, session: Session) -> None:
        self.named.pop(session.name, None)

    def side_effects(
        self, who: Callable[[], str] = str
    ) -> tuple[tuple[Change, ...] | None, tuple[Event, ...]]:
        """Return the changes in the layers and the network's refusals since the last call.

        `who` names the command that caused them.
        """
        workspace, network = self.workspace, self.network
        refused = self.redacted(network.refused(who)) if network and network.has_gateway else ()
        return workspace.changes() if workspace else (), refused

    def redacted(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """Redact the values of secrets in events."""
        secrets = self.secrets
        return tuple(map(secrets.event, events)) if events and secrets else events

    def pass_over(self) -> None:
        """Exclude the host program's own changes from the next side effects, unless a command runs."""
        workspace = self.workspace
        if workspace and not self.executions and not any(one._shell.busy for one in self.every_session()):
            found = workspace.changes()
            if self.recorder is not None:
                self.recorder.wrote(found)

    @property
    def alive(self) -> bool:
        """Whether its agent runs, and its gateway, if it has one."""
        return self.agent.alive and (self.network is None or self.network.alive)

    @property
    def in_use(self) -> bool:
        """Whether a command, a program, a terminal or a file request is in progress."""
        return (
            any(session._shell.busy for session in self.every_session())
            or bool(self.executions)
            or self.processes.running
            or any(not terminal.closed for terminal in self.terminals)
            or any(client.busy for client in self.file_clients)
        )

    def pause(self) -> None:
        """Freeze all its cgroups, or stop it by signals. Raises SessionError if signals cannot stop it."""
        for session in self.every_session():
            session._shell.maintain()  # a paused shell cannot report its state
        try:
            self._stop()
        except BaseException:
            try:
                self.resume()
            finally:
                # Else a snapshot would take it for paused, and leave it stopped for good.
                self.agent.is_paused = False
            raise

    def _stop(self) -> None:
        limits = self.enforced_limits
        self.agent.is_paused = True
        for client in self.file_clients:
            client.replace_server()  # the new server is not frozen with the rest
        if limits is not None and limits.freeze():
            return
        mark, timers = self.agent.pause()
        if mark >= 0 and not timers:
            return
        raise SessionError(
            "the sandbox cannot be paused",
            why="a program in it has a timer that continues it"
            if timers
            else "a program in it does not stop, or continues at once",
            fix="end it, or run where the sandbox has a control group",
        )

    @uninterruptible
    def resume(self) -> None:
        """Continue it, whether it was frozen or stopped by signals."""
        if self.enforced_limits is not None:
            self.enforced_limits.thaw()
        self.agent.resume()
        self.agent.is_paused = False
        for client in self.file_clients:
            client.replace_server()

    def _continue_shells(self, workspace: SandboxWorkspace) -> None:
        """Restore the kept state of every session; skip a state that no shell can have."""
        for name, shell in workspace.kept_shells(self._environment).items():
            session = self.main if name == MAIN else self.session(name)
            with session._shell.lock():
                try:
                    session._shell.become(shell)
                except (StaddleError, ValueError):
                    session._shell.become(None)

    def _keep_shells(self, workspace: SandboxWorkspace) -> None:
        """Save the state of every idle session. Failures here do not prevent closing."""
        kept = dict(workspace.kept_shells(self._environment))
        for session in self.every_session():
            lock = session._shell.lock()
            # Without a command, only maintenance holds the lock, for a short time.
            if session._user or session._shell.busy or not lock.acquire(timeout=_MAINTENANCE):
                continue  # a command runs: the state saved before remains
            try:
                kept[session.name] = session._shell.saved()
            except (StaddleError, OSError, ValueError):
                continue
            finally:
                lock.release()
        try:
            workspace.keep_shells(kept, self._environment)
        except OSError:
            return

    def usage(self) -> Usage:
        """Return the resources used so far."""
        return self._meter.total()

    def meter(self) -> UsageMeter:
        """Return a meter for one shell or one program."""
        return UsageMeter(self._meter, self.agent, self.enforced_limits)

    def every_session(self) -> list[Session]:
        """Return all sessions, main first."""
        return [self.main, *self.named.values()]

    def close(self) -> None:
        """End the sandbox. Running commands notice it themselves."""
        hooks, self.hooks = self.hooks, None
        try:
            if hooks is not None:
                for process in self.processes.started:
                    process.poll()  # records an end that was not noticed yet
                for terminal in self.terminals:
                    terminal.poll()
                hooks.refused(self.redacted(self.network.refused(str)) if self.network else ())
                hooks.close(alive=self.agent.alive)
        finally:
            self._close()

    @uninterruptible
    def _close(self) -> None:
        if self.workspace is not None and self.workspace.keeps_shells and not self.agent.is_paused:
            self._keep_shells(self.workspace)
        self.labelled.clear()
        if self.recorder is not None:
            self.recorder.close()
        self.agent.is_paused = False  # it will not be resumed
        if not self.in_use:
            # An agent that first sees its shell end would clean up for nothing.
            self.agent.close()
        for execution in list(self.executions):
            execution.close()
        for client in self.file_clients:
            client.close()
        try:
            for session in self.every_session():
                session.close()
        finally:
            self.agent.close()
        self.processes.close()
        for terminal in self.terminals:
            terminal.close()
        for interpreter in self.interpreters.values():
            interpreter.drop()
        for twin in self.twins:
            twin.close("its sandbox was closed")
        if self.uses is not None:
            self.uses.close()


# Explanations for commands that failed because the network is denied, or because they need root.
#
# In a sandbox without a network, or with loopback only, nothing reports an attempt to connect. Nothing
# reports a missing right to write either. Both are recognised by well-known messages, and by the exit status
# of curl and wget. A program that prints such a message on purpose gets a hint that does not apply.


#: Bytes at the end of each stream that are searched.
_LOOKED_AT = 8 << 10
#: Messages of resolvers and programs when a name or an address cannot be reached.
_SIGNS = (
    *(b"Could not resolve host", b"Temporary failure in name resolution", b"Temporary failure resolving"),
    *(b"Name or service not known", b"Network is unreachable", b"getaddrinfo EAI_AGAIN", b"ENETUNREACH"),
    *(b"getaddrinfo ENOTFOUND", b"Could not resolve '", b"Could not resolve hostname", b"dns error"),
    *(b"No address associated with hostname", b"unable to resolve host address", b"failed to lookup address"),
    NEEDS_NETWORK.encode(),
)
#: Exit statuses of quiet programs for the same failures, and addresses inside the sandbox.
_QUIET = {4: "wget", 6: "curl", 7: "curl"}
_HERE = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - nothing is bound
WHY = "the network is denied by the policy: nothing outside can be reached"
LOOPBACK_WHY = "the policy allows ports of the loopback only: nothing else can be reached"
ALLOW = "policy.with_network(Network.allow('HOST')), or Network.packages() for pip, npm and apt"
#: Messages of apt, and of our script after it, to a user who is not root.
_ROOT_SIGNS = (NEEDS_ROOT.encode(), b"are you root?")
ROOT_WHY, ROOT_ALLOW = NEEDS_ROOT, "sudo, or sb.run(..., user='root')"


def denied(result: Result, why: str = WHY) -> Result:
    """Add the reason to a failed command's result if it was the network or a missing root."""
    event = Event("refused", "network", why, ALLOW)
    return _marked(needs_root(result), _SIGNS, event, is_sure=_is_quiet_download(result))


def beyond_loopback(result: Result) -> Result:
    """As `denied`, for a sandbox with loopback only."""
    return denied(result, LOOPBACK_WHY)


def needs_root(result: Result) -> Result:
    """As `denied`, for a sandbox whose network is not denied."""
    return _marked(result, _ROOT_SIGNS, Event("refused", "root", ROOT_WHY, ROOT_ALLOW))


def _is_quiet_download(result: Result) -> bool:
    """Whether quiet curl or wget failed with the status for a name or a connection."""
    name = _QUIET.get(result.exit_code)
    text = result.command if isinstance(result.command, str) else " ".join(result.command)
    return name is not None and name in text and not any(place in text for place in _HERE)


def _marked(result: Result, signs: tuple[bytes, ...], event: Event, *, is_sure: bool = False) -> Result:
    said = result.stderr_bytes[-_LOOKED_AT:] + b"\n" + result.stdout_bytes[-_LOOKED_AT:]
    if result.why or not (is_sure or any(sign in said for sign in signs)):
        return result
    why = f"{event.rule}; allow it with {event.allow}"
    return result.replace(why=why, violations=(*result.violations, event))
