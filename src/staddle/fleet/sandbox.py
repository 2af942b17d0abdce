"""The two faces of a sandbox of a fleet: `FleetSandbox` for threads, `AsyncFleetSandbox` for asyncio.

They have the names of `Sandbox` and `AsyncSandbox`. Not here, because they are of one machine: `connect`,
`expose`, `terminal`, `environment`. What is a property there and has to ask the node is a method here.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from staddle import Result

from .remote import RemoteSandbox, checked_options
from .steps import OVER, awaited, finish, finish_awaited, waited

if TYPE_CHECKING:
    from .factory import SandboxFactory


class StreamChunk:
    """A piece of what a command prints: `stream` is "stdout" or "stderr"."""

    def __init__(self, stream: str, data: bytes) -> None:
        self.stream, self.data = stream, data

    @property
    def text(self) -> str:
        """The same as text, U+FFFD for what is not UTF-8."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


class _Thing:
    """A part of a sandbox: its files, one of its sessions, a process."""

    def __init__(self, sandbox: RemoteSandbox, path: str) -> None:
        self._sandbox, self._path = sandbox, path

    @property
    def _calls(self) -> Self:
        return self

    async def _call(self, /, method: str, *args: Any, **options: Any) -> Any:
        return await self._sandbox.call(self._path, method, *args, **options)


class RemoteFiles(_Thing):
    """The files of a sandbox, as its own user sees them; the methods are those of `Sandbox.files`."""

    async def read(self, /, path: str | PathLike[str], **options: Any) -> str:
        """Read a text."""
        return str(await self._call("read", path, **options))

    async def read_bytes(self, /, path: str | PathLike[str], **options: Any) -> bytes:
        """Read a file."""
        return bytes(await self._call("read_bytes", path, **options))

    async def write(self, /, path: str | PathLike[str], data: str | bytes, **options: Any) -> None:
        """Write a file."""
        await self._call("write", path, data, **options)

    async def list(self, path: str | PathLike[str] = ".") -> Sequence[Any]:
        """The entries of a directory."""
        found: Sequence[Any] = await self._call("list", path)
        return found

    async def exists(self, path: str | PathLike[str]) -> bool:
        """Whether there is something."""
        return bool(await self._call("exists", path))

    async def stat(self, /, path: str | PathLike[str], **options: Any) -> Any:
        """Metadata of an entry."""
        return await self._call("stat", path, **options)

    async def glob(self, pattern: str) -> Sequence[str]:
        """The paths that match."""
        found: Sequence[str] = await self._call("glob", pattern)
        return found

    async def mkdir(self, /, path: str | PathLike[str], **options: Any) -> None:
        """Make a directory."""
        await self._call("mkdir", path, **options)

    async def rename(self, /, old: str | PathLike[str], new: str | PathLike[str], **options: Any) -> None:
        """Rename an entry."""
        await self._call("rename", old, new, **options)

    async def remove(self, /, path: str | PathLike[str], **options: Any) -> None:
        """Remove an entry."""
        await self._call("remove", path, **options)


class FleetFiles(_Thing):
    """The files inside, for threads."""

    @property
    def _calls(self) -> Any:
        return RemoteFiles(self._sandbox, self._path)

    read = waited(RemoteFiles.read)
    read_bytes = waited(RemoteFiles.read_bytes)
    write = waited(RemoteFiles.write)
    list = waited(RemoteFiles.list)
    exists = waited(RemoteFiles.exists)
    stat = waited(RemoteFiles.stat)
    glob = waited(RemoteFiles.glob)
    mkdir = waited(RemoteFiles.mkdir)
    rename = waited(RemoteFiles.rename)
    remove = waited(RemoteFiles.remove)


class AsyncFleetFiles(_Thing):
    """The files inside, awaited."""

    @property
    def _calls(self) -> Any:
        return RemoteFiles(self._sandbox, self._path)

    read = awaited(RemoteFiles.read)
    read_bytes = awaited(RemoteFiles.read_bytes)
    write = awaited(RemoteFiles.write)
    list = awaited(RemoteFiles.list)
    exists = awaited(RemoteFiles.exists)
    stat = awaited(RemoteFiles.stat)
    glob = awaited(RemoteFiles.glob)
    mkdir = awaited(RemoteFiles.mkdir)
    rename = awaited(RemoteFiles.rename)
    remove = awaited(RemoteFiles.remove)


class RemoteProcess(_Thing):
    """A process in the background, as the driver calls it."""

    async def poll(self) -> int | None:
        """Its status; None while it runs."""
        found: int | None = await self._call("poll")
        return found

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; None when it did not come in time."""
        found: int | None = await self._call("wait", timeout)
        return found

    async def output(self) -> dict[str, str]:
        """Output so far: {"stdout": …, "stderr": …}."""
        found: dict[str, str] = await self._call("output")
        return found

    async def send_stdin(self, data: bytes | str) -> None:
        """Write to its standard input."""
        await self._call("send_stdin", data)

    async def close_stdin(self) -> None:
        """Close its standard input."""
        await self._call("close_stdin")

    async def kill(self, signal: int = 9) -> None:
        """Send it a signal."""
        await self._call("kill", signal)


class FleetProcess(_Thing):
    """A process in the background of a sandbox; `pid` is its number inside."""

    def __init__(self, sandbox: RemoteSandbox, number: int, pid: int) -> None:
        super().__init__(sandbox, f"process:{number}")
        self.pid = pid

    @property
    def _calls(self) -> Any:
        return RemoteProcess(self._sandbox, self._path)

    poll = waited(RemoteProcess.poll)
    wait = waited(RemoteProcess.wait)
    output = waited(RemoteProcess.output)
    send_stdin = waited(RemoteProcess.send_stdin)
    close_stdin = waited(RemoteProcess.close_stdin)
    kill = waited(RemoteProcess.kill)


class AsyncFleetProcess(FleetProcess):
    """The same, awaited."""

    poll = awaited(RemoteProcess.poll)  # type: ignore[assignment]
    wait = awaited(RemoteProcess.wait)  # type: ignore[assignment]
    output = awaited(RemoteProcess.output)  # type: ignore[assignment]
    send_stdin = awaited(RemoteProcess.send_stdin)  # type: ignore[assignment]
    close_stdin = awaited(RemoteProcess.close_stdin)  # type: ignore[assignment]
    kill = awaited(RemoteProcess.kill)  # type: ignore[assignment]


class RemoteSession(_Thing):
    """Another shell of a sandbox, as the driver calls it."""

    async def run(self, /, command: str, **options: Any) -> Result:
        """Run a command in this session; see `FleetSandbox.run`."""
        return await self._sandbox.run(command, session=self._path.partition(":")[2], **options)

    async def interrupt(self) -> None:
        """End the command that runs now."""
        await self._call("interrupt")

    async def restart(self) -> None:
        """A new shell as it was at the beginning."""
        await self._call("restart")

    async def state(self) -> Any:
        """Its state: env, cwd, functions, aliases, options, history."""
        return await self._sandbox.look("state", self._path.partition(":")[2])

    async def close(self) -> None:
        """End the shell and what it started."""
        await self._call("close")


class FleetSession(_Thing):
    """A session, for threads."""

    @property
    def _calls(self) -> Any:
        return RemoteSession(self._sandbox, self._path)

    run = waited(RemoteSession.run)
    interrupt = waited(RemoteSession.interrupt)
    restart = waited(RemoteSession.restart)
    state = waited(RemoteSession.state)
    close = waited(RemoteSession.close)


class AsyncFleetSession(_Thing):
    """A session, awaited."""

    @property
    def _calls(self) -> Any:
        return RemoteSession(self._sandbox, self._path)

    run = awaited(RemoteSession.run)
    interrupt = awaited(RemoteSession.interrupt)
    restart = awaited(RemoteSession.restart)
    state = awaited(RemoteSession.state)
    close = awaited(RemoteSession.close)


class FleetSnapshot:
    """A snapshot of a sandbox of a fleet: to `restore` there, or for `create(snapshot=…)` on any node.

    It is on the node of its sandbox, and is lost with that; `save` writes it to a file of the driver.
    """

    def __init__(self, sandbox: RemoteSandbox, number: int, label: str, method: str) -> None:
        self.sandbox, self.number, self.label, self.method = sandbox, number, label, method

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, whole or not at all. With asyncio use `await sandbox.save(path, snapshot)`."""
        finish(self.sandbox.save(path, self.number))

    def close(self) -> None:
        """Let it go, without waiting."""
        if not self.sandbox.closed and not self.sandbox.keeper.lost:
            self.sandbox.keeper.actor.drop_snapshot.remote(self.sandbox.name, self.number)

    def __repr__(self) -> str:
        return f"<FleetSnapshot {self.label!r} of {self.sandbox.name} ({self.method})>"


class _StreamFace:
    """A command that is read as it prints; `result` is there at the end."""

    def __init__(self, sandbox: RemoteSandbox, command: str, session: str, options: dict[str, Any]) -> None:
        self._sandbox, self._session = sandbox, session
        self._stream = sandbox.stream_of(command, session, checked_options(options))
        self.result: Result | None = None

    async def _next(self) -> StreamChunk | None:
        found = await self._sandbox.next_chunk(self._stream)
        if found is OVER:
            return None
        kind, data = found
        if kind == "ok":
            self.result = data
            return None
        return StreamChunk(kind, data)


class FleetStream(_StreamFace):
    """Iterate for the chunks."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamChunk:
        found = finish(self._next())
        if found is None:
            raise StopIteration
        return found


class AsyncFleetStream(_StreamFace):
    """Iterate with `async for`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        found = await finish_awaited(self._next())
        if found is None:
            raise StopAsyncIteration
        return found


class _Face:
    """Common part of the blocking and the awaited sandbox."""

    def __init__(self, remote: RemoteSandbox, factory: SandboxFactory) -> None:
        self._calls, self._factory = remote, factory

    @property
    def id(self) -> str:
        """Its name in the fleet."""
        return self._calls.name

    @property
    def node(self) -> str:
        """The id of its Ray node."""
        return self._calls.keeper.node

    def __del__(self) -> None:
        self._calls.abandon()

    def __repr__(self) -> str:
        state = " (closed)" if self._calls.closed else " (lost)" if self._calls.keeper.lost else ""
        return f"<{type(self).__name__} {self.id} on {self.node[:8]}{state}>"


class FleetSandbox(_Face):
    """A sandbox on a node of a fleet, open until `close()`. Made by `Fleet.create`. For threads.

    Everything may be called from any thread. When its node or its keeper is lost, every call raises
    `SandboxLost`; nothing is ever run a second time.
    """

    run = waited(RemoteSandbox.run)
    exec = waited(RemoteSandbox.exec)
    interrupt = waited(RemoteSandbox.interrupt)
    pause = waited(RemoteSandbox.pause)
    resume = waited(RemoteSandbox.resume)
    reset = waited(RemoteSandbox.reset)
    state = waited(RemoteSandbox.state)
    enforced = waited(RemoteSandbox.enforced)
    plan = waited(RemoteSandbox.plan)
    policy = waited(RemoteSandbox.policy)
    usage = waited(RemoteSandbox.usage)
    alive = waited(RemoteSandbox.alive)
    events = waited(RemoteSandbox.events)
    violations = waited(RemoteSandbox.violations)
    refusals = waited(RemoteSandbox.refusals)
    packages = waited(RemoteSandbox.packages)
    upload_tar = waited(RemoteSandbox.upload_tar)
    download_tar = waited(RemoteSandbox.download_tar)
    diff = waited(RemoteSandbox.diff)
    text_diff = waited(RemoteSandbox.text_diff)
    discard = waited(RemoteSandbox.discard)
    commit = waited(RemoteSandbox.commit)
    close = waited(RemoteSandbox.close)

    def stream(self, command: str, **options: Any) -> FleetStream:
        """Run `command`, and read what it prints as it comes."""
        return FleetStream(self._calls, command, "", options)

    def start(self, command: str | Sequence[str], **options: Any) -> FleetProcess:
        """Start `command`, shell text or a list of arguments, in the background; see `Sandbox.start`."""
        return FleetProcess(self._calls, *finish(self._calls.start(command, **options)))

    def session(self, name: str) -> FleetSession:
        """The session of that name: another shell, made when it is first used."""
        return FleetSession(self._calls, f"session:{name}")

    @property
    def files(self) -> FleetFiles:
        """The files inside, as the sandbox's own user sees them."""
        return FleetFiles(self._calls, "files")

    def snapshot(self, label: str = "") -> FleetSnapshot:
        """Save this moment, to come back to or to continue from on another node."""
        return FleetSnapshot(self._calls, *finish(self._calls.snapshot(label)))

    def restore(self, snapshot: FleetSnapshot) -> None:
        """Be as at that snapshot of this sandbox."""
        finish(self._factory.restore(self._calls, snapshot.sandbox, snapshot.number))

    def save(self, path: str | PathLike[str], snapshot: FleetSnapshot | None = None) -> None:
        """Write a snapshot of it, or it as it is now, to a file of the driver: `Snapshot.load` reads it."""
        finish(self._calls.save(path, None if snapshot is None else snapshot.number))

    def fork(self, n: int = 1, *, spread: bool = True) -> list[FleetSandbox]:
        """`n` sandboxes that continue from here, on the nodes with the most room; spread=False: here."""
        return [
            FleetSandbox(each, self._factory)
            for each in finish(self._factory.fork(self._calls, n, spread=spread))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncFleetSandbox(_Face):
    """A sandbox on a node of a fleet, awaited. Made by `AsyncFleet.create`; see `FleetSandbox`.

    Cancelling a task that waits for a command interrupts the command.
    """

    run = awaited(RemoteSandbox.run)
    exec = awaited(RemoteSandbox.exec)
    interrupt = awaited(RemoteSandbox.interrupt)
    pause = awaited(RemoteSandbox.pause)
    resume = awaited(RemoteSandbox.resume)
    reset = awaited(RemoteSandbox.reset)
    state = awaited(RemoteSandbox.state)
    enforced = awaited(RemoteSandbox.enforced)
    plan = awaited(RemoteSandbox.plan)
    policy = awaited(RemoteSandbox.policy)
    usage = awaited(RemoteSandbox.usage)
    alive = awaited(RemoteSandbox.alive)
    events = awaited(RemoteSandbox.events)
    violations = awaited(RemoteSandbox.violations)
    refusals = awaited(RemoteSandbox.refusals)
    packages = awaited(RemoteSandbox.packages)
    upload_tar = awaited(RemoteSandbox.upload_tar)
    download_tar = awaited(RemoteSandbox.download_tar)
    diff = awaited(RemoteSandbox.diff)
    text_diff = awaited(RemoteSandbox.text_diff)
    discard = awaited(RemoteSandbox.discard)
    commit = awaited(RemoteSandbox.commit)
    close = awaited(RemoteSandbox.close)

    def stream(self, command: str, **options: Any) -> AsyncFleetStream:
        """Run `command`, and iterate over what it prints as it comes."""
        return AsyncFleetStream(self._calls, command, "", options)

    async def start(self, /, command: str | Sequence[str], **options: Any) -> AsyncFleetProcess:
        """Start `command`, shell text or a list of arguments, in the background."""
        return AsyncFleetProcess(self._calls, *await finish_awaited(self._calls.start(command, **options)))

    def session(self, name: str) -> AsyncFleetSession:
        """The session of that name: another shell, made when it is first used."""
        return AsyncFleetSession(self._calls, f"session:{name}")

    @property
    def files(self) -> AsyncFleetFiles:
        """The files inside, as the sandbox's own user sees them."""
        return AsyncFleetFiles(self._calls, "files")

    async def snapshot(self, label: str = "") -> FleetSnapshot:
        """Save this moment, to come back to or to continue from on another node."""
        return FleetSnapshot(self._calls, *await finish_awaited(self._calls.snapshot(label)))

    async def restore(self, snapshot: FleetSnapshot) -> None:
        """Be as at that snapshot of this sandbox."""
        await finish_awaited(self._factory.restore(self._calls, snapshot.sandbox, snapshot.number))

    async def save(self, path: str | PathLike[str], snapshot: FleetSnapshot | None = None) -> None:
        """Write a snapshot of it, or it as it is now, to a file of the driver."""
        await finish_awaited(self._calls.save(path, None if snapshot is None else snapshot.number))

    async def fork(self, n: int = 1, *, spread: bool = True) -> list[AsyncFleetSandbox]:
        """`n` sandboxes that continue from here, on the nodes with the most room; spread=False: here."""
        made = await finish_awaited(self._factory.fork(self._calls, n, spread=spread))
        return [AsyncFleetSandbox(each, self._factory) for each in made]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
