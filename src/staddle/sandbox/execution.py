"""Drive a command to its end in a thread, and run one program without a shell.

A command behind the agent, of a shell or a program, is a `Machine`, which never blocks. The drivers wait for
it: `drive` and `wait` here, and `advance` in `aio.event_loop`.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from functools import partial

from ..display import shown
from ..errors import StaddleError
from ..interrupts import interruptible
from ..launch.contract import give_pipes
from ..launch.signals import SIGINT, SIGKILL, SIGTERM
from ..limits.usage import of_process
from ..observe.output import OutputFlood
from ..shell.background_output import BackgroundOutput
from ..shell.command import Outcome
from .result import signal_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from ..ipc.agent_client import AgentClient, SpawnedProcess
    from ..ipc.agent_messages import Who
    from ..shell.command import CommandSpec
    from ..shell.usage_meter import UsageMeter

    class Machine(Protocol):
        """A command in steps: `Shell`, after its `begin`, or `Execution`.

        `step` works without blocking, and returns whether the command is over. Call it when `fileno()` is
        readable, when `deadline` has passed and while `pending` is true. Afterwards `finish` returns the
        outcome.
        """

        @property
        def deadline(self) -> float | None: ...
        @property
        def pending(self) -> bool: ...
        def step(self) -> bool: ...
        def fileno(self) -> int: ...
        def interrupt(self) -> object: ...
        def finish(self) -> Outcome: ...


#: Seconds between two checks of `cancel`; and the longest wait.
LOOK_EVERY = 0.05
_LONGEST = 3600.0


def drive(machine: Machine, cancel: threading.Event | None = None) -> Outcome:
    """Drive `machine` to its end in this thread and return its outcome. Setting `cancel` interrupts it.

    An exception from a signal handler also interrupts it, and is raised after its end.
    """
    poll = readable(machine)
    raised: BaseException | None = None
    while True:
        try:
            if machine.step():
                break
            if cancel is not None and not machine.pending and cancel.is_set():
                machine.interrupt()
            wait(machine, poll, _LONGEST if cancel is None else LOOK_EVERY)
        except BaseException as error:
            if raised is not None and not isinstance(error, KeyboardInterrupt):
                break  # waiting for it is impossible
            raised = raised or error
            machine.interrupt()
    outcome = machine.finish()
    if raised is not None:
        raise raised
    return outcome


def readable(machine: Machine) -> select.poll:
    """Return the poll object for `wait`."""
    poll = select.poll()
    poll.register(machine.fileno(), select.POLLIN)
    return poll


def wait(machine: Machine, poll: select.poll, longest: float = _LONGEST) -> None:
    """Wait until the next step has work, at most `longest` seconds."""
    if not machine.pending:
        left = _LONGEST if machine.deadline is None else max(0.0, machine.deadline - time.monotonic())
        interruptible(partial(poll.poll, min(left, longest) * 1000 + 1))


#: The most bytes that one step reads, so that endless output does not block it.
_AT_ONCE = 256 << 10
_PIECE = 64 << 10
#: Signals that end a program, gentle first, and the seconds between them.
_LADDER = (SIGINT, SIGTERM, SIGKILL)
_GRACE = 0.15
#: Seconds to wait after the last signal.
_PATIENCE = 2.0


class Streams:
    """Pipes of a program to be started: `theirs` go inside, the others are ours."""

    def __init__(self, uid: int | None, *, with_stdin: bool, merge: bool = False) -> None:
        self.stdin = -1
        self._theirs: list[int] = []
        self._ours: list[int] = []
        try:
            if with_stdin:
                read, self.stdin = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(self.stdin, False)
                self._ours.append(self.stdin)
                self._theirs.append(read)
            else:
                self._theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            self.stdout = self._readable()
            if merge:  # one pipe keeps the order of both
                self.stderr = -1
                self._theirs.append(os.dup(self._theirs[1]))
            else:
                self.stderr = self._readable()
            give_pipes(uid, self._theirs)
        except BaseException:
            self.close()
            raise

    def _readable(self) -> int:
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        self._ours.append(ours)
        self._theirs.append(theirs)
        os.set_blocking(ours, False)
        return ours

    @property
    def theirs(self) -> tuple[int, int, int]:
        """Standard input, output and error of the program."""
        one, two, three = self._theirs
        return one, two, three

    def started(self) -> None:
        """Close our copies of the program's ends, so that reads see the end of file."""
        while self._theirs:
            os.close(self._theirs.pop())

    def give_away(self, fd: int) -> int:
        """Return this descriptor of ours, which the caller then closes."""
        self._ours.remove(fd)
        return fd

    def close_stdin(self) -> None:
        """End the program's input. A second call does nothing."""
        if self.stdin >= 0:
            fd, self.stdin = self.give_away(self.stdin), -1
            os.close(fd)

    def close(self) -> None:
        """Close all remaining descriptors."""
        self.started()
        while self._ours:
            os.close(self._ours.pop())


class Execution:
    """A running program with its input and output. One thread drives it; any thread may interrupt it."""

    def __init__(
        self,
        agent: AgentClient,
        spec: CommandSpec,
        argv: Sequence[str],
        environment: Mapping[str, str],
        directory: str,
        *,
        uid: int | None,
        known: set[Execution],
        whole: bool = False,
        who: Who | None = None,
        meter: UsageMeter | None = None,
    ) -> None:
        """Start the program, as `who` if given. With `whole`, processes that it leaves are ended with it.

        `meter` measures its usage. It is in `known` from before its start to its end, so that it can be
        interrupted at any time.
        """
        self._agent, self._meter = agent, meter
        if meter is not None:
            meter.begin()
        self._known, self._directory = known, directory
        self._err = spec.out if spec.merge else spec.err
        self._unsent = memoryview(spec.stdin or b"")
        self._began = time.monotonic()
        self.deadline: float | None = None if spec.timeout is None else self._began + spec.timeout
        self.pending = False
        self._status: int | None = None
        self._error: BaseException | None = None
        self._reason = ""  # why we end it, if we do
        self._ladder: list[int] = []
        self._ringing = threading.Lock()
        self._streams = Streams(uid, with_stdin=spec.stdin is not None, merge=spec.merge)
        self._bell = -1
        try:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._known.add(self)
            self._spawned: SpawnedProcess = agent.spawn(
                argv, environment, directory, stdio=self._streams.theirs, whole=whole, waits=True, who=who
            )
            self._streams.started()
            self._epoll = select.epoll()
            self._sinks = {self._streams.stdout: spec.out}
            if not spec.merge:
                self._sinks[self._streams.stderr] = spec.err
            for fd in (self._spawned.fileno(), self._bell, *self._sinks):
                self._epoll.register(fd, select.EPOLLIN)
            if self._unsent:
                self._epoll.register(self._streams.stdin, select.EPOLLOUT)
            else:
                self._streams.close_stdin()
        except BaseException:
            self._leave()
            self._streams.close()
            if meter is not None:
                meter.park()
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when step() has work."""
        return self._epoll.fileno()

    def step(self) -> bool:
        """Do the work that needs no waiting. Returns whether the program is over."""
        if self._status is not None:
            return True
        status = None
        for fd, _ in self._epoll.poll(0):
            if fd == self._streams.stdin:
                self._send()
            elif fd in self._sinks:
                self._read(fd, _AT_ONCE // 2)
            elif fd == self._bell:
                os.eventfd_read(fd)
                self._end("cancelled", SIGINT)
            else:
                status = self._spawned.poll()
        if status is None and self.deadline is not None and time.monotonic() >= self.deadline:
            status = self._out_of_time()
        if status is not None:
            for fd in list(self._sinks):  # its last output is still in the pipes
                self._read(fd, fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ))
            self._status = status
        return status is not None

    @property
    def failure(self) -> str:
        """Reason why it was not started, once it is over; empty if it was."""
        return "" if self._reason else self._spawned.failure

    def interrupt(self) -> None:
        """End it, gently at first, with the outcome `cancelled`. Callable from any thread."""
        with self._ringing:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Set the outcome to `closed`: closing the sandbox kills it. Callable from any thread."""
        self._reason = "closed"

    def finish(self) -> Outcome:
        """Return the outcome, once it is over. Raises the error of a sink."""
        duration = time.monotonic() - self._began
        self._leave()
        self._epoll.close()
        self._spawned.close()
        self._leave_pipes()
        self._streams.close()
        if self._error is not None:
            if self._meter is not None:
                self._meter.park()
            raise self._error
        code = 128 + SIGKILL if self._status is None else self._status
        if self._reason == "timeout":
            return self._outcome(124, None, duration)
        if not self._reason and self._spawned.failure:
            self._err(self._spawned.failure.encode("utf-8", "replace") + b"\n")
            return self._outcome(code, None, duration, not_started=True)
        return self._outcome(code, signal_in(code), duration)

    # ------------------------------------------------------------ steps

    def _leave(self) -> None:
        """Remove it from the executions that can be interrupted."""
        self._known.discard(self)
        with self._ringing:
            bell, self._bell = self._bell, -1
            if bell >= 0:
                os.close(bell)

    def _leave_pipes(self) -> None:
        """Keep its pipes open for processes that still write to them: a closed pipe would kill them."""
        if self._sinks and self._reason != "closed":
            held = [self._streams.give_away(fd) for fd in self._sinks]
            BackgroundOutput(None, b"").follow(held[0], held[1] if len(held) > 1 else -1)

    def _outcome(
        self, code: int, signal: int | None, duration: float, *, not_started: bool = False
    ) -> Outcome:
        ended = "not_started" if not_started else "signalled" if signal else "exited"
        reason = self._reason or ended
        used = self._spawned.used
        usage = None if used is None else of_process(used, duration)
        why = OutputFlood.why if reason == "output_limit" else ""
        if not_started:
            why = shown(self._spawned.failure)
        outcome = Outcome(code, signal, reason, False, duration, self._directory, None, usage, why)
        outcome.errno = self._spawned.errno or None if not_started else None
        if self._meter is not None:
            self._meter.end(outcome)
            self._meter.park()
        return outcome

    def _end(self, reason: str, first: int) -> None:
        if not self._reason:
            self._reason = reason
            self._ladder = list(_LADDER[_LADDER.index(first) :])
            self._out_of_time()

    def _out_of_time(self) -> int | None:
        """Send the next signal. Returns a status if none is left and it does not die."""
        if not self._reason:
            self._end("timeout", SIGTERM)
        elif self._ladder:
            self._spawned.signal(self._ladder.pop(0), everything=True)
            self.deadline = time.monotonic() + (_GRACE if self._ladder else _PATIENCE)
        else:
            try:
                self._agent.confirm()  # the kernel may be slow, but the agent must have received the signal
            except StaddleError as error:
                self._error = self._error or error
            return 128 + SIGKILL
        return None

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._streams.stdin, self._unsent[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._epoll.unregister(self._streams.stdin)
            self._streams.close_stdin()

    def _read(self, fd: int, most: int) -> None:
        while most > 0:
            try:
                data = os.read(fd, min(_PIECE, most))
            except BlockingIOError:
                return
            if not data:
                self._epoll.unregister(fd)
                del self._sinks[fd]
                return
            most -= len(data)
            try:
                if self._error is None:
                    self._sinks[fd](data)
            except OutputFlood:
                self._end("output_limit", SIGTERM)
            except BaseException as error:
                self._error = error
                self._end("cancelled", SIGTERM)
