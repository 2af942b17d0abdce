"""The parts of a fleet's sandbox, each blocking and awaited: files, processes, sessions, terminals."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from os import PathLike, fspath
from typing import IO, Any, Self

from staddle import Result
from staddle.errors import InvalidCall

from .remote import RemoteSandbox
from .steps import awaited, waited

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


def refused(name: str, why: str, fix: str) -> Callable[..., Any]:
    """A method that raises InvalidCall with the reason and the alternative."""

    def called(self: object, /, *_: Any, **__: Any) -> Any:
        raise InvalidCall(f"a sandbox of a fleet has no {name}", why=why, fix=fix)

    called.__name__ = name
    called.__doc__ = f"Raise InvalidCall: {why}; {fix}."
    return called


def forwarded(name: str, doc: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A method that is forwarded to the keeper."""

    async def called(self: Any, /, *args: Any, **options: Any) -> Any:
        return await self._call(name, *args, **options)

    called.__name__, called.__doc__ = name, doc
    return called


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
        """Whether the path exists."""
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

    append = forwarded("append", "Add to the end of a file, which is made if it does not exist.")
    chmod = forwarded("chmod", "Set the permissions of a file or directory.")
    copy = forwarded("copy", "Copy a file, or a directory with all that is in it.")
    edit = forwarded("edit", "Replace `old` by `new` in a file; how often.")
    grep = forwarded("grep", "Lines that match a pattern in a file, or below a directory.")
    readlink = forwarded("readlink", "Read the path that a link has in it.")
    realpath = forwarded("realpath", "Its path without links.")
    write_many = forwarded("write_many", "Write many small files at once, each by itself whole.")

    async def upload(self, /, source: str | PathLike[str] | IO[bytes], path: str | PathLike[str]) -> None:
        """Copy a file of the driver, given by path or opened, to `path`; missing directories are made."""
        if isinstance(source, str | PathLike):
            with open(fspath(source), "rb") as opened:
                data = opened.read()
        else:
            data = source.read()
        await self._call("write", path, data, parents=True)

    async def download(self, /, path: str | PathLike[str], target: str | PathLike[str] | IO[bytes]) -> int:
        """Copy a file of the sandbox to a file of the driver, given by path or opened; return its size."""
        data = await self.read_bytes(path)
        if isinstance(target, str | PathLike):
            with open(fspath(target), "wb") as opened:
                return opened.write(data)
        return target.write(data)


class FleetFiles(_Thing):
    """The files inside, blocking."""

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
    append = waited(RemoteFiles.append)
    chmod = waited(RemoteFiles.chmod)
    copy = waited(RemoteFiles.copy)
    edit = waited(RemoteFiles.edit)
    grep = waited(RemoteFiles.grep)
    readlink = waited(RemoteFiles.readlink)
    realpath = waited(RemoteFiles.realpath)
    write_many = waited(RemoteFiles.write_many)
    upload = waited(RemoteFiles.upload)
    download = waited(RemoteFiles.download)
    open = refused("files.open", *REFUSED_PARTS["Files.open"])
    watch = refused("files.watch", *REFUSED_PARTS["Files.watch"])

    def as_user(self, user: str | int) -> Self:
        """The files as seen by another user, by name or number."""
        return type(self)(self._sandbox, f"files:{user}")


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
    append = awaited(RemoteFiles.append)
    chmod = awaited(RemoteFiles.chmod)
    copy = awaited(RemoteFiles.copy)
    edit = awaited(RemoteFiles.edit)
    grep = awaited(RemoteFiles.grep)
    readlink = awaited(RemoteFiles.readlink)
    realpath = awaited(RemoteFiles.realpath)
    write_many = awaited(RemoteFiles.write_many)
    upload = awaited(RemoteFiles.upload)
    download = awaited(RemoteFiles.download)
    open = refused("files.open", *REFUSED_PARTS["Files.open"])
    watch = refused("files.watch", *REFUSED_PARTS["Files.watch"])

    def as_user(self, user: str | int) -> Self:
        """The files as seen by another user, by name or number."""
        return type(self)(self._sandbox, f"files:{user}")


class RemoteProcess(_Thing):
    """A background process, as the driver calls it."""

    async def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        found: int | None = await self._call("poll")
        return found

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; None after the timeout."""
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

    async def running(self) -> bool:
        """Whether it has not ended yet."""
        return await self.poll() is None

    async def failure(self) -> str:
        """After its end: the reason why it was not started; empty if it was."""
        return str(await self._call("failure"))

    wait_for_output = forwarded("wait_for_output", "Wait for output after `offset`, and return that.")
    wait_for_text = forwarded("wait_for_text", "Wait until a text is in its output, and return that.")
    wait_for_port = forwarded("wait_for_port", "Wait until a server inside listens at a port.")


class FleetProcess(_Thing):
    """A background process of a sandbox; `pid` is its process number inside."""

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
    running = waited(RemoteProcess.running)
    failure = waited(RemoteProcess.failure)
    wait_for_output = waited(RemoteProcess.wait_for_output)
    wait_for_text = waited(RemoteProcess.wait_for_text)
    wait_for_port = waited(RemoteProcess.wait_for_port)
    end_fileno = refused("process.end_fileno", *REFUSED_PARTS["Process.end_fileno"])
    stdin_fileno = refused("process.stdin_fileno", *REFUSED_PARTS["Process.stdin_fileno"])
    send_some = refused("process.send_some", *REFUSED_PARTS["Process.send_some"])
    follow = refused("process.follow", *REFUSED_PARTS["Process.follow"])
    stream = refused("process.stream", *REFUSED_PARTS["Process.stream"])


class AsyncFleetProcess(FleetProcess):
    """A background process of a sandbox, awaited."""

    poll = awaited(RemoteProcess.poll)  # type: ignore[assignment]
    wait = awaited(RemoteProcess.wait)  # type: ignore[assignment]
    output = awaited(RemoteProcess.output)  # type: ignore[assignment]
    send_stdin = awaited(RemoteProcess.send_stdin)  # type: ignore[assignment]
    close_stdin = awaited(RemoteProcess.close_stdin)  # type: ignore[assignment]
    kill = awaited(RemoteProcess.kill)  # type: ignore[assignment]
    running = awaited(RemoteProcess.running)  # type: ignore[assignment]
    failure = awaited(RemoteProcess.failure)  # type: ignore[assignment]
    wait_for_output = awaited(RemoteProcess.wait_for_output)
    wait_for_text = awaited(RemoteProcess.wait_for_text)
    wait_for_port = awaited(RemoteProcess.wait_for_port)


class RemoteSession(_Thing):
    """Another shell of a sandbox, as the driver calls it."""

    async def run(self, /, command: str, **options: Any) -> Result:
        """Run a command in this session; see `FleetSandbox.run`."""
        return await self._sandbox.run(command, session=self._path.partition(":")[2], **options)

    async def interrupt(self) -> None:
        """End the running command."""
        await self._call("interrupt")

    async def restart(self) -> None:
        """Start a new shell in its initial state."""
        await self._call("restart")

    async def state(self) -> Any:
        """Its state: env, cwd, functions, aliases, options, history."""
        return await self._sandbox.look("state", self._path.partition(":")[2])

    async def close(self) -> None:
        """End the shell and its processes."""
        await self._call("close")


class FleetSession(_Thing):
    """A session, blocking."""

    @property
    def _calls(self) -> Any:
        return RemoteSession(self._sandbox, self._path)

    run = waited(RemoteSession.run)
    interrupt = waited(RemoteSession.interrupt)
    restart = waited(RemoteSession.restart)
    state = waited(RemoteSession.state)
    close = waited(RemoteSession.close)
    stream = refused("session.stream", *REFUSED_PARTS["Session.stream"])

    @property
    def name(self) -> str:
        """Its name."""
        return self._path.partition(":")[2]


class AsyncFleetSession(FleetSession):
    """A session, awaited."""

    run = awaited(RemoteSession.run)  # type: ignore[assignment]
    interrupt = awaited(RemoteSession.interrupt)  # type: ignore[assignment]
    restart = awaited(RemoteSession.restart)  # type: ignore[assignment]
    state = awaited(RemoteSession.state)
    close = awaited(RemoteSession.close)  # type: ignore[assignment]


class RemoteTerminal(_Thing):
    """A terminal of a sandbox, as the driver calls it."""

    async def read(self, timeout: float | None = None) -> bytes:
        """Read new output, waiting for some. Empty: none came in time, or the program ended."""
        return bytes(await self._call("read", timeout))

    write = forwarded("write", "Type `data`. Waits while the program does not read.")
    resize = forwarded("resize", "Set another size; the programs on it get SIGWINCH.")
    poll = forwarded("poll", "Return the exit code of the program; None while it runs.")
    wait = forwarded("wait", "Wait for the end of the program; its exit code, or None.")
    kill = forwarded("kill", "Kill the program, with everything it started.")
    close = forwarded("close", "Hang up. Twice is as once.")


class FleetTerminal(_Thing):
    """A terminal of a sandbox with a program on it; `pid` is its process number inside."""

    def __init__(self, sandbox: RemoteSandbox, number: int, pid: int) -> None:
        super().__init__(sandbox, f"terminal:{number}")
        self.pid = pid

    @property
    def _calls(self) -> Any:
        return RemoteTerminal(self._sandbox, self._path)

    read = waited(RemoteTerminal.read)
    write = waited(RemoteTerminal.write)
    resize = waited(RemoteTerminal.resize)
    poll = waited(RemoteTerminal.poll)
    wait = waited(RemoteTerminal.wait)
    kill = waited(RemoteTerminal.kill)
    close = waited(RemoteTerminal.close)


class AsyncFleetTerminal(FleetTerminal):
    """A terminal of a sandbox, awaited."""

    read = awaited(RemoteTerminal.read)  # type: ignore[assignment]
    write = awaited(RemoteTerminal.write)
    resize = awaited(RemoteTerminal.resize)
    poll = awaited(RemoteTerminal.poll)
    wait = awaited(RemoteTerminal.wait)
    kill = awaited(RemoteTerminal.kill)
    close = awaited(RemoteTerminal.close)
