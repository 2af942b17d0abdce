"""A session: one shell with its state, for commands one after the other."""

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

#: How many commands a session remembers, and how much of each.
_REMEMBERED = 1000
_REMEMBERED_BYTES = 10_000
_REMEMBERED_JOBS = 100


def names_sudo(command: str) -> bool:
    """Whether a text may run `sudo` or `su`: then the sandbox has to have a root."""
    if "su" not in command:
        return False
    if "sudo" in command:
        return True
    at = command.find("su ")
    return at == 0 or (at > 0 and not command[at - 1].isalnum())


class SessionState(State):
    """The state of a session: its shell's, and the commands that were run, the last one last."""

    history: tuple[str, ...] = ()


@unmistakable(own=("close", "restart"))
class Session:
    """A shell in a sandbox, with variables, functions, a directory and jobs of its own.

    Commands run one at a time: a second one waits for its turn. Safe to use from any thread.
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
        #: Whose it is, if not the sandbox's user's, and whether it ends with its first command.
        self._user, self._is_single = "", False
        self._rules: CommandRules | None = None  # those of the policy
        self._allow_sudo: Callable[[], None] | None = None
        self._explain: Callable[[Result], Result] | None = None  # what is known of why a command failed
        self._stream: ReferenceType[Stream] | None = None
        self._busy: set[int] = set()  # the threads that have a command here
        self._history: deque[str] = deque(maxlen=_REMEMBERED)
        self._jobs: dict[int, str] = {}  # the newest job after a command, and that command

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
        """Run `command` in the shell and wait for its end. A command that fails is a result.

        `timeout` is in seconds, by default the policy's; None is no end. `cwd` and `env` hold
        for this command only; a variable that is None is unset. `stdin` is text, bytes or a file, which is
        read whole; without it standard input is empty. `on_stdout` and
        `on_stderr` are called with text as it comes; an error of theirs ends the command and
        comes out here. `spill` names a directory of the host for output that is too long to be
        kept. `check` raises CommandFailed, with the result, unless the command succeeded.
        With `merge` standard error comes in `stdout` too, in the order it was printed. `output_limit` is
        how many bytes are kept, in place of the policy's. Setting `cancel` ends the command, its
        reason is `cancelled`.
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
        me, hooks = self._entering(), self._hooks
        try:
            if hooks is not None:
                hooks.begin(spec, self.name)
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
        """Run `command` and iterate over what it prints, as it comes; `.result` when it is over."""
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
        me, hooks = self._entering(), self._hooks
        try:
            if hooks is not None:
                hooks.begin(spec, self.name)
            self._busy.add(me)
            self._remember(command)
            stream = Stream(self._shell, spec, self._result, lambda: self._busy.discard(me), hooks)
            self._stream = ref(stream)
            return stream
        except BaseException as error:
            self._busy.discard(me)
            spec.abandon()
            if hooks is not None:
                hooks.failed(spec, error)
            raise

    def _cancellable(self, spec: CapturedCommand, cancel: threading.Event) -> Outcome:
        """Run a command that ends when `cancel` is set, while it waits for its turn as well."""
        shell, lock = self._shell, self._shell.lock()
        while not cancel.is_set():
            if uninterrupted(partial(shell.begin, spec, wait=False)):
                return drive(shell, cancel)
            if free_within(LOOK_EVERY, lock):  # but has to be talked to first
                shell.begin(spec)
                return drive(shell, cancel)
        return Outcome(128 + SIGINT, SIGINT, "cancelled", False, 0.0, "", None)

    def interrupt(self) -> None:
        """End the command that runs now, if there is one; its reason is `cancelled`. From any thread."""
        if not self._closed:
            self._shell.interrupt()

    def restart(self) -> None:
        """A new shell as it was at the beginning, without its state, jobs and history."""
        self._refuse_closed()
        self._refuse_from_within()
        self._end_stream()
        self._shell.restart()
        self._history.clear()
        self._jobs.clear()

    @property
    def state(self) -> SessionState:
        """The state of the session at this moment; waits for the command that runs."""
        me = self._entering()
        try:
            self._busy.add(me)
            state = self._shell.state()
        finally:
            self._busy.discard(me)
        return self._with_history(state)

    def close(self) -> None:
        """End the shell and what it started. A second time does nothing."""
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
        """End a stream that is not read to its end: it would keep the session busy for ever."""
        stream = None if self._stream is None else self._stream()
        if stream is not None:
            stream.close()

    def _refuse_from_within(self) -> None:
        """SessionBusy, when a command that passes its output on to this thread would have to end first."""
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

    # For the other faces.

    @property
    def _exec_context(self) -> SessionState:
        """The state for a program that is started beside the shell: while a command runs, that of before."""
        before = self._shell.state_before()
        return self.state if before is None else self._with_history(before)

    def _with_history(self, state: State) -> SessionState:
        """A shell's state with the history of this session."""
        fields = {name: getattr(state, name) for name in State._fields}
        return SessionState(**fields, history=tuple(self._history))

    def _refuse_closed(self) -> None:
        """SandboxClosed, if it is."""
        if self._closed:
            raise SandboxClosed(
                f"the session {self.name!r} is closed",
                fix="open another one",
                why="close() was called, on it or on its sandbox",
            )

    def _remember(self, command: str) -> None:
        """Add a command to the history. CommandRefused, if the policy's rules speak against it."""
        if self._rules is not None:
            self._rules.check_script(command)
        if self._allow_sudo is not None and names_sudo(command):
            self._allow_sudo()
        self._history.append(command[:_REMEMBERED_BYTES])

    def _refuse_from_now(self) -> None:
        """Refuse further commands; one that is ended from now on has `Reason.closed`."""
        self._closed = True

    def _result(self, spec: CapturedCommand, outcome: Outcome) -> Result:
        """Return the result of a command. The job that it left is remembered."""
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
        """Return this thread, for `_busy`. Raises SessionBusy if it has a command here already."""
        self._refuse_closed()
        me = threading.get_ident()
        if me in self._busy:
            raise SessionBusy(
                f"the session {self.name!r} runs a command of this very thread",
                why="it would wait for itself",
                fix="read the whole stream or close it first, or use another sb.session()",
            )
        return me
