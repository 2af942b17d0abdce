"""Drive a command behind the agent, of a shell or a program, in a thread.

Both are a `Machine`: they never wait by themselves. The drivers wait for them: `drive` and `wait` here, and
`advance` in `aio.event_loop`.
"""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Protocol

    from ..shell.command import Outcome

    class Machine(Protocol):
        """A command in steps: `Shell`, after its `begin`, or `Execution`.

        `step` does what can be done without waiting, and returns whether the command is over. It is to be
        called when `fileno()` is readable, when `deadline` has passed and while `pending` is true. Then
        `finish` returns the outcome.
        """

        @property
        def deadline(self) -> float | None: ...
        @property
        def pending(self) -> bool: ...
        def step(self) -> bool: ...
        def fileno(self) -> int: ...
        def interrupt(self) -> object: ...
        def finish(self) -> Outcome: ...


#: Seconds between two looks whether to cancel; and the longest wait.
_LOOK_EVERY = 0.05
_LONGEST = 3600.0


def drive(machine: Machine, cancel: threading.Event | None = None) -> Outcome:
    """Drive it to its end in this thread, and return its outcome. It is interrupted once `cancel` is set.

    It is interrupted as well when a signal's handler raises something, which comes out when it has ended.
    """
    poll = readable(machine)
    raised: BaseException | None = None
    while True:
        try:
            if machine.step():
                break
            if cancel is not None and not machine.pending and cancel.is_set():
                machine.interrupt()
            wait(machine, poll, _LONGEST if cancel is None else _LOOK_EVERY)
        except BaseException as error:
            if raised is not None and not isinstance(error, KeyboardInterrupt):
                break  # it cannot be waited for
            raised = raised or error
            machine.interrupt()
    outcome = machine.finish()
    if raised is not None:
        raise raised
    return outcome


def readable(machine: Machine) -> select.poll:
    """Return what `wait` polls."""
    poll = select.poll()
    poll.register(machine.fileno(), select.POLLIN)
    return poll


def wait(machine: Machine, poll: select.poll, longest: float = _LONGEST) -> None:
    """Wait until its next step has something to do, `longest` seconds at most."""
    if not machine.pending:
        left = _LONGEST if machine.deadline is None else max(0.0, machine.deadline - time.monotonic())
        poll.poll(min(left, longest) * 1000 + 1)
