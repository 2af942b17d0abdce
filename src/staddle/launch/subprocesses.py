"""The Popen and the CompletedProcess of a wrapped command, with what `subprocess` does not know about it."""

from __future__ import annotations

import subprocess
from typing import Any, Protocol, TypeVar

from ..linux.process_tree import descendants, send
from .signals import SIGKILL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits.usage import Usage

Status = TypeVar("Status", int, int | None)


class Closes(Protocol):
    """An object that is closed when the program has ended."""

    def close(self) -> None: ...


class MonitoredPopen(subprocess.Popen[Any]):
    """A Popen of bubblewrap, a program that confines the command and does not forward signals.

    If a signal ends it, the kernel kills everything inside, so the command cannot handle the signal.
    `send_signal` and `terminate` reach the command's processes; `kill` ends the program and all of them.

    A signal sent to its `pid` in another way reaches only the program. The lifeline from `wrap` is closed
    when the end of the program is noticed.
    """

    lifeline: Closes | None = None

    def poll(self) -> int | None:
        """Poll like any Popen, and close the lifeline at the end."""
        return self._noticed(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        """Wait like any Popen, and close the lifeline at the end."""
        return self._noticed(super().wait(timeout))

    def _noticed(self, status: Status) -> Status:
        if status is not None and self.lifeline is not None:
            lifeline, self.lifeline = self.lifeline, None
            lifeline.close()
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to every process inside, or to the program if there is none yet."""
        inside = [] if self.poll() is not None or sig == SIGKILL else _inside(self.pid)
        for pid in inside:
            send(pid, sig)
        if not inside:
            super().send_signal(sig)


def _inside(pid: int) -> list[int]:
    """Return the processes in the pid namespace of `pid`, without its init, which ignores signals."""
    return [one for one in descendants(pid) if _number_inside(one) > 1]


def _number_inside(pid: int) -> int:
    """Return the pid of a process in its own pid namespace; 0 if that is ours, or if it has exited."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            numbers = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), [])
    except OSError:
        return 0
    return int(numbers[-1]) if len(numbers) > 1 else 0


class Completed(subprocess.CompletedProcess[Any]):
    """A CompletedProcess that names the limit that its command exceeded.

    `reason` is a name of `Reason`: "exited", "signalled", "memory" or "processes". `why` describes the limit
    in a sentence, or is empty. `usage` is the total usage if there are control groups, else None.
    """

    reason = "exited"
    why = ""
    usage: Usage | None = None
