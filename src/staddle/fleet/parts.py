"""The parts of a fleet's sandbox, each blocking and awaited: files, processes, sessions, terminals."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from os import PathLike, fspath
from typing import IO, Any, Concatenate, ParamSpec, Self, TypeVar

from staddle import Result
from staddle.errors import InvalidCall
from staddle.faces import (
    AwaitedFace,
    BlockingFace,
    FilesNames,
    Forwarded,
    RemoteProcessNames,
    RemoteSessionNames,
    RemoteTerminalNames,
)

from .remote import RemoteSandbox
from .steps import finish, finish_awaited

P = ParamSpec("P")
T = TypeVar("T")

#: Names of a local sandbox's parts that are missing here: the reason, and the alternative.
REFUSED_PARTS = {
    "Files.open": ("a file would be read in many small calls", "use read_bytes, or download"),
    "Files.watch": ("the kernel's events end on the node", "compare stat, or watch in a function of map"),
    "Process.end_fileno": ("a descriptor is of one machine", "use wait, or poll"),
    "Process.stdin_fileno": ("a descriptor is of one machine", "use send_stdin"),
    "Process.send_some": ("the room of a pipe on the node is not known here", "use send_stdin"),
    "Process.follow": ("a function cannot be called from the node", "use wait_for_output with offset="),
    "Process.stream": ("output is asked for, and not sent", "use wait_for_output with offset="),
    "Session.stream": ("one session streams, the sandbox's own", "use run with on_stdout="),
}


def refused(name: str, why: str, fix: str) -> Any:
    """A method that raises InvalidCall with the reason and the alternative."""

    def called(self: object, /, *_: Any, **__: Any) -> Any:
        raise InvalidCall(f"a sandbox of a fleet has no {name}", why=why, fix=fix)

    called.__name__ = name
    called.__doc__ = f"Raise InvalidCall: {why}; {fix}."
    return called


def in_steps(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Forwarded[P, T]:
    """A row of a face that the driver carries out itself, with a coroutine of steps."""
    return Forwarded(method)  # type: ignore[arg-type]


class FleetPart:
    """A sandbox of a fleet, or a part of it, as both faces call it."""

    _sandbox: RemoteSandbox
    #: The part of the sandbox, as keepers name it: "", "files", "session:NAME", "process:NUMBER".
    _path = ""

    @property
    def _calls(self) -> Any:
        """The object with the driver's coroutines."""
        return self

    def _work(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a call: the driver's own, or a request to the keeper."""
        if iscoroutinefunction(row.method):
            made: Coroutine[Any, Any, Any] = row.method(self._calls, *args, **options)
            return made
        return self._call(row.name, *args, **options)

    async def _call(self, /, method: str, *args: Any, **options: Any) -> Any:
        return await self._sandbox.call(self._path, method, *args, **options)


class BlockingPart(BlockingFace, FleetPart):
    """A face for threads."""

    def _forward(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Any:
        return finish(self._work(row, args, options))


class AwaitedPart(AwaitedFace, FleetPart):
    """A face for asyncio."""

    async def _forward(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Any:
        return await finish_awaited(self._work(row, args, options))


# ------------------------------------------------------------ files


class RemoteFiles(FleetPart, FilesNames):
    """The files of a sandbox, and what the driver does for both faces of them."""

    def __init__(self, sandbox: RemoteSandbox, path: str = "files") -> None:
        self._sandbox, self._path = sandbox, path

    def as_user(self, user: str | int) -> Self:
        """The files as seen by another user, by name or number."""
        return type(self)(self._sandbox, f"files:{user}")

    @in_steps
    async def write(self, /, path: str | PathLike[str], data: str | bytes, **options: Any) -> None:
        """Write a file."""
        await self._call("write", path, data, **options)

    @in_steps
    async def upload(self, /, source: str | PathLike[str] | IO[bytes], path: str | PathLike[str]) -> None:
        """Copy a file of the driver, given by path or opened, to `path`; missing directories are made."""
        if isinstance(source, str | PathLike):
            with open(fspath(source), "rb") as opened:
                data = opened.read()
        else:
            data = source.read()
        await self._call("write", path, data, parents=True)

    @in_steps
    async def download(self, /, path: str | PathLike[str], target: str | PathLike[str] | IO[bytes]) -> int:
        """Copy a file of the sandbox to a file of the driver, given by path or opened; return its size."""
        data = await self._call("read_bytes", path)
        if isinstance(target, str | PathLike):
            with open(fspath(target), "wb") as opened:
                return opened.write(data)
        return target.write(data)

    open = refused("files.open", *REFUSED_PARTS["Files.open"])
    watch = refused("files.watch", *REFUSED_PARTS["Files.watch"])


class FleetFiles(BlockingPart, RemoteFiles):
    """The files inside, as the sandbox's own user sees them, blocking."""


class AsyncFleetFiles(AwaitedPart, RemoteFiles):
    """The files inside, as the sandbox's own user sees them, awaited."""


# ------------------------------------------------------------ processes


class RemoteProcess(FleetPart, RemoteProcessNames):
    """A background process, and what the driver does for both faces of it."""

    def __init__(self, sandbox: RemoteSandbox, number: int, pid: int) -> None:
        self._sandbox, self._path, self.pid = sandbox, f"process:{number}", pid

    @in_steps
    async def output(self) -> dict[str, str]:
        """Output so far: {"stdout": …, "stderr": …}."""
        found: dict[str, str] = await self._call("output")
        return found

    @in_steps
    async def wait_for_output(self, timeout: float | None = None, *, offset: int = 0) -> Any:
        """Wait for output after `offset`, and return that."""
        return await self._call("wait_for_output", timeout, offset=offset)

    @in_steps
    async def wait_for_text(self, text: str, timeout: float | None = None) -> Any:
        """Wait until a text is in its output, and return that."""
        return await self._call("wait_for_text", text, timeout)

    @in_steps
    async def running(self) -> bool:
        """Whether it has not ended yet."""
        return await self._call("poll") is None

    end_fileno = refused("process.end_fileno", *REFUSED_PARTS["Process.end_fileno"])
    stdin_fileno = refused("process.stdin_fileno", *REFUSED_PARTS["Process.stdin_fileno"])
    send_some = refused("process.send_some", *REFUSED_PARTS["Process.send_some"])
    follow = refused("process.follow", *REFUSED_PARTS["Process.follow"])
    stream = refused("process.stream", *REFUSED_PARTS["Process.stream"])


class FleetProcess(BlockingPart, RemoteProcess):
    """A background process of a sandbox; `pid` is its process number inside."""


class AsyncFleetProcess(AwaitedPart, RemoteProcess):
    """A background process of a sandbox, awaited."""


# ------------------------------------------------------------ sessions


class RemoteSession(FleetPart, RemoteSessionNames):
    """Another shell of a sandbox, and what the driver does for both faces of it."""

    def __init__(self, sandbox: RemoteSandbox, name: str) -> None:
        self._sandbox, self._path, self._name = sandbox, f"session:{name}", name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @in_steps
    async def run(self, /, command: str, **options: Any) -> Result:
        """Run a command in this session; see `FleetSandbox.run`."""
        return await self._sandbox.run(command, session=self._name, **options)

    stream = refused("session.stream", *REFUSED_PARTS["Session.stream"])


class FleetSession(BlockingPart, RemoteSession):
    """A session, blocking."""


class AsyncFleetSession(AwaitedPart, RemoteSession):
    """A session, awaited."""


# ------------------------------------------------------------ terminals


class RemoteTerminal(FleetPart, RemoteTerminalNames):
    """A terminal of a sandbox, with its number at the keeper."""

    def __init__(self, sandbox: RemoteSandbox, number: int, pid: int) -> None:
        self._sandbox, self._path, self.pid = sandbox, f"terminal:{number}", pid


class FleetTerminal(BlockingPart, RemoteTerminal):
    """A terminal of a sandbox with a program on it; `pid` is its process number inside."""


class AsyncFleetTerminal(AwaitedPart, RemoteTerminal):
    """A terminal of a sandbox, awaited."""
