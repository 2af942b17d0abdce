"""Drive commands on an event loop, and call blocking functions in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

from ...faces import AwaitedFace
from ...linux.file_room import FILE_ROOM, PATIENCE, too_many
from ...shell.idle import QUIET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ...events import Event
    from ...faces import Forwarded
    from ...linux.file_room import ReservedRoom
    from ...shell.command import Outcome
    from ..execution import Machine

    T = TypeVar("T")


#: The first sandbox of a process imports modules and probes the host. Threads that did so in parallel would
#: compete with the event loop for the interpreter, so one does and the others wait.
_FIRST, _FIRST_IS_OVER = threading.Lock(), threading.Event()


def first_alone(make: Callable[[], T]) -> T:
    """Open a sandbox in a thread; the first one of this process is opened alone."""
    if not _FIRST_IS_OVER.is_set():
        with _FIRST:
            if not _FIRST_IS_OVER.is_set():
                try:
                    return make()
                finally:
                    _FIRST_IS_OVER.set()
    return make()


async def readable(fd: int, until: float | None = None) -> bool:
    """Wait until `fd` is readable. Returns False if `until` (time.monotonic) comes first."""
    loop = asyncio.get_running_loop()
    return await _ready(loop.add_reader, loop.remove_reader, fd, until)


async def writable(fd: int) -> None:
    """Wait until `fd` is writable."""
    loop = asyncio.get_running_loop()
    await _ready(loop.add_writer, loop.remove_writer, fd, None)


async def _ready(
    add: Callable[..., object], remove: Callable[[int], object], fd: int, until: float | None
) -> bool:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    timer = None
    if until is not None:
        timer = loop.call_later(max(0.0, until - time.monotonic()), _settle, ready, False)
    add(fd, _settle, ready, True)
    try:
        return await ready
    finally:
        remove(fd)
        if timer is not None:
            timer.cancel()


def _settle(ready: asyncio.Future[bool], value: bool) -> None:
    if not ready.done():
        ready.set_result(value)


async def in_thread(
    function: Callable[..., T], *args: object, undo: Callable[[T], object] | None = None
) -> T:
    """Call a function in a thread and wait for it, even if the task is cancelled.

    A cancellation is raised after its end. Then `undo` gets its result, because the caller does not.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await _done(work)
        if work.exception() is None and undo is not None:
            # The task can be cancelled at every await, which would drop work that no thread has begun.
            undoing = asyncio.ensure_future(asyncio.to_thread(undo, work.result()))
            await _done(undoing)
            undoing.exception()  # the caller only gets the cancellation
        raise


async def room_for(number: int) -> ReservedRoom:
    """Reserve room for this many open files, as `FileRoom.reserve`.

    It polls instead of blocking a thread: threads are few, and closing sandboxes needs them.
    """
    began = time.monotonic()
    while (reserved := FILE_ROOM.reserve_now(number)) is None:
        if FILE_ROOM.has_waited(began, PATIENCE):
            raise too_many()
        await asyncio.sleep(QUIET)
    return reserved


class InThreads(AwaitedFace):
    """A face that calls the methods of a local object in threads, as `in_thread` does."""

    async def _opened(self) -> Any:
        """Return the local object. The first use opens it."""
        raise NotImplementedError

    async def _forward(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Any:
        call = partial(row.method, await self._opened(), *args, **options)
        return await in_thread(call, undo=row.undo)


async def _done(work: asyncio.Future[T]) -> None:
    """Wait until `work` is done, even if the task is cancelled meanwhile."""
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            continue


class OnTheLoop:
    """Calls `on_connect` from a thread, and awaits it on the event loop of the sandbox's owner."""

    def __init__(self, on_connect: Callable[[Event], object], seconds: float) -> None:
        self._on_connect, self._seconds = on_connect, seconds
        #: Set when the sandbox is opened.
        self.loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, event: Event) -> object:
        """Return the answer. Raises TimeoutError after `seconds`."""
        answer = self._on_connect(event)
        if self.loop is None or not asyncio.iscoroutine(answer):
            return answer
        try:
            awaited = asyncio.run_coroutine_threadsafe(answer, self.loop)
        except BaseException:
            answer.close()  # the loop is closed
            raise
        try:
            return awaited.result(self._seconds)
        except TimeoutError:
            awaited.cancel()
            raise TimeoutError("no answer in time") from None


async def advance(machine: Machine, enough: Callable[[], bool] = lambda: False) -> bool:
    """Do one step, and wait for the next unless `enough()`. Returns whether it is over.

    If the task is cancelled meanwhile, the command is interrupted and driven to its end before the
    cancellation propagates, so that the session stays usable.
    """
    if machine.step():
        return True
    if enough():
        return False
    try:
        await _moment(machine)
    except asyncio.CancelledError:
        machine.interrupt()
        while not machine.step():
            try:
                await _moment(machine)
            except asyncio.CancelledError:
                continue  # cancelled again: still wait for its end
        raise
    return False


async def see_through(machine: Machine) -> Outcome:
    """Drive `machine` to its end and return its outcome."""
    try:
        while not await advance(machine):
            pass
    except asyncio.CancelledError:
        machine.finish()
        raise
    return machine.finish()


async def _moment(machine: Machine) -> None:
    if machine.pending:
        await asyncio.sleep(0)  # lets other tasks run
    else:
        await readable(machine.fileno(), machine.deadline)
