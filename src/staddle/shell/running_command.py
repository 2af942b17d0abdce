"""One command in a shell, from its start to its outcome: drive it, end it, pass on what it prints."""

from __future__ import annotations

import time

from ..ipc import agent_messages
from ..observe.output import OutputFlood
from . import protocol
from .background_output import BackgroundOutput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command import CommandSpec, Outcome, Sink
    from .shell_state import ShellState

#: Output of `>(...)` comes after its command is over. It is waited for this long, in seconds.
_SUBSTITUTION = 0.1
#: The longest wait at once, in seconds: the kernel counts milliseconds in 31 bits.
_LONGEST = 1e6
#: So much of the end of stderr is remembered.
_REMEMBERED = 500
#: In the complaint of a bash that is kept from starting the next process of a run that is being ended.
_FORK_REFUSED = b": fork: "

#: The run of a command that has not begun. Never driven, and so never changed.
_NOT_BEGUN = protocol.Run(b"", b"")


class RunningCommand:
    """A command that `ShellState.begin` gives to a shell. For one thread at a time, but for `interrupt`."""

    def __init__(self, spec: CommandSpec, state: ShellState) -> None:
        self.spec, self._state = spec, state
        self.run = _NOT_BEGUN
        self._held_back = b""  # the last line on stderr, as far as it came, of a command that is being ended
        self._last_errors = b""
        self._retried = False
        self._asked = ""  # why it is to end, if that was asked for
        self.failure: BaseException | None = None
        #: The sandbox was lost with it: there is no agent to ask how it ended.
        self.is_lost = False
        self.late: BackgroundOutput | None = None

    @property
    def is_given(self) -> bool:
        """Whether the shell has all of it."""
        return self.run is not _NOT_BEGUN and not self.run.unwritten

    def interrupt(self, reason: str) -> None:
        """Have it end because of `reason`, "cancelled" or "closed". From any thread.

        The request stays with the command, whichever shell it is given to. Whoever drives it is to be
        woken then (`BashProcess.wake_driver`).
        """
        if self._asked != "closed":
            self._asked = reason

    @property
    def is_answered(self) -> bool:
        """Whether there is nothing more to do but to finish: the usual end."""
        return self.run.answer is not None and not self.run.refused

    def step(self, *, wait: bool = False) -> bool:
        """Do what can be done, with `wait` after waiting for something; return whether it is over."""
        run, bash = self.run, self._state.bash
        if not run.over:
            self._end_if_asked()
            patience = 0.0
            if wait:
                left = -1.0 if run.deadline is None else max(0.0, run.deadline - time.monotonic())
                patience = min(left, _LONGEST)
            bash.step(patience)
            self._end_if_asked()
        if run.over:
            return self._retried or not self._run_elsewhere()
        if run.deadline is not None:
            step = run.step(time.monotonic())
            if step is not None:
                self._take_step(step)
        return run.over

    def _end_if_asked(self) -> None:
        if self._asked:
            self.run.interrupt(self._asked, time.monotonic())

    def _take_step(self, step: int) -> None:
        """Take a step of ending the run, and see first that the shell does not go on."""
        run, state = self.run, self._state
        if step == agent_messages.BRAKE and not state.traps.braked:
            state.bash.ask_step(agent_messages.HOLD, run.began, state.newest_job)
            step = agent_messages.INTERRUPT
        state.bash.ask_step(step, run.began, state.newest_job)

    def _run_elsewhere(self) -> bool:
        """Give it to another bash if this one ended before it had read it, or has no room for it."""
        run = self.run
        unseen = run.answer is None and run.ended is not None and self._state.bash.unread()
        if run.reason or not (unseen or run.refused):
            return False
        self._retried = True
        self._state.begin_elsewhere(self)
        return True

    def finish(self) -> Outcome:
        """Return its outcome, once it is over."""
        if self.is_lost and self.failure is not None:
            raise self.failure
        run, state, bash = self.run, self._state, self._state.bash
        duration = time.monotonic() - run.began
        run.lost = run.lost or not run.over
        if run.was_ended and run.ended is None:
            bash.ask_step(agent_messages.TIDY, run.began, state.newest_job)
            bash.settle()
        if run.lost:
            state.abandon(run)
        self._collect()
        return state.finish(run, self.spec, duration, self._last_errors)

    def _collect(self) -> None:
        """Pass on the rest of what was printed. Pipes that a background job holds are left to it."""
        bash, run, spec = self._state.bash, self.run, self.spec
        held = bash.drain()
        if held and b">(" in spec.text and not run.was_ended:
            end = time.monotonic() + _SUBSTITUTION
            while held and time.monotonic() < end:
                time.sleep(0.001)
                held = bash.drain(held)
        if self._held_back:
            self._pass_on(self._complaints, _without_complaints(self._held_back))
        if held:
            job = run.answer.newest_job if run.answer else 0
            self.late = BackgroundOutput(job or None, spec.text[:4096], secrets=spec.secrets)
            self.late.follow(bash.leave("output"), bash.leave("errors"))
        elif spec.stdin is not None and run.answer and run.answer.newest_job != self._state.newest_job:
            bash.stale = True  # a job that was started may read on

    # ---------------------------------------------------------------- output

    def give_out(self, data: bytes) -> None:
        """Pass on what it printed to stdout."""
        if self.spec.merge:
            self.give_err(data)
        else:
            self._pass_on(self.spec.out, data)

    def give_err(self, data: bytes) -> None:
        """Pass on what it printed to stderr; of a command that is being ended, by whole lines."""
        if self.run.was_ended:
            whole, newline, self._held_back = (self._held_back + data).rpartition(b"\n")
            data = _without_complaints(whole + newline)
        # In a syntax error, bash names the file in which it was given the text; it writes that in one piece.
        place = b": %b: line " % self._state.bash.files.paths.text
        if place in data:
            data = data.replace(place, b": line ")
        self._last_errors = data[-_REMEMBERED:]
        self._pass_on(self._complaints, data)

    @property
    def _complaints(self) -> Sink:
        return self.spec.out if self.spec.merge else self.spec.err

    def _pass_on(self, sink: Sink, data: bytes) -> None:
        if self.failure is None and data:
            try:
                sink(data)
            except BaseException as error:
                self.fail(error)

    def lose(self, error: BaseException) -> None:
        """Give it up: there is no agent any more. `finish` raises `error`."""
        self.run.lost = self.is_lost = True
        self.failure = error

    def fail(self, error: BaseException) -> None:
        """End it because of `error`."""
        if isinstance(error, OutputFlood):
            self.run.interrupt("output_limit", time.monotonic())
            return
        if self.failure is None:
            self.failure = error
        self.run.interrupt("cancelled", time.monotonic())


def _without_complaints(lines: bytes) -> bytes:
    """Drop the lines that bash printed because we kept it from forking."""
    kept = (line for line in lines.splitlines(keepends=True) if _FORK_REFUSED not in line)
    return b"".join(kept)
