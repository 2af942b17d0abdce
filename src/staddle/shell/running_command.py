"""One command of a caller, from its text to its outcome, in the shell that is there."""

from __future__ import annotations

import os
import time

from ..errors import InvalidCall
from ..ipc import agent_messages
from ..launch.output import Flooded
from . import protocol
from .background_output import LateOutput
from .outcome import Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .shell_state import Memory

#: Output of `>(...)` comes after its command is over: so long it is waited for.
_SUBSTITUTION = 0.1
_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
#: What bash says when it is kept from starting the next process of a run that is being ended.
_HELD = b": fork: "

#: What a command has for a run until it is begun. Never driven, and so never changed.
_NOT_BEGUN = protocol.Run(b"", b"", 0.0, None)


class Command:
    """A text, what comes with it, and where its output goes. Raises InvalidCall for what cannot be run."""

    def __init__(
        self,
        text: bytes,
        *,
        timeout: float | None,
        stdin: bytes | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
    ) -> None:
        if 0 in text:  # a number is found ten times as fast as bytes
            raise InvalidCall("a command has no NUL in it", why="bash would leave it out", fix="use stdin=")
        _check_names(env or {})
        self._text, self._timeout, self._stdin, self._env = text, timeout, stdin, env
        self._cwd = None if cwd is None else os.fsencode(cwd if cwd.startswith("/") else f"./{cwd}")
        self._out, self._err = out, err
        self._held = b""
        self._retried = False
        self.run = _NOT_BEGUN
        self._asked = ""  # why it is to end, if somebody has said so
        self.failure: BaseException | None = None
        #: The sandbox was lost with it: there is nothing to ask about how it ended.
        self.is_lost = False
        self.late: LateOutput | None = None

    def begin(self, memory: Memory) -> None:
        """Give it to a shell that was revived."""
        self._memory = memory
        memory.prepare(self._text, comes_back=self._cwd is not None)
        unsaid = memory.unsaid
        try:
            self._start()
        except BaseException:
            if not memory.bash.has_begun(self.run):
                memory.unsaid = unsaid
            elif not self.is_given:
                memory.ask_again(self.run, unsaid)
            raise

    def _start(self) -> None:
        memory = self._memory
        self.run = memory.give(self._text, self._timeout, stdin=self._stdin, env=self._env, cwd=self._cwd)
        memory.bash.begin(self.run, self._give_out, self._give_err, listen=memory.guarded)

    def prints_to(self, out: Callable[[bytes], None]) -> bool:
        """Whether that is where its output goes."""
        return self._out is out

    @property
    def is_given(self) -> bool:
        """Whether the shell has all of it."""
        return self.run is not _NOT_BEGUN and not self.run.unwritten

    @property
    def is_answered(self) -> bool:
        """Whether there is nothing more to do but to finish: the usual end."""
        return self.run.answer is not None and not self.run.refused

    def interrupt(self, reason: str) -> None:
        """Have it end because of `reason`, "cancelled" or "closed". From any thread; `Bash.wake` comes next.

        The request stays with the command, whichever shell it is given to: it cannot be lost on the way.
        """
        if self._asked != "closed":
            self._asked = reason

    def step(self, *, wait: bool = False) -> bool:
        """Do what can be done, after waiting until there is something if `wait`; whether it is over."""
        run, bash = self.run, self._memory.bash
        if not run.over:
            self._heed()
            patience = 0.0
            if wait:
                patience = -1.0 if run.deadline is None else max(0.0, run.deadline - time.monotonic())
            bash.step(patience)
            self._heed()
        if run.over:
            return self._retried or not self._run_elsewhere()
        if run.deadline is not None:
            step = run.step(time.monotonic())
            if step is not None:
                self._end(step)
        return run.over

    def _heed(self) -> None:
        """Pass on to the run what was asked of the command."""
        if self._asked:
            self.run.interrupt(self._asked, time.monotonic())

    def _end(self, step: int) -> None:
        """Take a step of ending the run, and see first that the shell does not go on."""
        run, bash = self.run, self._memory.bash
        if step == agent_messages.BRAKE and not self._memory.braked:
            bash.ask_step(agent_messages.HOLD, run.began, self._memory.newest_job)
            step = agent_messages.INTERRUPT
        bash.ask_step(step, run.began, self._memory.newest_job)

    def _run_elsewhere(self) -> bool:
        """Give it to another shell when this one ended before it had seen it, or has no room for it."""
        run = self.run
        unseen = run.answer is None and run.ended is not None and self._memory.bash.unread()
        if run.reason or not (unseen or run.refused):
            return False
        self._retried = True
        self._memory.check_version()
        self._memory.replace()
        self._start()
        return True

    def finish(self) -> Outcome:
        """Its outcome, once it is over."""
        if self.is_lost and self.failure is not None:
            raise self.failure
        run, memory, bash = self.run, self._memory, self._memory.bash
        duration = time.monotonic() - run.began
        run.lost = run.lost or not run.over
        if run.was_ended and run.ended is None:
            bash.ask_step(agent_messages.TIDY, run.began, memory.newest_job)
            bash.settle()
        if run.lost:
            memory.abandon(run)
        self._collect()
        memory.note(run, self._text, came_back=self._cwd is not None)
        code = memory.status
        signal = code - 128 if 128 < code <= 192 else None
        reason = run.reason or ("shell_exited" if run.answer is None else "signalled" if signal else "exited")
        if reason == "timeout":
            code, signal = 124, None
        cwd, job = os.fsdecode(memory.cwd), memory.newest_job or None
        why = Flooded.why if reason == "output_limit" else ""
        return Outcome(code, signal, reason, run.answer is None, duration, cwd, job, None, why)

    def _collect(self) -> None:
        """Pass on the rest of what was printed; leave pipes that somebody holds to them."""
        bash, run = self._memory.bash, self.run
        held = bash.rest("output"), bash.rest("errors")
        if any(held) and b">(" in self._text and not run.was_ended:
            end = time.monotonic() + _SUBSTITUTION
            while any(held) and time.monotonic() < end:
                time.sleep(0.001)
                held = held[0] and bash.rest("output"), held[1] and bash.rest("errors")
        if self._held:
            self._pass_on(self._err, _unheld(self._held))
        if any(held):
            job = run.answer.newest_job if run.answer else 0
            self.late = LateOutput(job or None, self._text[:4096])
            self.late.follow(bash.leave("output"), bash.leave("errors"))
        elif self._stdin is not None and run.answer and run.answer.newest_job != self._memory.newest_job:
            bash.stale = True  # a job that was started may read on

    # ---------------------------------------------------------------- output

    def _give_out(self, data: bytes) -> None:
        self._pass_on(self._out, data)

    def _give_err(self, data: bytes) -> None:
        if self.run.was_ended:
            whole, newline, self._held = (self._held + data).rpartition(b"\n")
            data = _unheld(whole + newline)
        self._pass_on(self._err, data)

    def _pass_on(self, sink: Callable[[bytes], None], data: bytes) -> None:
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
        """End it; `error` is why."""
        if isinstance(error, Flooded):
            self.run.interrupt("output_limit", time.monotonic())
            return
        if self.failure is None:
            self.failure = error
        self.run.interrupt("cancelled", time.monotonic())


def _check_names(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        plain = name and not name[0].isdigit() and _NAME.issuperset(name.encode("utf-8", "surrogateescape"))
        if not plain or "\0" in value:
            raise InvalidCall(
                f"{name!r} cannot be a variable of a command",
                why="a name is letters, digits and underscores, and a value has no NUL",
                fix="use another name or value in env=",
            )


def _unheld(lines: bytes) -> bytes:
    """Without what bash says because of us."""
    kept = (line for line in lines.splitlines(keepends=True) if _HELD not in line)
    return b"".join(kept)
