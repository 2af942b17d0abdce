"""`Session`: one shell with its state, which runs one command at a time."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from weakref import ref

from ..errors import SandboxClosed, SessionBusy
from ..interrupts import free_within, uninterrupted, unmistakable
from ..launch.signals import SIGINT
from ..shell.command import Outcome
from ..shell.state import State
from .arguments import FROM_POLICY
from .capture import CapturedCommand
from .execution import LOOK_EVERY, drive
from .stream import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from typing import Never, Self
    from weakref import ReferenceType

    from ..command_rules.rules import CommandRules
    from ..observe.redaction import Secrets
    from ..policy.limits import Limits
    from ..shell.shell import Shell
    from .arguments import CommandVariables, Heard, Stdin
    from .capture import SideEffects
    from .hooks import Hooks
    from .result import Result
    from .stream import PointTaker

#: The number of commands that a session's history holds, and the length of each.
_REMEMBERED = 1000
_REMEMBERED_BYTES = 10_000
_REMEMBERED_JOBS = 100


def names_sudo(command: str) -> bool:
    """Whether a command may run `sudo` or `su`, which need a root user in the sandbox."""
    if "su" not in command:
        return False
    if "sudo" in command:
        return True
    at = command.find("su ")
    return at == 0 or (at > 0 and not command[at - 1].isalnum())


class SessionState(State):
    """State of a session: that of its shell, and its commands, newest last."""

    history: tuple[str, ...] = ()


@unmistakable(own=("close", "restart"))
class Session:
    """A shell in a sandbox, with variables, functions, a directory and jobs of its own.

    It runs one command at a time; a second command waits. All methods are thread-safe.
    """

    def __init__(
        self,
        name: str,
        shell: Shell,
        limits: Limits,
        on_close: Callable[[Session], None] = lambda _: None,
        side_effects: SideEffects | None = None,
        *,
        hooks: Hooks | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.name = name
        self._secrets = secrets
        self._shell = shell
        self._limits = limits
        self._on_close = on_close
        self._side_effects = side_effects
        self._hooks = hooks
        self._closed = self._ended = False
        #: User, if not the sandbox's own, and whether the session ends after its first command.
        self._user, self._is_single = "", False
        self._rules: CommandRules | None = None  # of the policy
        self._recorder: PointTaker | None = None  # of the sandbox's history
        self._allow_sudo: Callable[[], None] | None = None
        self._explain: Callable[[Result], Result] | None = None  # adds the reason of a failure
        self._stream: ReferenceType[Stream] | None = None
        self._busy: set[int] = set()  # ids of threads with a command here
        self._history: deque[str] = deque(maxlen=_REMEMBERED)
        self._jobs: dict[int, str] = {}  # newest job after a command: that command

    def run(
        self,
        command: str,
        *,
        timeout: float | None = FROM_POLICY,
        cwd: str | PathLike[str] | None = None,
        env: CommandVariables = None,
        stdin: Stdin = None,
        on_stdout: Heard = None,
        on_stderr: Heard = None,
        check: bool = False,
        spill: str | PathLike[str] | None = None,
        merge: bool = False,
        output_limit: int | str | None = FROM_POLICY,
        cancel: threading.Event | None = None,
        **unknown: Never,
    ) -> Result:
        """Run `command` in the shell and wait for its end. A command that fails returns a result as well.

        `timeout` is in seconds (default: the policy's); None means no limit. `cwd` and `env` apply to this
        command only; a variable with the value None is unset. `stdin` is text, bytes or a file, which is read
        to its end (default: empty). `on_stdout` and `on_stderr` are called with text as it arrives; an error
        in them ends the command and propagates. `spill` is a host directory for output that exceeds the
        limit. `check` raises CommandFailed, with the result, if the command fails. `merge` sends stderr to
        `stdout`, in the order printed. `output_limit` replaces the policy's limit on the bytes kept. Setting
        `cancel` ends the command with the reason `cancelled`.
        """
        spec = CapturedCommand(
            command,
            self._limits,
            timeout=timeout,
            stdin=stdin,
            env=env,
            cwd=cwd,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            spill=spill,
            merge=merge,
            output_limit=output_limit,
            secrets=self._secrets,
            **unknown,
        )
        me, hooks, recorder = self._entering(), self._hooks, self._recorder
        try:
            if hooks is not None:
                hooks.begin(spec, self.name)
            if recorder is not None and recorder.pending:
                recorder.begin()
            self._busy.add(me)
            self._remember(command)
            outcome = self._shell.run(spec) if cancel is None else self._cancellable(spec, cancel)
        except BaseException as error:
            spec.abandon()
            if hooks is not None:
                hooks.failed(spec, error)
            raise
        finally:
            self._busy.discard(me)
        result = self._result(spec, outcome)
        if recorder is not None:
            recorder.ended(result)
        if hooks is not None:
            hooks.end(spec, result)
        return result.check() if check else result

    def stream(
        self,
        command: str,
        *,
        timeout: float | None = FROM_POLICY,
        cwd: str | PathLike[str] | None = None,
        env: CommandVariables = None,
        stdin: Stdin = None,
        spill: str | PathLike[str] | None = None,
        merge: bool = False,
        output_limit: int | str | None = FROM_POLICY,
        **unknown: Never,
    ) -> Stream:
        """Run `command` and iterate over its output as it arrives; afterwards `.result` is set."""
        spec = CapturedCommand(
            command,
            self._limits,
            timeout=timeout,
            stdin=stdin,
            env=env,
            cwd=cwd,
            spill=spill,
            merge=merge,
            output_limit=output_limit,
            streamed=True,
            secrets=self._secrets,
            **unknown,
        )
        me, hooks, recorder = self._entering(), self._hooks, self._recorder
        try:
            if hooks is not None:
                hooks.begin(spec, self.name)
            if recorder is not None and recorder.pending:
                recorder.begin()
            self._busy.add(me)
            self._remember(command)
            over = partial(self._busy.discard, me)
            stream = Stream(self._shell, spec, self._result, over, hooks, recorder=recorder)
            self._stream = ref(stream)
            return stream
        except BaseException as error:
            self._busy.discard(me)
            spec.abandon()
            if hooks is not None:
                hooks.failed(spec, error)
            raise

    def _cancellable(self, spec: CapturedCommand, cancel: threading.Event) -> Outcome:
        """Run a command that ends when `cancel` is set, even while it waits for its turn."""
        shell, lock = self._shell, self._shell.lock()
        while not cancel.is_set():
            if uninterrupted(partial(shell.begin, spec, wait=False)):
                return drive(shell, cancel)
            if free_within(LOOK_EVERY, lock):  # free, but the shell needs a blocking exchange first
                shell.begin(spec)
                return drive(shell, cancel)
        return Outcome(128 + SIGINT, SIGINT, "cancelled", False, 0.0, "", None)

    def interrupt(self) -> None:
        """End the running command, if any, with the reason `cancelled`. Callable from any thread."""
        if not self._closed:
            self._shell.interrupt()

    def restart(self) -> None:
        """Start a new shell in its initial state, without jobs and history."""
        self._refuse_closed()
        self._refuse_from_within()
        self._end_stream()
        self._shell.restart()
        self._history.clear()
        self._jobs.clear()

    @property
    def state(self) -> SessionState:
        """State of the session now. Waits for the running command."""
        me = self._entering()
        try:
            self._busy.add(me)
            state = self._shell.state()
        finally:
            self._busy.discard(me)
        return self._with_history(state)

    def close(self) -> None:
        """End the shell and the processes that it started. A second call does nothing."""
        self._refuse_from_within()
        self._refuse_from_now()
        if not self._ended:
            uninterrupted(self._end)

    def _end(self) -> None:
        self._ended = True
        self._end_stream()
        try:
            self._shell.close()
        finally:
            self._on_close(self)

    def _end_stream(self) -> None:
        """End an unfinished stream, which would keep the session busy for ever."""
        stream = None if self._stream is None else self._stream()
        if stream is not None:
            stream.close()

    def _refuse_from_within(self) -> None:
        """Raise SessionBusy if this thread runs in a callback of the command that would have to end first."""
        stream = None if self._stream is None else self._stream()
        reading = stream is not None and stream.result is None
        if threading.get_ident() in self._busy and not reading:
            raise SessionBusy(
                f"the session {self.name!r} cannot be closed by what its own command calls",
                why="it would wait for itself",
                fix="use sb.interrupt(), or raise an error: that ends the command",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.name!r}{' (closed)' if self._closed else ''}>"

    # For other modules of this package.

    @property
    def _exec_context(self) -> SessionState:
        """State for a program started beside the shell; while a command runs, the state before it."""
        before = self._shell.state_before()
        return self.state if before is None else self._with_history(before)

    def _with_history(self, state: State) -> SessionState:
        """Add this session's history to a shell's state."""
        fields = {name: getattr(state, name) for name in State._fields}
        return SessionState(**fields, history=tuple(self._history))

    def _refuse_closed(self) -> None:
        """Raise SandboxClosed if the session is closed."""
        if self._closed:
            raise SandboxClosed(
                f"the session {self.name!r} is closed",
                fix="open another one",
                why="close() was called, on it or on its sandbox",
            )

    def _remember(self, command: str) -> None:
        """Add a command to the history. Raises CommandRefused if the policy's rules forbid it."""
        if self._rules is not None:
            self._rules.check_script(command)
        if self._allow_sudo is not None and names_sudo(command):
            self._allow_sudo()
        self._history.append(command[:_REMEMBERED_BYTES])

    def _refuse_from_now(self) -> None:
        """Refuse further commands; a command ended from now on has `Reason.closed`."""
        self._closed = True

    def _result(self, spec: CapturedCommand, outcome: Outcome) -> Result:
        """Return the result of a command, and record the job that it left."""
        if self._closed and outcome.reason == "cancelled":
            outcome.reason = "closed"
        job = outcome.newest_job
        if job is not None and job not in self._jobs:
            self._jobs[job] = str(spec.command)[:_REMEMBERED_BYTES]
            while len(self._jobs) > _REMEMBERED_JOBS:
                del self._jobs[next(iter(self._jobs))]
        spec.side_effects, spec.explain = self._side_effects, self._explain
        result = spec.result(outcome)
        if self._is_single:
            self.close()
        return result

    def _entering(self) -> int:
        """Return this thread's id for `_busy`. Raises SessionBusy if it already runs a command here."""
        self._refuse_closed()
        me = threading.get_ident()
        if me in self._busy:
            raise SessionBusy(
                f"the session {self.name!r} runs a command of this very thread",
                why="it would wait for itself",
                fix="read the whole stream or close it first, or use another sb.session()",
            )
        return me
