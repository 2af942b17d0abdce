"""`map` on a fleet: each slot on a node runs one batch of tasks at a time. And its progress."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Self

from .. import check
from ..errors import InvalidCall, SandboxLost
from .cluster import Cluster, KeeperHandle
from .content import sha256
from .content_store import SentTree
from .factory import SandboxFactory
from .messages import SandboxSpec, TaskCode, checked_options
from .placement import Reservation
from .steps import Call, FirstOf, Sleep, finish, finish_awaited, step

#: The variable with the item of a command.
VARIABLE = "ITEM"
#: Items per slot that may be running or unreported.
_WINDOW = 16
#: Width of the progress bar in characters, and seconds between two updates.
_BAR_WIDTH, _DRAW_EVERY = 30, 0.1


class TaskMap:
    """One `map`: iterate over it for the outcomes, with `for` or `async for` as its fleet does."""

    def __init__(
        self,
        factory: SandboxFactory,
        work: str | Callable[..., Any],
        items: Iterable[Any],
        *,
        concurrency: int | None,
        ordered: bool,
        retries: int,
        progress: bool | Callable[[int, int, int | None], object],
        tenant: str,
        command_options: Mapping[str, Any],
        sandbox_options: Mapping[str, Any],
    ) -> None:
        self._cluster: Cluster = factory.cluster
        self._factory, self._tenant, self._given = factory, tenant, dict(sandbox_options)
        self._slots = _slots(self._cluster, concurrency)
        total = len(items) if isinstance(items, Sized) else None
        self._progress = Progress(progress, total)
        window = _WINDOW * self._slots
        self.board = TaskBoard(items, ordered=ordered, retries=retries, window=window)
        self._is_command = isinstance(work, str)
        self._work, self._options = work, checked_options(command_options)
        if self._options and not self._is_command:
            raise InvalidCall(
                "a function has no timeout= or other options of a command",
                fix="give them to run",
                why="these are for the command that it would run",
            )
        if not self._is_command and not callable(work):
            raise InvalidCall(
                f"map({work!r}, …)",
                fix="give a command, or a function of a sandbox and an item",
                why="it is neither a text nor a function",
            )
        self._code: TaskCode | None = None
        self._spec: SandboxSpec | None = None
        self._tree: SentTree | None = None
        self._idle: list[Reservation] = []
        self._out: dict[Any, tuple[KeeperHandle, Reservation, list[Any]]] = {}
        self._over = False

    # ------------------------------------------------------------ iteration

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TaskOutcome:
        found = finish(self._next())
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TaskOutcome:
        found = await finish_awaited(self._next())
        if found is None:
            raise StopAsyncIteration
        return found

    def close(self) -> None:
        """Start no more tasks. Running ones finish, but their outcomes are not reported."""
        if self._over:
            return
        self._over = True
        self._progress.close()
        placement = self._cluster.placement
        for grant in self._idle:
            placement.release(grant)
        for ref, (_, grant, _) in self._out.items():
            ref.future().add_done_callback(lambda _, grant=grant: placement.release(grant))
        self._idle, self._out = [], {}
        if self._tree is not None:
            self._tree.close()

    def __del__(self) -> None:
        if not self.__dict__.get("_over", True):
            self.close()

    # ------------------------------------------------------------ the work

    async def _next(self) -> TaskOutcome | None:
        while (found := self.board.reported()) is None:
            if self._over:
                return None
            try:
                await self._advance()
            except BaseException:
                self.close()
                raise
        return found

    async def _advance(self) -> None:
        """Start as many tasks as possible, and wait for one batch."""
        if self._spec is None:
            self._spec, self._tree = await self._factory.spec(self._tenant, None, self._given)
            self._code = self._coded()
        if self._cluster.error is not None:
            if self._out:
                self._lose_everything()  # report their outcomes before the error
                return
            over = self.board.over
            self.close()
            if not over:
                raise self._cluster.error
            return
        self._give_out()
        if not self._out:
            if self.board.over:
                self.close()
            else:
                await step(Sleep(0.02))  # no node has room now
            return
        for ref in await step(FirstOf(list(self._out), 0.5)):
            await self._take_in(ref)

    def _give_out(self) -> None:
        placement, content = self._cluster.placement, "" if self._tree is None else self._tree.digest
        while len(self._out) < self._slots:
            batch = self.board.take(_WINDOW // 2)
            if not batch:
                return
            grant = self._idle.pop() if self._idle else placement.take_now(self._tenant, content)
            keeper = None if grant is None else self._cluster.keepers.get(grant.node)
            lost = keeper is None or not keeper.ready or bool(keeper.lost)
            if grant is None or keeper is None or lost or not placement.is_valid(grant):
                self.board.put_back(batch)
                if grant is None:
                    return
                placement.release(grant)
                continue
            items = [self._item(task.item) for task in batch]
            ref = keeper.actor.tasks.remote(self._spec, self._code, items)
            self._out[ref] = (keeper, grant, batch)

    async def _take_in(self, ref: Any) -> None:
        keeper, grant, batch = self._out.pop(ref)
        cluster, node = self._cluster, grant.node
        try:
            kind, value = await step(Call(ref, cluster))
        except cluster.ray.exceptions.RayError as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            cluster.failure(keeper, error, "a task")
            again = self.board.lost(batch, f"its node {node[:8]} or its keeper exited: {why}", node)
            cluster.tell("tasks lost", node, text=f"{len(batch)} tasks, {again} of them are tried again")
            cluster.placement.release(grant)
            return
        except BaseException as error:
            self._out[ref] = (keeper, grant, batch)
            if error is cluster.error:
                return
            raise
        if kind == "error":  # none of them ran: the sandbox could not be opened
            for task in batch:
                self.board.done(task, None, value, node)
        else:
            for task, (how, found, seconds) in zip(batch, value, strict=True):
                self.board.took(seconds)
                self.board.done(task, found if how == "ok" else None, None if how == "ok" else found, node)
            if self._tree is not None:
                cluster.placement.has_content(node, self._tree.digest)
        self._progress.show(self.board.finished, self.board.failed)
        if cluster.placement.waiting or self.board.over:
            cluster.placement.release(grant)  # others wait: queue again for this slot
        else:
            self._idle.append(grant)

    def _lose_everything(self) -> None:
        for _, grant, batch in self._out.values():
            self.board.lost(batch, str(self._cluster.error), grant.node)
        self._out.clear()

    def _item(self, item: Any) -> Any:
        if not self._is_command:
            return item
        if isinstance(item, Mapping):
            return {str(name): str(value) for name, value in item.items()}
        return {VARIABLE: os.fsdecode(item) if isinstance(item, os.PathLike | bytes) else str(item)}

    def _coded(self) -> TaskCode:
        if self._is_command:
            return TaskCode(str(self._work), self._options)
        from ray import cloudpickle

        data = cloudpickle.dumps(self._work)
        return TaskCode(digest=sha256(data), function=self._cluster.ray.put(data))


def _slots(cluster: Cluster, concurrency: int | None) -> int:
    if concurrency is None:
        return max(2, int(2 * cluster.ray.cluster_resources().get("CPU", 1)))
    return check.count("concurrency", concurrency, fix="give a number of sandboxes, at least 1")


class Progress:
    """Shows the number of finished tasks. `how` is True for a bar on a terminal, or a function."""

    def __init__(self, how: bool | Callable[[int, int, int | None], object], total: int | None) -> None:
        self._call = how if callable(how) else None
        self._bar = how is True and sys.stderr.isatty()
        self._total, self._drawn, self._began = total, 0.0, time.monotonic()
        self._last: tuple[int, int] | None = None

    def show(self, done: int, failed: int) -> None:
        """Show the numbers of finished and failed tasks."""
        if self._call is not None:
            self._call(done, failed, self._total)
        self._last = (done, failed)
        if self._bar and time.monotonic() - self._drawn > _DRAW_EVERY:
            self._draw()

    def close(self) -> None:
        """End the line."""
        if self._bar and self._last is not None:
            self._draw()
            print(file=sys.stderr)

    def _draw(self) -> None:
        if self._last is None:
            return
        self._drawn = time.monotonic()
        print(
            f"\r{line(*self._last, self._total, self._drawn - self._began)}",
            end="",
            file=sys.stderr,
            flush=True,
        )


def line(done: int, failed: int, total: int | None, seconds: float) -> str:
    """One line of text: a bar, counts, tasks per second."""
    speed = f"{done / seconds:.1f}/s" if seconds > 0 else ""
    counts = f"{done}" if total is None else f"{done}/{total}"
    filled = 0 if not total else min(_BAR_WIDTH, _BAR_WIDTH * done // total)
    bar = "" if total is None else f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] "
    return f"{bar}{counts} done, {failed} failed, {speed}"


# The tasks of one `map`: which are next, running and done, and the order of reports.
# Pure: `map` on a cluster and a simulation use it. A task starts once. Only if its node is lost, and
# `retries` allows it, does it start again; else its outcome is `SandboxLost`.


#: Target seconds for one batch: short tasks are sent together, long ones alone.
_BATCH_SECONDS = 0.25
_LARGEST = 64


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of one task: its `value`, or the `error`.

    `index` is the position of `item` in the items of `map`, `attempts` the number of times it was sent to a
    node.
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
    """All tasks of one `map`. At most `window` are running or unreported, so memory is bounded."""

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
        """The next tasks for one node: about a quarter of a second of work. Empty if there are none now."""
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
        """Record the duration of a task, to choose the size of the next batches."""
        self._seconds = seconds if self._seconds is None else 0.7 * self._seconds + 0.3 * seconds

    def done(self, task: _MapTask, value: Any, error: BaseException | None, node: str) -> None:
        """Record the outcome of a task."""
        del self._out[task.index]
        self._finish(TaskOutcome(task.index, task.item, value, error, task.attempts, node))

    def lost(self, tasks: Sequence[_MapTask], why: str, node: str) -> int:
        """Handle tasks whose node was lost; return how many will be tried again."""
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
        """Return tasks that were not sent to any node."""
        for task in reversed(tasks):
            del self._out[task.index]
            task.attempts -= 1
            self._again.appendleft(task)

    def reported(self) -> TaskOutcome | None:
        """The next outcome for the caller; None if there is none yet."""
        if not self._ready:
            return None
        self._reported += 1
        return self._ready.popleft()

    @property
    def over(self) -> bool:
        """Whether every task is done; outcomes may still be unreported."""
        return self._exhausted and not self._out and not self._again

    @property
    def out(self) -> int:
        """Number of running tasks."""
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
