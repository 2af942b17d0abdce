"""A fleet's sandbox in two versions: `FleetSandbox` for threads, `AsyncFleetSandbox` for asyncio.

They have the names of `Sandbox` and `AsyncSandbox`; names in `REFUSED` raise InvalidCall. A property that has
to ask the node is a method here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from staddle import Merge, Result
from staddle.faces import RemoteSandboxNames

from .messages import checked_options
from .parts import (
    AsyncFleetFiles,
    AsyncFleetProcess,
    AsyncFleetSession,
    AsyncFleetTerminal,
    AwaitedPart,
    BlockingPart,
    FleetFiles,
    FleetProcess,
    FleetSession,
    FleetTerminal,
    in_steps,
    refused,
)
from .remote import RemoteSandbox
from .steps import OVER, finish, finish_awaited

if TYPE_CHECKING:
    from .factory import SandboxFactory

#: Names of a local sandbox that are missing here: the reason, and the alternative.
REFUSED = {
    "check": ("options are checked on the node", "call create(), which raises before anything has run"),
    "from_snapshot": ("a sandbox of a fleet is placed by it", "use fleet.create(snapshot=…)"),
    "drift": ("the copy on the node does not change", "commit() refuses what has changed here since"),
    "review": ("the changes are on the node", "use diff and text_diff; commit() refuses before it writes"),
    "best_of": (
        "forks may be on other nodes",
        "use fleet.map(function): there it is called with a Sandbox, which has it",
    ),
    "environment": (
        "its tools would be one call for each file",
        "use fleet.map(function): there it is called with a Sandbox, which has it",
    ),
    "learned": (
        "what is watched is recorded on the node",
        "use fleet.map(function) with a Sandbox(learn=True), or `staddle learn`",
    ),
    **dict.fromkeys(
        ("at", "bisect", "blame", "history", "redo", "undo"),
        (
            "the points of a history are on the node",
            "use snapshot() and restore(), or fleet.map(function) with a Sandbox(history=True)",
        ),
    ),
}


class StreamChunk:
    """A piece of a command's output: `stream` is "stdout" or "stderr"."""

    def __init__(self, stream: str, data: bytes) -> None:
        self.stream, self.data = stream, data

    @property
    def text(self) -> str:
        """The data as text, with U+FFFD for invalid UTF-8."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


class _StreamFace:
    """A command with streamed output; `result` is set at the end."""

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

    async def _end(self) -> None:
        if self.result is None:
            await self._sandbox.interrupt_session(self._session)


class FleetStream(_StreamFace):
    """A stream; iterate over its chunks."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamChunk:
        found = finish(self._next())
        if found is None:
            raise StopIteration
        return found

    def close(self) -> None:
        """End the command, unless it has ended."""
        finish(self._end())


class AsyncFleetStream(_StreamFace):
    """A stream; iterate with `async for`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        found = await finish_awaited(self._next())
        if found is None:
            raise StopAsyncIteration
        return found

    async def close(self) -> None:
        """End the command, unless it has ended."""
        await finish_awaited(self._end())


class _Face(RemoteSandboxNames):
    """Common part of the blocking and the awaited sandbox: the calls that need the driver."""

    run = in_steps(RemoteSandbox.run)
    exec = in_steps(RemoteSandbox.exec)
    alive = in_steps(RemoteSandbox.alive)
    connect = in_steps(RemoteSandbox.connect)
    expose = in_steps(RemoteSandbox.expose)
    upload_tar = in_steps(RemoteSandbox.upload_tar)
    download_tar = in_steps(RemoteSandbox.download_tar)
    text_diff = in_steps(RemoteSandbox.text_diff)
    snapshot = in_steps(RemoteSandbox.snapshot)
    snapshots = in_steps(RemoteSandbox.snapshots)
    restore = in_steps(RemoteSandbox.restore)
    save = in_steps(RemoteSandbox.save)
    commit = in_steps(RemoteSandbox.commit)
    close = in_steps(RemoteSandbox.close)

    def __init__(self, remote: RemoteSandbox, factory: SandboxFactory) -> None:
        self._sandbox, self._factory = remote, factory

    @property
    def _calls(self) -> RemoteSandbox:
        return self._sandbox

    @property
    def id(self) -> str:
        """Its name in the fleet."""
        return self._calls.name

    @property
    def name(self) -> str:
        """The same as `id`: a fleet's sandboxes have no other name."""
        return self._calls.name

    @property
    def frozen(self) -> bool:
        """True: the copy of the workspace on the node does not change."""
        return True

    drift = refused("drift", *REFUSED["drift"])
    review = refused("review", *REFUSED["review"])
    environment = refused("environment", *REFUSED["environment"])
    best_of = refused("best_of", *REFUSED["best_of"])
    check = refused("check", *REFUSED["check"])
    learned = refused("learned", *REFUSED["learned"])
    at, bisect, blame = (refused(name, *REFUSED[name]) for name in ("at", "bisect", "blame"))
    history, redo, undo = (refused(name, *REFUSED[name]) for name in ("history", "redo", "undo"))
    from_snapshot = refused("from_snapshot", *REFUSED["from_snapshot"])

    @property
    def node(self) -> str:
        """The id of its Ray node."""
        return self._calls.keeper.node

    def __del__(self) -> None:
        self._calls.abandon()

    def __repr__(self) -> str:
        state = " (closed)" if self._calls.closed else " (lost)" if self._calls.keeper.lost else ""
        return f"<{type(self).__name__} {self.id} on {self.node[:8]}{state}>"


class FleetSandbox(_Face, BlockingPart):
    """A sandbox on a node of a fleet, open until `close()`. Made by `Fleet.create`. For threads.

    All methods are thread-safe. If its node or its keeper is lost, every call raises `SandboxLost`; nothing
    is ever run a second time.
    """

    def stream(self, command: str, **options: Any) -> FleetStream:
        """Run `command`, and read its output as it arrives."""
        return FleetStream(self._calls, command, "", options)

    def start(self, command: str | Sequence[str], **options: Any) -> FleetProcess:
        """Start `command`, shell text or a list of arguments, in the background; see `Sandbox.start`."""
        return FleetProcess(self._calls, *finish(self._calls.start(command, **options)))

    def processes(self) -> list[FleetProcess]:
        """List started processes and jobs that commands left behind, including recently ended ones."""
        return [FleetProcess(self._calls, *each) for each in finish(self._calls.processes())]

    def terminal(self, argv: Sequence[str] | None = None, **options: Any) -> FleetTerminal:
        """A terminal with an interactive shell, or the program in `argv`."""
        return FleetTerminal(self._calls, *finish(self._calls.terminal(argv, **options)))

    def session(self, name: str) -> FleetSession:
        """The session of that name: another shell, made on first use."""
        return FleetSession(self._calls, name)

    @property
    def files(self) -> FleetFiles:
        """The files inside, as the sandbox's own user sees them."""
        return FleetFiles(self._calls)

    def fork(self, n: int = 1, *, spread: bool = True) -> list[FleetSandbox]:
        """`n` sandboxes that continue from here, on the nodes with most room (spread=False: this node)."""
        return [
            FleetSandbox(each, self._factory)
            for each in finish(self._factory.fork(self._calls, n, spread=spread))
        ]

    def merge(self, *forks: FleetSandbox, **options: Any) -> Merge:
        """Merge forks on the same node into this sandbox; see `Sandbox.merge` for the options.

        Functions are called on the node.
        """
        return finish(self._calls.merge([each._calls for each in forks], **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncFleetSandbox(_Face, AwaitedPart):
    """A sandbox on a node of a fleet, awaited. Made by `AsyncFleet.create`; see `FleetSandbox`.

    Cancelling a task that waits for a command interrupts the command.
    """

    def stream(self, command: str, **options: Any) -> AsyncFleetStream:
        """Run `command`, and iterate over its output as it arrives."""
        return AsyncFleetStream(self._calls, command, "", options)

    async def start(self, /, command: str | Sequence[str], **options: Any) -> AsyncFleetProcess:
        """Start `command`, shell text or a list of arguments, in the background."""
        return AsyncFleetProcess(self._calls, *await finish_awaited(self._calls.start(command, **options)))

    async def processes(self) -> list[AsyncFleetProcess]:
        """List started processes and jobs that commands left behind, including recently ended ones."""
        found = await finish_awaited(self._calls.processes())
        return [AsyncFleetProcess(self._calls, *each) for each in found]

    async def terminal(self, /, argv: Sequence[str] | None = None, **options: Any) -> AsyncFleetTerminal:
        """A terminal with an interactive shell, or the program in `argv`."""
        return AsyncFleetTerminal(self._calls, *await finish_awaited(self._calls.terminal(argv, **options)))

    def session(self, name: str) -> AsyncFleetSession:
        """The session of that name: another shell, made on first use."""
        return AsyncFleetSession(self._calls, name)

    @property
    def files(self) -> AsyncFleetFiles:
        """The files inside, as the sandbox's own user sees them."""
        return AsyncFleetFiles(self._calls)

    async def fork(self, n: int = 1, *, spread: bool = True) -> list[AsyncFleetSandbox]:
        """`n` sandboxes that continue from here, on the nodes with most room (spread=False: this node)."""
        made = await finish_awaited(self._factory.fork(self._calls, n, spread=spread))
        return [AsyncFleetSandbox(each, self._factory) for each in made]

    async def merge(self, *forks: AsyncFleetSandbox, **options: Any) -> Merge:
        """Merge forks on the same node into this sandbox; see `FleetSandbox.merge`."""
        return await finish_awaited(self._calls.merge([each._calls for each in forks], **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
