"""One implementation for threads and event loops: coroutines that wait for Ray alone.

A step is something to wait for: a Ray object reference, a Future of a thread, the first of several
references, the next item of a generator. `await step(…)` passes it to the driver of the coroutine: `finish`
waits in the caller's thread, without an event loop, `finish_awaited` on the caller's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from .channel import CommandChannel

T = TypeVar("T")

#: Used instead of StopIteration, which a coroutine cannot raise.
OVER = object()
#: Seconds after which a waiting thread checks the health of the fleet.
_LOOK = 2.0


class Health(Protocol):
    """The health of a fleet: `error` is set when waiting is pointless."""

    error: Exception | None

    def watch(self, future: asyncio.Future[Any]) -> None:
        """Let `future` fail when the fleet is lost."""


class Call:
    """Wait for a reference, as long as the fleet is healthy."""

    def __init__(self, ref: Any, health: Health) -> None:
        self.ref, self.health = ref, health


class Exchange:
    """Send a request directly to a keeper, and wait for its reply; None if it was not sent."""

    def __init__(self, channel: CommandChannel, request: bytes) -> None:
        self.channel, self.request = channel, request


class FirstOf:
    """Wait until one of the references is ready, at most `seconds`."""

    def __init__(self, refs: Sequence[Any], seconds: float) -> None:
        self.refs, self.seconds = refs, seconds


class NextOf:
    """Wait for the next reference of a generator, and for its content; OVER at its end."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


class Within:
    """Wait for a Future of a thread, at most `seconds`; then raise TimeoutError."""

    def __init__(self, future: Future[Any], seconds: float | None) -> None:
        self.future, self.seconds = future, seconds


class Sleep:
    """Wait for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class _StepAwaitable:
    def __init__(self, what: Any) -> None:
        self._what = what

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._what)


def step(what: Any) -> _StepAwaitable:
    """An awaitable that passes one step to the driver of the coroutine."""
    return _StepAwaitable(what)


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end in this thread."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            what = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        value, error = None, None
        try:
            value = _wait(what)
        except BaseException as failure:
            error = failure


async def finish_awaited(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end on this event loop."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            what = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        value, error = None, None
        try:
            value = await _awaited(what)
        except BaseException as failure:
            error = failure


def _wait(what: Any) -> Any:
    if isinstance(what, Exchange):
        return what.channel.exchange(what.request)
    if isinstance(what, Within):
        return what.future.result(what.seconds)
    if isinstance(what, Sleep):
        import time

        return time.sleep(what.seconds)
    import ray

    if isinstance(what, Call):
        while True:
            if what.health.error is not None:
                raise what.health.error
            try:
                return ray.get(what.ref, timeout=_LOOK)
            except ray.exceptions.GetTimeoutError:
                continue
    if isinstance(what, FirstOf):
        done, rest = ray.wait(list(what.refs), num_returns=1, timeout=what.seconds, fetch_local=False)
        if done and rest:
            more, _ = ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)
            done += more
        return done
    if isinstance(what, NextOf):
        try:
            return ray.get(next(what.generator))
        except StopIteration:
            return OVER
    return ray.get(what)


async def _awaited(what: Any) -> Any:
    if isinstance(what, Exchange):
        return await what.channel.exchange_awaited(what.request)
    if isinstance(what, Call):
        future = asyncio.wrap_future(what.ref.future())
        what.health.watch(future)
        return await future
    if isinstance(what, Within):
        return await asyncio.wait_for(asyncio.wrap_future(what.future), what.seconds)
    if isinstance(what, FirstOf):
        import ray

        waiting = {asyncio.ensure_future(_settled(ref)) for ref in what.refs}
        try:
            await asyncio.wait(waiting, timeout=what.seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        done, _ = ray.wait(list(what.refs), num_returns=len(what.refs), timeout=0, fetch_local=False)
        return done
    if isinstance(what, NextOf):
        try:
            return await (await what.generator.__anext__())
        except StopAsyncIteration:
            return OVER
    if isinstance(what, Sleep):
        return await asyncio.sleep(what.seconds)
    return await what


async def _settled(ref: Any) -> None:
    """Wait for a reference, ignoring its result."""
    try:
        await ref
    except Exception:  # noqa: S110 - who takes the reference gets the error
        pass
