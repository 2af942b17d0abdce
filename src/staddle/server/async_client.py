"""`await staddle.connect_async()`: sandboxes of a server, with the names of `AsyncSandbox`.

    async with await staddle.connect_async() as client:
        sb = await client.create(".", name="fix")
        result = await sb.run("make")

Each face here has an object of `client`, and makes its calls in a thread. As in `AsyncSandbox`, cancelling a
task that waits for a command interrupts the command. Values that need no request are properties, the others
are coroutines.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from staddle import Sandbox
from staddle.faces import (
    AwaitedFace,
    FilesNames,
    Forwarded,
    RemoteProcessNames,
    RemoteSandboxNames,
    RemoteSessionNames,
    RemoteTerminalNames,
)

from .client import (
    Client,
    ServerCommand,
    ServerFiles,
    ServerProcess,
    ServerReview,
    ServerSandbox,
    ServerSession,
    ServerSnapshot,
    ServerStream,
    ServerTerminal,
    command_body,
    connect,
)

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from typing import TypeVar

    from staddle import Policy, Result

    T = TypeVar("T")

#: Calls of a client that may wait at the same time.
_THREADS = 256
_END = object()


async def connect_async(
    url_or_socket: str | None = None,
    *,
    token: str | None = None,
    cafile: str | None = None,
    start: bool = True,
) -> AsyncClient:
    """Connect to a server as `connect` does, for asyncio."""
    threads = ThreadPoolExecutor(_THREADS, "staddle-server")
    try:
        loop = asyncio.get_running_loop()
        made = partial(connect, url_or_socket, token=token, cafile=cafile, start=start)
        return AsyncClient(await loop.run_in_executor(threads, made), threads)
    except BaseException:
        threads.shutdown(wait=False)
        raise


class ServerFace(AwaitedFace):
    """The awaited face of an object of the blocking client."""

    def __init__(self, blocking: Any, threads: ThreadPoolExecutor) -> None:
        self._blocking, self._threads = blocking, threads

    async def _forward(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Any:
        def work() -> Any:
            found: Any = getattr(self._blocking, row.name)  # of a property: a request
            return found(*map(_unfaced, args), **each) if callable(found) else found

        each = {name: _unfaced(value) for name, value in options.items()}
        return await self._made(work, row.undo)

    async def _made(self, work: Callable[[], Any], undo: Callable[[Any], object] | None = None) -> Any:
        """Make a call in a thread. If the task is cancelled, `undo` gets its result first."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return self._faced(await asyncio.shield(future))
        except asyncio.CancelledError:
            if undo is not None:  # when cancelled again, it goes on in the background
                await asyncio.shield(self._undone(undo, future))
            raise

    async def _undone(self, undo: Callable[[Any], object], future: asyncio.Future[Any]) -> None:
        await asyncio.wait([future])
        if not future.cancelled() and future.exception() is None:
            undoing = asyncio.get_running_loop().run_in_executor(self._threads, undo, future.result())
            await asyncio.wait([undoing])
            undoing.exception()  # the caller only gets the cancellation

    def _faced(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._faced(each) for each in found]
        kind = _FACES.get(type(found))
        return found if kind is None else kind(found, self._threads)

    async def _iterated(self, begin: Callable[[], Iterator[Any]]) -> AsyncIterator[Any]:
        iterator = await self._made(begin)
        while (found := await self._made(partial(next, iterator, _END))) is not _END:
            yield found

    def __getattr__(self, name: str) -> Any:
        """Return a fact that the object has without a request: an id, a name, a number."""
        facts = vars(self._blocking)
        if name.startswith("_") or name not in facts:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return facts[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerFace) and bool(self._blocking == other._blocking)

    def __hash__(self) -> int:
        return hash(self._blocking)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._blocking!r}>"


def _unfaced(value: Any) -> Any:
    return value._blocking if isinstance(value, ServerFace) else value


class AsyncServerFiles(ServerFace, FilesNames):
    """The files inside; see `AsyncSandbox.files`."""

    write = Forwarded(ServerFiles.write)
    upload = Forwarded(ServerFiles.upload)
    download = Forwarded(ServerFiles.download)

    def as_user(self, user: str | int) -> AsyncServerFiles:
        """Return the files as another user sees them."""
        return AsyncServerFiles(self._blocking.as_user(user), self._threads)


class AsyncServerSnapshot(ServerFace):
    """A snapshot of a sandbox in the server."""

    diff = Forwarded(ServerSnapshot.diff)
    close = Forwarded(ServerSnapshot.close)

    async def parent(self) -> AsyncServerSnapshot | None:
        """Return the snapshot that it continues; None if there is none."""
        found: AsyncServerSnapshot | None = await self._made(lambda: self._blocking.parent)
        return found


class AsyncServerReview(ServerFace):
    """A review that the server keeps; see `Review`."""

    commit = Forwarded(ServerReview.commit)


class AsyncServerProcess(ServerFace, RemoteProcessNames):
    """A background process of a sandbox."""

    output = Forwarded(ServerProcess.output)
    read = Forwarded(ServerProcess.read)

    async def running(self) -> bool:
        """Whether it is still running."""
        return await self.poll() is None

    async def timed_out(self) -> bool:
        """Whether it was ended because its time was up."""
        return bool(await self._made(lambda: self._blocking.timed_out))

    def stream(self, offset: int = 0) -> AsyncIterator[Any]:
        """Iterate over its output from `offset` on, to its end."""
        return self._iterated(partial(self._blocking.stream, offset))


class AsyncServerTerminal(ServerFace, RemoteTerminalNames):
    """A terminal of a sandbox. Its program continues without a reader."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncServerStream(ServerFace):
    """A command with streamed output, which begins with the iteration; afterwards `result` is set."""

    def __init__(self, begin: Callable[[], ServerStream], threads: ThreadPoolExecutor) -> None:
        super().__init__(None, threads)
        self._begin = begin

    @property
    def result(self) -> Result | None:
        """The result of the command, after its end."""
        return None if self._blocking is None else self._blocking.result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            if self._blocking is None:
                self._blocking = await self._made(self._begin, ServerStream.close)
            found = await self._made(partial(next, self._blocking, _END))
        except asyncio.CancelledError:
            await self.close()
            raise
        if found is _END:
            raise StopAsyncIteration
        return found

    async def close(self) -> None:
        """Interrupt the command, if it still runs, and wait for its end."""
        if self._blocking is not None:
            await self._made(self._blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _end(command: ServerCommand) -> None:
    """Interrupt a command, and wait for its end."""
    command.interrupt()
    command.result()


class _Runs(ServerFace):
    async def _run(self, body: dict[str, Any], check: bool) -> Any:
        where = self._blocking
        begin = partial(ServerCommand, where._transport, where._path, {**body, **where._session}, 0)
        command = await self._made(begin, _end)
        try:
            result = await self._made(command.result)
        except asyncio.CancelledError:
            await self._made(partial(_end, command))
            raise
        return result.check() if check else result

    async def run(self, command: str, *, check: bool = False, **options: Any) -> Any:
        """Run `command`, and wait for its end; see `AsyncSandbox.run`."""
        heard = {name: options.pop(f"on_{name}", None) for name in ("stdout", "stderr")}
        if heard == {"stdout": None, "stderr": None}:
            return await self._run(command_body("run", {"command": command}, options), check)
        async with self.stream(command, **options) as stream:
            async for chunk in stream:
                if heard[chunk.stream] is not None:
                    heard[chunk.stream](chunk.text)
        return stream.result.check() if check and stream.result else stream.result

    def stream(self, command: str, **options: Any) -> AsyncServerStream:
        """Run `command` when the iteration begins, and iterate over its output as it arrives."""
        return AsyncServerStream(partial(ServerStream, self._blocking, command, options), self._threads)


class AsyncServerSession(_Runs, RemoteSessionNames):
    """Another shell of a sandbox."""


def close_all(sandboxes: list[ServerSandbox]) -> None:
    """Close these sandboxes."""
    for each in sandboxes:
        each.close()


class AsyncServerSandbox(_Runs, RemoteSandboxNames):
    """A sandbox in a server. It stays open when this program ends; `close()` ends it."""

    drift = Forwarded(Sandbox.drift)
    describe = Forwarded(ServerSandbox.describe)
    processes = Forwarded(ServerSandbox.processes)
    start = Forwarded(ServerSandbox.start, ServerProcess.kill)
    commands = Forwarded(ServerSandbox.commands)
    terminal = Forwarded(ServerSandbox.terminal, ServerTerminal.close)
    terminals = Forwarded(ServerSandbox.terminals)
    upload_tar = Forwarded(ServerSandbox.upload_tar)
    download_tar = Forwarded(ServerSandbox.download_tar)
    text_diff = Forwarded(ServerSandbox.text_diff)
    review = Forwarded(ServerSandbox.review)
    commit = Forwarded(ServerSandbox.commit)
    snapshot = Forwarded(ServerSandbox.snapshot, ServerSnapshot.close)
    snapshots = Forwarded(ServerSandbox.snapshots)
    restore = Forwarded(ServerSandbox.restore)
    fork = Forwarded(ServerSandbox.fork, close_all)
    history = Forwarded(ServerSandbox.history)
    undo = Forwarded(ServerSandbox.undo)
    redo = Forwarded(ServerSandbox.redo)
    questions = Forwarded(ServerSandbox.questions)
    answer = Forwarded(ServerSandbox.answer)
    close = Forwarded(ServerSandbox.close)

    async def frozen(self) -> bool:
        """Whether later edits on the host are hidden; see `Sandbox.frozen`."""
        return bool(await self._made(lambda: self._blocking.frozen))

    async def alive(self) -> bool:
        """Whether it can run commands."""
        return bool(await self._made(lambda: self._blocking.alive))

    async def exec(self, argv: Sequence[str], *, check: bool = False, **options: Any) -> Any:
        """Run a program with exactly these arguments, without a shell; see `AsyncSandbox.exec`."""
        words = argv if isinstance(argv, str) else list(argv)
        return await self._run(command_body("exec", {"argv": words}, options), check)

    def output_of(self, command: str, offset: int = 0, *, follow: bool = True) -> AsyncIterator[Any]:
        """Iterate over the output of a command of any client; with `follow` to its end."""
        return self._iterated(partial(self._blocking.output_of, command, offset, follow=follow))

    def session(self, name: str) -> AsyncServerSession:
        """Return the session with this name, another shell; its first command creates it."""
        return AsyncServerSession(self._blocking.session(name), self._threads)

    @property
    def files(self) -> AsyncServerFiles:
        """Files inside, with the rights of the sandbox's own user."""
        return AsyncServerFiles(self._blocking.files, self._threads)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_FACES: dict[type, type[ServerFace]] = {
    ServerFiles: AsyncServerFiles,
    ServerProcess: AsyncServerProcess,
    ServerReview: AsyncServerReview,
    ServerSandbox: AsyncServerSandbox,
    ServerSession: AsyncServerSession,
    ServerSnapshot: AsyncServerSnapshot,
    ServerTerminal: AsyncServerTerminal,
}
# What a server cannot do raises at once, here as there.
for _kind, _face in _FACES.items():
    for _name, _method in vars(_kind).items():
        if getattr(_method, "is_refused", False):
            setattr(_face, _name, _method)


class AsyncClient(ServerFace):
    """A connection to a server, for asyncio; see `Client`."""

    about = Forwarded(Client.about)
    open_page = Forwarded(Client.open_page)
    events = Forwarded(Client.events)
    stop = Forwarded(Client.stop)

    async def create(
        self, workspace: str | os.PathLike[str] | None = None, policy: Policy | None = None, **options: Any
    ) -> AsyncServerSandbox:
        """Open a sandbox, with the options of `Sandbox`. `ask=True`: ask about unlisted destinations."""
        made = partial(self._blocking.create, workspace, policy, **options)
        sandbox: AsyncServerSandbox = await self._made(made, ServerSandbox.close)
        return sandbox

    async def list(self, label: str | None = None) -> list[AsyncServerSandbox]:
        """List the sandboxes, oldest first; with `label` ("NAME=VALUE") only those that have it."""
        found: list[AsyncServerSandbox] = await self._made(partial(self._blocking.list, label))
        return found

    async def get(self, id: str) -> AsyncServerSandbox:
        """Return the sandbox with this id, or the only one with this name; else FileNotFoundError."""
        found: AsyncServerSandbox = await self._made(partial(self._blocking.get, id))
        return found

    async def close(self) -> None:
        """Close the connections. The sandboxes stay."""
        await self._made(self._blocking.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
