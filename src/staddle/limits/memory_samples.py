"""The memory of a shell and what it started, where no control group counts it: looked at now and then.

It is an estimate. A command is looked at from the second turn of the sampler on, since most are over by
then. A process that lives shorter than a turn may be missed, and memory that several processes share is
counted for each of them.
"""

from __future__ import annotations

import os
import threading

from ..background import start_thread
from ..errors import ThreadUnavailable

#: Seconds between two turns, and turns without a command after which the thread waits to be asked again.
_TURN, _LAST_TURNS = 0.02, 100
#: More processes of one command are not looked at in one turn.
_MOST = 512


def peak_of(pid: int) -> int:
    """The most memory, in bytes, that this process had at one time; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"VmHWM:")), b"")
    except (OSError, ValueError):
        return 0
    words = line.split()
    return int(words[1]) << 10 if len(words) > 1 else 0


def peak_of_tree(pid: int) -> int:
    """The same of a process and all below it that live now, added up."""
    total, todo, seen = 0, [pid], 0
    while todo and seen < _MOST:
        one = todo.pop()
        seen += 1
        total += peak_of(one)
        todo += _children(one)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (OSError, ValueError):
        pass  # it has ended, or the kernel does not tell
    return found


class SampledCommand:
    """A running command: the most memory that was seen of its tree, NEW until the first turn."""

    NEW = -1
    __slots__ = ("peak",)

    def __init__(self) -> None:
        self.peak = self.NEW


class MemorySampler:
    """Looks at the trees of running commands, in one thread for all.

    `running` are these commands, by the pid of their shell: put in and taken out by the threads that run
    commands. Who puts one in calls `wake` unless it `is_awake`.
    """

    def __init__(self) -> None:
        self.running: dict[int, SampledCommand] = {}
        self.is_awake = False
        self._wake: threading.Event | None = None

    def wake(self) -> None:
        """Have the thread look at `running` from now on."""
        if self._wake is None:
            wake = threading.Event()
            try:
                start_thread(lambda: self._look(wake), "staddle-memory")
            except ThreadUnavailable:
                return  # this command's memory is not measured
            self._wake = wake
            os.register_at_fork(after_in_child=self._forget)
        self.is_awake = True
        self._wake.set()

    def _forget(self) -> None:
        """A fork has no such thread."""
        self.running, self.is_awake, self._wake = {}, False, None

    def _look(self, wake: threading.Event) -> None:
        pause, idle = threading.Event(), 0
        while True:
            wake.wait()
            pause.wait(_TURN)
            for shell in list(self.running):
                if (command := self.running.get(shell)) is None:
                    continue
                is_new = command.peak == command.NEW
                command.peak = 0 if is_new else max(command.peak, peak_of_tree(shell))
            idle = 0 if self.running else idle + 1
            if idle > _LAST_TURNS:
                wake.clear()
                self.is_awake, idle = False, 0
                if self.running:  # one has begun in this very moment
                    self.wake()


SAMPLER = MemorySampler()
