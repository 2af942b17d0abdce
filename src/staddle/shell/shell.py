"""A shell of a sandbox that survives its bash: runs commands one at a time and keeps their state."""

from __future__ import annotations

import _thread
import time
from functools import partial

from ..errors import SandboxClosed, SandboxLost, SessionBusy, StaddleError
from ..interrupts import free_within, uninterrupted, uninterruptible
from .bash_process import BashProcess
from .idle import IDLE_MAINTENANCE, OPEN_SHELLS, QUIET, idle_from
from .running_command import RunningCommand
from .shell_state import FirstState, ShellState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.agent_client import AgentClient
    from ..ipc.opened_shell import OpenedShell
    from .background_output import BackgroundOutput
    from .command import CommandSpec, Outcome
    from .state import SavedShell, State
    from .usage_meter import UsageMeter


#: The number of background logs kept after their jobs have ended.
_MOST_LOGS = 64
#: After a command shorter than this, the shell's idle time counts from the command's beginning.
_MOMENT = QUIET / 2
#: Seconds to wait for a command that was told to end, which exceed all steps of ending it; and for its driver
#: to notice that its shell is gone.
_PATIENCE, _LAST_PATIENCE = 8.0, 1.0


class Shell:
    """One bash session with its state, lock and open descriptors. Thread-safe; commands queue.

    An event loop runs a command in pieces: `begin`, in a thread because it waits for its turn; then `step`
    whenever `fileno()` is readable, `deadline` has passed or `pending` is true, until it returns True; then
    `finish`.
    """

    def __init__(
        self,
        agent: AgentClient,
        opened: OpenedShell,
        *,
        directory: str | None = None,
        meter: UsageMeter | None = None,
        start: str = "",
        first: FirstState | None = None,
    ) -> None:
        """Take over `opened`. `meter` measures the usage of commands.

        `directory` is the shell's directory if a replacement would not start there; otherwise `start` is.
        `first` is shared with the other new shells of its plan.
        """
        self._agent = agent
        self._state = ShellState(BashProcess(opened), directory, meter, start, first)
        self._turn = _thread.allocate_lock()
        self._runner = 0
        self._current: RunningCommand | None = None
        self._closed = False
        self._used = 0.0  # time of the last use
        self._late: list[BackgroundOutput] = []
        OPEN_SHELLS.use(self)  # its files are open from the beginning

    @property
    def pid(self) -> int:
        """Pid of the present bash inside the sandbox."""
        return self._state.bash.pid

    # ---------------------------------------------------------------- a command, whole and in pieces

    def run(self, spec: CommandSpec) -> Outcome:
        """Run a command and return its outcome. Raises the errors of its sinks after its end."""
        me = _thread.get_ident()
        if self._runner == me and self._current is not None and self._turn.locked():
            raise SessionBusy(
                "this session runs a command for this very thread",
                why="its output is being passed on; a second command would wait for the first forever",
                fix="use sb.session(name) for another shell",
            )
        command = RunningCommand(spec, self._state)
        with self._turn:
            try:
                bash = self._begin(command)
                self._runner = me
                self._drive(command, bash)
            except BaseException as error:
                if isinstance(error, StaddleError) or not command.is_given:
                    self._current = None
                    self._end_if_lost(error)
                    raise
                self._current, self._runner = command, me
                command.fail(error)
                self._drive(command, None)
            finally:
                if self._current is not None:
                    outcome = self._finish(command)
        return self._after(command, outcome)

    def begin(self, spec: CommandSpec, *, wait: bool = True) -> bool:
        """Wait for the turn and start a command.

        Without `wait`, start it only if nothing must be waited for: neither the turn nor an exchange with the
        shell beforehand. Returns whether it was started.
        """
        command = RunningCommand(spec, self._state)
        if not wait:
            return self._begin_now(command, is_ready=True)
        while not uninterrupted(partial(self._begin_now, command, is_ready=False)):
            with self._turn:
                pass  # the only wait that a signal handler may end
        return True

    def _begin_now(self, command: RunningCommand, *, is_ready: bool) -> bool:
        """Start a command, and keep the turn. Returns False while another has it.

        With `is_ready`, also returns False if an exchange with the shell must come first.
        """
        if not self._turn.acquire(False):
            return False
        is_begun = False
        try:
            self._check_open()
            if not is_ready or self._state.is_ready(command.spec):
                self._begin(command)
                is_begun = True
        except BaseException as error:
            self._current = None
            self._end_if_lost(error)
            raise
        finally:
            if not is_begun:
                self._turn.release()
        return is_begun

    def _begin(self, command: RunningCommand) -> BashProcess:
        self._check_open()
        if OPEN_SHELLS.latest is not self:
            OPEN_SHELLS.use(self)
        if self._current is not None:  # the last command's end was interrupted before it was collected
            self._state.bash.stale, self._current = True, None
        self._current = command  # before it begins: an interrupt that comes now is for this one
        bash = self._state.begin(command)
        if self._closed:  # close() may not have seen this one
            self._state.abandon(command.run)
            self._check_open()
        self.schedule_maintenance(command.run.began)  # now: a short command would wait for it at its end
        return bash

    def _drive(self, command: RunningCommand, bash: BashProcess | None) -> None:
        """Step until the command is over, even if a signal handler raises meanwhile."""
        while True:
            try:
                if bash is not None:
                    fresh, bash = bash, None
                    fresh.wait_briefly()
                    if command.is_answered:
                        return
                if command.step(wait=True):
                    return
            except BaseException as error:
                if command.failure is not None and not isinstance(error, KeyboardInterrupt):
                    raise
                command.fail(error)

    def step(self, *, briefly: bool = False) -> bool:
        """Do the work that needs no waiting. Returns whether the run is over; `finish` raises its errors.

        With `briefly`, wait a millisecond for its end before: most commands are short.
        """
        command = self._current
        if command is None:
            return True
        try:
            if briefly:
                self._state.bash.wait_briefly()
            return (briefly and command.is_answered) or command.step()
        except StaddleError as error:
            command.lose(error)
            return True
        except BaseException as error:  # from a signal handler
            command.fail(error)
            return False

    def finish(self) -> Outcome:
        """Return the outcome of a run that is over, and let the next one begin. Raises a sink's error."""
        command = self._current
        if command is None:
            raise SessionBusy(
                "no command was started", fix="call begin() first", why="there is nothing to wait for"
            )
        try:
            outcome = self._finish(command)
        finally:
            self._turn.release()
        return self._after(command, outcome)

    def _finish(self, command: RunningCommand) -> Outcome:
        try:
            outcome = command.finish()
            if command.late is not None:
                self._keep(command.late)
        except BaseException as error:
            self._state.bash.stale = True  # the pipes may still hold output
            self._end_if_lost(error)
            raise
        finally:
            self._current = None
            self._runner = 0
        return outcome

    def _end_if_lost(self, error: BaseException) -> None:
        """End a sandbox that is reported as lost: it may only be silent while the command continues."""
        if isinstance(error, SandboxLost):
            self._agent.kill()

    def _after(self, command: RunningCommand, outcome: Outcome) -> Outcome:
        if outcome.duration > _MOMENT:
            self._used = time.monotonic()
        if not self._closed:  # even after a short command: maintenance skips a shell that is not released yet
            IDLE_MAINTENANCE.schedule(self)
        if command.failure is not None:
            raise command.failure
        return outcome

    def schedule_maintenance(self, used: float | None = None) -> None:
        """Schedule `maintain` for when the shell is idle. `used` is its last use (default: now)."""
        self._used = time.monotonic() if used is None else used
        if not self._closed:
            IDLE_MAINTENANCE.schedule(self)

    @property
    def idle_from(self) -> float:
        """Monotonic time from which on it is idle."""
        return idle_from(self._used, self._state.cost)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `step` has work."""
        return self._state.bash.fileno()

    @property
    def deadline(self) -> float | None:
        """Monotonic time at which `step` has work even if nothing became readable."""
        return self._current.run.deadline if self._current else None

    @property
    def pending(self) -> bool:
        """Whether `step` has work now."""
        return self._state.bash.pending

    # ---------------------------------------------------------------- state, directory, lifetime

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return self._current is not None

    def runs(self, spec: CommandSpec) -> bool:
        """Whether this command runs now."""
        command = self._current
        return command is not None and command.spec is spec

    def interrupt(self) -> None:
        """End the running command, if any, with the outcome `cancelled`. From any thread."""
        self._interrupt("cancelled")

    def _interrupt(self, reason: str) -> None:
        command = self._current
        if command is not None:
            command.interrupt(reason)
            self._state.bash.wake_driver()

    def _is_released(self) -> bool:
        """Wait for the end of a command that was told to end. False if its driver keeps the lock.

        A command without a driver would never end, so its shell is killed.
        """
        if free_within(_PATIENCE, self._turn):
            return True
        self._state.bash.kill()
        return free_within(_LAST_PATIENCE, self._turn)

    def state(self) -> State:
        """Return variables, functions, aliases, options and so on as they are now. Waits for the turn."""
        with self._turn:
            self._check_open()
            OPEN_SHELLS.use(self)
            self._state.ensure_bash()
            return self._state.state()

    def state_before(self) -> State | None:
        """Return the last known state while a command runs, or if it is still valid; else None. At once."""
        is_known = self._current is not None or self._state.known.is_settled
        return self._state.last_state() if is_known else None

    def background_output(self) -> list[BackgroundOutput]:
        """Return the output of background jobs after the commands that started them."""
        return list(self._late)

    def _keep(self, late: BackgroundOutput) -> None:
        ended = [log for log in self._late if not log.open]
        forgotten = ended[: max(0, len(ended) - _MOST_LOGS)]
        self._late = [*(log for log in self._late if log not in forgotten), late]

    def lock(self) -> _thread.LockType:
        """Return the lock, for `with`: no command runs, and none begins. For the methods below."""
        return self._turn

    def saved(self) -> SavedShell:
        """Return the state of the shell, for `become`. Needs the lock."""
        self._state.ensure_bash()
        return self._state.saved()

    def become(self, saved: SavedShell | None) -> None:
        """Replace bash by one in that state, or in the initial state. Needs the lock."""
        self._state.become(saved)
        self.schedule_maintenance()

    def directory(self) -> str:
        """Return the shell's working directory. Needs the lock."""
        self._state.ensure_bash()
        return self._state.directory()

    def directory_now(self) -> str:
        """Return the shell's working directory; empty while a command runs."""
        if not self._turn.acquire(False):
            return ""
        try:
            return self.directory()
        finally:
            self._turn.release()

    def reenter_directory(self, *, at_once: bool = False) -> None:
        """Enter the present directory again, because another file system is there now. Needs the lock.

        It does so soon, or before the next command; with `at_once` now, because the directory may be gone.
        """
        self._state.ensure_bash()
        self._state.reenter_directory()
        if at_once:
            self._state.flush_setup()
        else:
            self.schedule_maintenance()

    def prewarm(self) -> None:
        """Do the work that can precede its first command."""
        with self._turn:
            if not self._closed:
                self._state.prewarm()

    def wake(self) -> None:
        """Wake bash: its first command is about to come."""
        with self._turn:
            if not self._closed:
                self._state.bash.wake()

    def restart(self) -> None:
        """Start a new bash in its initial state; a running command is ended."""
        self.interrupt()
        if not self._is_released():
            raise SessionBusy(
                "the command that runs does not end",
                why="nothing drives it any more: its stream was left, or its event loop was stopped",
                fix="close() the session, and open another one",
            )
        with self._turn:
            self._check_open()
            self._state.restart()

    def close(self) -> None:
        """End the shell and its processes. A running command ends with the reason `closed`."""
        if self._closed:
            return
        self._closed = True
        self._interrupt("closed")
        if self._is_released():
            with self._turn:
                self._state.close()
        IDLE_MAINTENANCE.forget(self)
        OPEN_SHELLS.forget(self)
        for late in self._late:
            late.close()

    @uninterruptible
    def park(self) -> bool:
        """Release descriptors that an idle shell does not need. Returns False if it is in use."""
        if not self._turn.acquire(False):
            return False
        try:
            if not self._closed:
                self._state.park()
            return True
        finally:
            self._turn.release()

    @uninterruptible
    def maintain(self) -> None:
        """Do now what would delay the next command: replace an ended bash, read its state, renew pipes."""
        if not self._turn.acquire(False):
            return
        try:
            if not self._closed:
                self._state.maintain()
        finally:
            self._turn.release()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosed(
                "the session is closed", fix="open another one", why="its sandbox has stopped"
            )
