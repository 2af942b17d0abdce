"""The tasks of one `map`: which are next, which are out, which are done, in which order they are reported.

Pure: it is used by `map` on a cluster, and by a simulation. A task is given out once. Only when the node
that had it is lost, and `retries` allows it, it is given out again; else its outcome is `SandboxLost`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from staddle import check
from staddle.errors import SandboxLost

#: Seconds that one batch should take: short tasks travel together, long ones alone.
_BATCH_SECONDS = 0.25
_LARGEST = 64


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of one task: its `value`, or the `error` why there is none.

    `index` is the position of `item` in what `map` was given, `attempts` how often it was given to a node.
    """

    index: int
    item: Any
    value: Any = None
    error: BaseException | None = None
    attempts: int = 1
    node: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def get(self) -> Any:
        """Return the value; raise the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass
class _MapTask:
    index: int
    item: Any
    attempts: int = 0


class TaskBoard:
    """All tasks of one `map`. At most `window` are out or wait to be reported, so memory is bounded."""

    def __init__(self, items: Iterable[Any], *, ordered: bool, retries: int, window: int) -> None:
        check.count("retries", retries, 0, fix="give a number, 0 for at most once")
        self._items: Iterator[Any] = iter(items)
        self._ordered, self._retries, self._window = ordered, retries, max(1, window)
        self._again: deque[_MapTask] = deque()
        self._out: dict[int, _MapTask] = {}
        self._done: dict[int, TaskOutcome] = {}
        self._ready: deque[TaskOutcome] = deque()
        self._next_index = self._next_ready = self._reported = 0
        self._exhausted = False
        self._seconds: float | None = None
        self.finished = self.failed = self.retried = 0

    def take(self, most: int = _LARGEST) -> list[_MapTask]:
        """The next tasks for one node: as many as should take a quarter of a second. Empty: none now."""
        size = 1 if self._seconds is None else int(_BATCH_SECONDS / max(self._seconds, 0.001))
        batch: list[_MapTask] = []
        while len(batch) < max(1, min(size, most, _LARGEST)):
            task = self._one()
            if task is None:
                break
            task.attempts += 1
            self._out[task.index] = task
            batch.append(task)
        return batch

    def _one(self) -> _MapTask | None:
        if self._again:
            return self._again.popleft()
        if self._exhausted or self._next_index - self._reported >= self._window:
            return None
        try:
            item = next(self._items)
        except StopIteration:
            self._exhausted = True
            return None
        task = _MapTask(self._next_index, item)
        self._next_index += 1
        return task

    def took(self, seconds: float) -> None:
        """One task took so long: the next batches are made for that."""
        self._seconds = seconds if self._seconds is None else 0.7 * self._seconds + 0.3 * seconds

    def done(self, task: _MapTask, value: Any, error: BaseException | None, node: str) -> None:
        """A task has come to its end."""
        del self._out[task.index]
        self._finish(TaskOutcome(task.index, task.item, value, error, task.attempts, node))

    def lost(self, tasks: Sequence[_MapTask], why: str, node: str) -> int:
        """The node that had them is lost; how many are tried again."""
        again = 0
        for task in tasks:
            if self._out.pop(task.index, None) is None:
                continue
            if task.attempts <= self._retries:
                self._again.append(task)
                self.retried += 1
                again += 1
                continue
            error = SandboxLost(
                f"the sandbox of task {task.index} is lost",
                why=why,
                fix="it may have run in part: look, and run it again, or give map retries=",
            )
            self._finish(TaskOutcome(task.index, task.item, None, error, task.attempts, node))
        return again

    def put_back(self, tasks: Sequence[_MapTask]) -> None:
        """They were not given to any node after all."""
        for task in reversed(tasks):
            del self._out[task.index]
            task.attempts -= 1
            self._again.appendleft(task)

    def reported(self) -> TaskOutcome | None:
        """The next outcome for the caller; None when there is none yet."""
        if not self._ready:
            return None
        self._reported += 1
        return self._ready.popleft()

    @property
    def over(self) -> bool:
        """Whether every task is done; outcomes may still wait to be reported."""
        return self._exhausted and not self._out and not self._again

    @property
    def out(self) -> int:
        """Number of items that are out."""
        return len(self._out)

    @property
    def given(self) -> int:
        """Number of items taken from the caller."""
        return self._next_index

    def _finish(self, outcome: TaskOutcome) -> None:
        self.finished += 1
        self.failed += not outcome.ok
        if not self._ordered:
            self._ready.append(outcome)
            return
        self._done[outcome.index] = outcome
        while (found := self._done.pop(self._next_ready, None)) is not None:
            self._next_ready += 1
            self._ready.append(found)
