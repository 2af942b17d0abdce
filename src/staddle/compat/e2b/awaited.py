"""The interface for asyncio: each call runs in a thread."""

from __future__ import annotations

import asyncio
import inspect
import time

from .commands import CommandHandle, Commands, Pty, PtyHandle
from .filesystem import FileStream, Filesystem, WatchHandle
from .info import Pages, SandboxException, TimeoutException
from .sandbox import E2BSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any, Self

_WRAPPED = (E2BSandbox, Commands, Filesystem, Pty, CommandHandle, PtyHandle, WatchHandle, Pages)


class CallbacksOnLoop:
    """Callbacks of one call: threads call them, and the caller's event loop runs them in order.

    A thread does not wait for them: the loop may be busy, or have ended.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._last: Future[None] | None = None
        self._failed: BaseException | None = None

    def wrapped(self, value: Any) -> Any:
        """A function that a thread can call; other values are returned unchanged."""
        if not callable(value):
            return value

        def call(*args: Any) -> None:
            coroutine = self._in_turn(value, args)
            try:
                self._last = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            except RuntimeError:
                coroutine.close()  # the loop has ended

        return call

    async def over(self) -> None:
        """Wait for all calls so far; raise the first error of a callback."""
        if self._last is not None:
            await asyncio.wrap_future(self._last)
        if self._failed is not None:
            raise self._failed

    async def _in_turn(self, function: Any, args: tuple[Any, ...]) -> None:
        async with self._turn:
            try:
                result = function(*args)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                self._failed = self._failed or error


class Awaited:
    """The methods of an object as coroutines; other attributes are unchanged."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name == "stream_input":
            return self._stream_input
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return _wrapped(value)

        async def call(*args: Any, **options: Any) -> Any:
            callbacks = CallbacksOnLoop()
            args = tuple(map(callbacks.wrapped, args))
            options = {name: callbacks.wrapped(each) for name, each in options.items()}
            result = await asyncio.to_thread(value, *args, **options)
            await callbacks.over()
            return _wrapped(result)

        return call

    def _stream_input(self, pid: int, *, timeout: float | None = 60) -> AsyncCommandInputHandle:
        return AsyncCommandInputHandle(self._target, pid, timeout)


class AsyncCommandInputHandle:
    """The input of a command or terminal: `await handle.send(data)`, `close()`, or `async with`."""

    def __init__(self, target: Commands | Pty, pid: int, timeout: float | None) -> None:
        self._target, self._pid, self._closed = target, pid, False
        self._until = time.monotonic() + timeout if timeout else float("inf")

    async def send(self, data: str | bytes) -> None:
        """Write to it. TimeoutException after its timeout."""
        if self._closed:
            raise SandboxException("this input is closed: open another with stream_input(pid)")
        if time.monotonic() > self._until:
            raise TimeoutException("the time of this input is up: open another with stream_input(pid)")
        await asyncio.to_thread(self._target.stream_input, self._pid, [data])

    async def close(self) -> None:
        """Send no more; the standard input stays open, as in E2B."""
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AwaitedStream:
    """The content of a file, piece by piece: `async for`, and `async with` or `aclose()` before its end."""

    def __init__(self, stream: FileStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = await asyncio.to_thread(next, self._stream, None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Stop reading."""
        await asyncio.to_thread(self._stream.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AwaitedByIdToo:
    """A method of E2BSandbox, awaited: on a sandbox, or on the class with a sandbox id first."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: AsyncE2BSandbox | None, owner: type) -> Any:
        target = E2BSandbox if instance is None else instance._target

        async def call(*args: Any, **options: Any) -> Any:
            return _wrapped(await asyncio.to_thread(getattr(target, self._name), *args, **options))

        return call


class OfOneToo:
    """`list_snapshots` as pages: of a sandbox, or on the class of all sandboxes."""

    def __get__(self, instance: AsyncE2BSandbox | None, owner: type) -> Any:
        target = E2BSandbox if instance is None else instance._target
        return lambda *args, **options: Awaited(target.list_snapshots(*args, **options))


class AsyncE2BSandbox(Awaited):
    """A sandbox, awaited: `await AsyncSandbox.create()`, `await sandbox.commands.run("ls")`."""

    @classmethod
    async def create(cls, *args: Any, **options: Any) -> Self:
        """Open a sandbox."""
        return cls(await asyncio.to_thread(E2BSandbox.create, *args, **options))

    list_snapshots = OfOneToo()

    @staticmethod
    def list(*args: Any, **options: Any) -> Any:
        """The sandboxes of this process and of your server, as pages."""
        return Awaited(E2BSandbox.list(*args, **options))

    connect, kill, pause, beta_pause = (AwaitedByIdToo() for _ in range(4))
    set_timeout, get_info, create_snapshot, fork = (AwaitedByIdToo() for _ in range(4))
    delete_snapshot, get_metrics, update_network = (AwaitedByIdToo() for _ in range(3))

    def get_host(self, port: int) -> str:
        """As `E2BSandbox.get_host`."""
        host: str = self._target.get_host(port)
        return host

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


def _wrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_wrapped(each) for each in value]
    if isinstance(value, FileStream):
        return AwaitedStream(value)
    if isinstance(value, E2BSandbox):
        return AsyncE2BSandbox(value)
    return Awaited(value) if isinstance(value, _WRAPPED) else value
