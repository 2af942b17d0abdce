"""A Popen of a program that confines the command and passes no signal on: bubblewrap.

A signal that ends it has the kernel kill everything inside, without a signal that the command could handle.
"""

from __future__ import annotations

import subprocess
from typing import Any, Protocol, TypeVar

from ..linux.process_tree import descendants, send
from .signals import SIGKILL

Status = TypeVar("Status", int, int | None)


class Closes(Protocol):
    """Object that is closed when the program has ended."""

    def close(self) -> None: ...


class MonitoredPopen(subprocess.Popen[Any]):
    """`send_signal` and `terminate` reach the command's processes; `kill` ends the program and all of them.

    A signal sent to its `pid` in another way reaches the program alone. The lifeline that `wrap` gave it is
    closed when its end is noticed.
    """

    lifeline: Closes | None = None

    def poll(self) -> int | None:
        """As Popen's."""
        return self._noticed(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        """As Popen's."""
        return self._noticed(super().wait(timeout))

    def _noticed(self, status: Status) -> Status:
        if status is not None and self.lifeline is not None:
            lifeline, self.lifeline = self.lifeline, None
            lifeline.close()
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to every process inside, or to the program while there is none."""
        inside = [] if self.poll() is not None or sig == SIGKILL else _inside(self.pid)
        for pid in inside:
            send(pid, sig)
        if not inside:
            super().send_signal(sig)


def _inside(pid: int) -> list[int]:
    """Processes in the pid namespace that `pid` has made, without the first, which ignores signals."""
    return [one for one in descendants(pid) if _number_inside(one) > 1]


def _number_inside(pid: int) -> int:
    """The number of a process in its own pid namespace; 0 if that is ours, or there is no such process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            numbers = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), [])
    except OSError:
        return 0
    return int(numbers[-1]) if len(numbers) > 1 else 0
