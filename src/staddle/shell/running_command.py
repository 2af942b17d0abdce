"""One command in a shell, from its start to its outcome: drive it, end it, pass on its output."""

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

#: Seconds to wait for output of `>(...)`, which comes after the command's end.
_SUBSTITUTION = 0.1
#: The longest single wait in seconds: the kernel takes milliseconds in 31 bits.
_LONGEST = 1e6
#: Bytes kept of the end of stderr.
_REMEMBERED = 500
#: Part of bash's error when we prevent it from forking while a run is being ended.
_FORK_REFUSED = b": fork: "

#: Run of a command that has not begun. It is never driven, and so never changes.
_NOT_BEGUN = protocol.Run(b"", b"")


class RunningCommand:
    """A command that `ShellState.begin` gives to a shell. For one thread, except `interrupt`."""

    def __init__(self, spec: CommandSpec, state: ShellState) -> None:
        self.spec, self._state = spec, state
        self.run = _NOT_BEGUN
        self._held_back = b""  # incomplete last line on stderr while it is being ended
        self._last_errors = b""
        self._retried = False
        self._asked = ""  # reason of a requested end
        self.failure: BaseException | None = None
        #: Whether the sandbox was lost with it: no agent can report how it ended.
        self.is_lost = False
        self.late: BackgroundOutput | None = None

    @property
    def is_given(self) -> bool:
        """Whether the shell has received all of it."""
        return self.run is not _NOT_BEGUN and not self.run.unwritten

    def interrupt(self, reason: str) -> None:
        """End it for `reason`, "cancelled" or "closed". From any thread.

        The request stays with the command even if another shell gets it. The caller must wake its driver
        (`BashProcess.wake_driver`).
        """
        if self._asked != "closed":
            self._asked = reason

    @property
    def is_answered(self) -> bool:
        """Whether only `finish` is left to do: the usual end."""
        return self.run.answer is not None and not self.run.refused

    def step(self, *, wait: bool = False) -> bool:
        """Do the available work, with `wait` after waiting for some. Returns whether it is over."""
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
        """Take a step of ending the run, after making sure that the shell does not continue."""
        run, state = self.run, self._state
        if step == agent_messages.BRAKE and not state.traps.braked:
            state.bash.ask_step(agent_messages.HOLD, run.began, state.newest_job)
            step = agent_messages.INTERRUPT
        state.bash.ask_step(step, run.began, state.newest_job)

    def _run_elsewhere(self) -> bool:
        """Give it to another bash if this one ended before it read it, or has no descriptors for it."""
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
        """Pass on the rest of its output. Pipes that a background job holds are left to it."""
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
            bash.stale = True  # a started job may read on

    # ---------------------------------------------------------------- output

    def give_out(self, data: bytes) -> None:
        """Pass on its stdout."""
        if self.spec.merge:
            self.give_err(data)
        else:
            self._pass_on(self.spec.out, data)

    def give_err(self, data: bytes) -> None:
        """Pass on its stderr; by whole lines while it is being ended."""
        if self.run.was_ended:
            whole, newline, self._held_back = (self._held_back + data).rpartition(b"\n")
            data = _without_complaints(whole + newline)
        # In a syntax error, bash names the file of the text; it writes that in one piece.
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
        """Give it up: the agent is gone. `finish` raises `error`."""
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
    """Drop the lines that bash printed because we prevented it from forking."""
    kept = (line for line in lines.splitlines(keepends=True) if _FORK_REFUSED not in line)
    return b"".join(kept)
