"""A shell of a sandbox that cannot be lost: runs commands one after the other and keeps their state."""

from __future__ import annotations

import _thread

from ..errors import SandboxClosed, SandboxLost, SessionBusy, StaddleError
from ..interrupts import free_within
from .bash_process import Bash
from .fd_budget import PARKING
from .idle import IDLE_MAINTENANCE, QUIET
from .outcome import Outcome
from .running_command import Command
from .shell_state import OLDEST, Memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..ipc.agent_client import AgentLink, OpenedShell
    from .background_output import LateOutput
    from .shell_state import Remembered
    from .state import State
    from .usage_meter import Account

__all__ = ["OLDEST", "Shell"]

#: How many logs of late output are kept after their jobs have ended.
_MOST_LOGS = 64
#: A command that took no longer has left the time to look after its shell that was asked for when it began.
_MOMENT = QUIET / 2
#: How long a run that was told to end is waited for, in seconds: longer than all steps of ending it take. And
#: how long whoever drives it may take to notice that its shell is gone.
_PATIENCE, _LAST_PATIENCE = 8.0, 1.0


class Shell:
    """One bash session with its state. Thread-safe; concurrent runs queue.

    For an event loop a run comes in pieces: `begin`, in a thread, since it waits for its turn;
    then `step` whenever `fileno()` is readable, `deadline` has passed or `pending` is true, until
    it returns True; then `finish`.
    """

    def __init__(
        self,
        link: AgentLink,
        opened: OpenedShell,
        *,
        directory: str | None = None,
        account: Account | None = None,
    ) -> None:
        """`directory` is where the shell is, when another one like it would not be started there.

        `account` is for what commands use.
        """
        self._account = account
        self._link = link
        self._memory = Memory(Bash(opened), directory)
        self._turn = _thread.allocate_lock()
        self._runner = 0
        self._current: Command | None = None
        self._closed = False
        self._late: list[LateOutput] = []
        PARKING.used(self)  # it has its files open from the beginning

    @property
    def pid(self) -> int:
        """The process of the present bash, in the sandbox's counting."""
        return self._memory.bash.pid

    # ---------------------------------------------------------------- a run, whole and in pieces

    def run(
        self,
        text: bytes,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
    ) -> Outcome:
        """Run `text`. A sink that blocks slows it, one that raises ends it, and its error comes out."""
        me = _thread.get_ident()
        if self._runner == me and self._current is not None and self._turn.locked():
            raise SessionBusy(
                "this session runs a command for this very thread",
                why="its output is being passed on; a second command would wait for the first for ever",
                fix="use sb.session(name) for another shell",
            )
        command = Command(text, timeout=timeout, stdin=stdin, env=env, cwd=cwd, out=out, err=err)
        with self._turn:
            try:
                self._begin(command)
                self._runner = me
                self._drive(command)
            except BaseException as error:
                if isinstance(error, StaddleError) or not command.is_given:
                    self._current = None
                    raise
                self._current, self._runner = command, me
                command.fail(error)
                self._drive(command)
            finally:
                if self._current is not None:
                    outcome = self._finish(command)
        return self._after(command, outcome)

    def begin(
        self,
        text: bytes,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        wait: bool = True,
    ) -> bool:
        """Wait for the turn and start `text`.

        Without `wait`, only if there is nothing to wait for: not for the turn, and nothing that
        has to be said to the shell before. Whether it was started.
        """
        command = Command(text, timeout=timeout, stdin=stdin, env=env, cwd=cwd, out=out, err=err)
        if not self._turn.acquire(wait):
            return False
        try:
            self._check_open()
            is_begun = wait or self._memory.is_ready(text, comes_back=cwd is not None)
            if is_begun:
                self._begin(command)
        except BaseException:
            self._current = None
            self._turn.release()
            raise
        if not is_begun:
            self._turn.release()
        return is_begun

    def _begin(self, command: Command) -> None:
        self._check_open()
        PARKING.used(self)
        self._memory.revive(look=False)
        if self._account is not None:
            self._account.begin(self._memory.bash.outside)
        command.begin(self._memory)
        self._current = command
        if self._closed:  # close() may not have seen this one
            self._memory.abandon(command.run)
            self._check_open()
        self.rest()  # of a command that takes no longer: it would have to wait for this afterwards

    def _drive(self, command: Command) -> None:
        """Step until the run is over, whatever comes between."""
        waited = False
        while True:
            try:
                if not waited:
                    waited = True
                    self._memory.bash.wait_briefly()
                    if command.is_answered:
                        return
                if command.step(wait=True):
                    return
            except BaseException as error:  # of a signal's handler
                if command.failure is not None and not isinstance(error, KeyboardInterrupt):
                    raise
                command.fail(error)

    def step(self) -> bool:
        """Do what can be done without waiting; whether the run is over. What goes wrong `finish` raises."""
        command = self._current
        if command is None:
            return True
        try:
            return command.step()
        except StaddleError as error:
            command.lose(error)
            return True
        except BaseException as error:  # of a signal's handler
            command.fail(error)
            return False

    def finish(self) -> Outcome:
        """The outcome of a run that is over; the next one may begin. Raises what a sink raised."""
        command = self._current
        if command is None:
            raise SessionBusy("no command was begun", fix="call begin() first")
        try:
            outcome = self._finish(command)
        finally:
            self._turn.release()
        return self._after(command, outcome)

    def _finish(self, command: Command) -> Outcome:
        try:
            outcome = command.finish()
            if self._account is not None:
                self._account.end(outcome, self._memory.bash.used)
            if command.late is not None:
                self._keep(command.late)
        except BaseException as error:
            self._memory.bash.stale = True  # there may be output left in the pipes
            if isinstance(error, SandboxLost):  # or it only does not answer: then what was run may go on
                self._link.kill()
            raise
        finally:
            self._current = None
            self._runner = 0
        return outcome

    def _after(self, command: Command, outcome: Outcome) -> Outcome:
        if outcome.duration > _MOMENT:
            self.rest()
        if command.failure is not None:
            raise command.failure
        return outcome

    def rest(self) -> None:
        """Nobody waits for anything now: what can be done without a caller may be done soon."""
        if not self._closed:
            IDLE_MAINTENANCE.schedule(self, self._memory.cost)

    def fileno(self) -> int:
        """Readable when `step` has something to do."""
        return self._memory.bash.fileno()

    @property
    def deadline(self) -> float | None:
        """When, on the monotonic clock, `step` has something to do even if nothing became readable."""
        return self._current.run.deadline if self._current else None

    @property
    def pending(self) -> bool:
        """Whether `step` has something to do now."""
        return self._memory.bash.pending

    # ---------------------------------------------------------------- everything else

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return self._current is not None

    def runs_for(self, out: Callable[[bytes], None]) -> bool:
        """Whether the command that runs prints to `out`."""
        command = self._current
        return command is not None and command.prints_to(out)

    def interrupt(self) -> None:
        """End the run in progress, if there is one, from any thread; its outcome is `cancelled`."""
        self._interrupt("cancelled")

    def _interrupt(self, reason: str) -> None:
        command = self._current
        if command is not None:
            command.interrupt(reason)
            self._memory.bash.wake()

    def _is_released(self) -> bool:
        """Wait for the end of a run that was told to end. False when nobody gives the turn back.

        A run that is not driven any more would never end. Its shell is hung up on, which kills it.
        """
        if free_within(_PATIENCE, self._turn):
            return True
        self._memory.bash.hang_up()
        return free_within(_LAST_PATIENCE, self._turn)

    def state(self) -> State:
        """Variables, functions, aliases, options and so on, as they are now; waits for the turn."""
        with self._turn:
            self._check_open()
            PARKING.used(self)
            self._memory.revive()
            return self._memory.state()

    def state_before(self) -> State | None:
        """While a command runs: the state as it was told before that, without waiting; None else."""
        return None if self._current is None else self._memory.told()

    def late_output(self) -> list[LateOutput]:
        """What background jobs printed after the run that started them."""
        return list(self._late)

    def _keep(self, late: LateOutput) -> None:
        ended = [log for log in self._late if not log.open]
        forgotten = ended[: max(0, len(ended) - _MOST_LOGS)]
        self._late = [*(log for log in self._late if log not in forgotten), late]

    def held(self) -> _thread.LockType:
        """The turn, for `with`: no command runs, and none begins. For the methods below."""
        return self._turn

    def remembered(self) -> Remembered:
        """What the shell is now, for `become`. While held."""
        self._memory.revive()
        return self._memory.remembered()

    def become(self, remembered: Remembered | None) -> None:
        """Another bash, as that one was, or as at the beginning. While held."""
        self._memory.become(remembered)
        self.rest()

    def directory(self) -> str:
        """Where the shell is. While held."""
        self._memory.revive()
        return self._memory.directory()

    def come_back(self, *, at_once: bool = False) -> None:
        """Enter the directory that it is in once more: another file system is there now. While held.

        Soon, or before the next command, unless `at_once`: the directory may not be there any more.
        """
        self._memory.revive()
        self._memory.come_back()
        if at_once:
            self._memory.catch_up()
        else:
            self.rest()

    def get_ready(self) -> None:
        """Do what can be done before its first command, when nobody waits."""
        with self._turn:
            if self._account is not None and not self._closed:
                self._account.get_ready(self._memory.bash.outside)

    def stir(self) -> None:
        """Its first command is about to come."""
        with self._turn:
            if not self._closed:
                self._memory.bash.stir()

    def restart(self) -> None:
        """A new bash as it was at the beginning, without the state; ends a run in progress."""
        self.interrupt()
        if not self._is_released():
            raise SessionBusy(
                "the command that runs does not end",
                why="nobody drives it any more: its stream was left, or its event loop was stopped",
                fix="close() the session, and open another one",
            )
        with self._turn:
            self._check_open()
            self._memory.restart()

    def close(self) -> None:
        """End the shell and what it started. A run in progress ends with reason `closed`."""
        if self._closed:
            return
        self._closed = True
        self._interrupt("closed")
        if self._is_released():
            with self._turn:
                self._memory.bash.close()
                if self._account is not None:
                    self._account.park()
        IDLE_MAINTENANCE.forget(self)
        PARKING.forget(self)
        for late in self._late:
            late.close()

    def park(self) -> bool:
        """Give back descriptors that a shell at rest does not need; False when it is not at rest."""
        if not self._turn.acquire(False):
            return False
        try:
            if not self._closed:
                self._memory.bash.park()
                if self._account is not None:
                    self._account.park()
            return True
        finally:
            self._turn.release()

    def maintain(self) -> None:
        """Do now what the next command would wait for: replace an ended bash, read its state, renew pipes."""
        if not self._turn.acquire(False):
            return
        try:
            if not self._closed and not self._memory.bash.parked:
                self._memory.revive()
                if self._memory.dirty:
                    self._memory.learn()
                else:
                    self._memory.catch_up()
                self._memory.foresee()
        finally:
            self._turn.release()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosed("the session is closed", fix="open another one")
