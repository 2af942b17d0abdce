"""`staddle.connect()`: sandboxes of a server, with the names of `Sandbox`.

    client = staddle.connect()                  # this user's server, started if none runs
    sb = client.create(".", name="fix")         # ends with the server, or by sb.close()
    sb.run("make").check()
    staddle.connect().get("fix").diff()         # from any other program

A client that ends harms nothing: its sandboxes stay. A property of `Sandbox` is a property here as well, and
asks the server.
"""

from __future__ import annotations

import base64
import os
from typing import IO, TYPE_CHECKING, Any, Self
from urllib.parse import quote

from staddle import Policy, Result, Sandbox
from staddle.display import whole_characters
from staddle.errors import InvalidCall, SandboxClosed
from staddle.faces import (
    BlockingFace,
    FilesNames,
    Forwarded,
    RemoteProcessNames,
    RemoteSandboxNames,
    RemoteSessionNames,
    RemoteTerminalNames,
)
from staddle.json_values import decode, decode_error, encode, read_result, type_named

from .operations import NO_SANDBOX, fields
from .output import STDERR, STDOUT
from .transport import PendingReply, Reply, Transport
from .websocket import WebSocket

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

#: Seconds of one request that waits: then it asks again.
_WAIT = 30.0
_RANGE = 8 << 20
#: After so many bytes of output the next piece is asked for before these are read.
_LARGE = 64 << 10
#: Options of `Sandbox` that are functions, or belong to one process: the reason, and the alternative.
_LOCAL = {
    "on_connect": (
        "a function cannot be called from the server",
        "give ask=True, then use questions() and answer()",
    ),
    "on_request": (
        "a function cannot be called from the server",
        "give ask=True, then use questions() and answer()",
    ),
    **dict.fromkeys(
        ("on_command", "on_result", "on_violation", "audit"),
        ("a function cannot be called from the server", "read client.events()"),
    ),
    "spill": ("the server has other files", "use stream"),
    "cancel": ("an Event is of one process", "call interrupt()"),
}
#: What to do for the calls that need the history in this process.
_KEPT_HISTORY = "create it with keep=NAME, close it, and use Sandbox(keep=NAME, history=True)"
#: Options of a command: the fields that this client does not fill in.
_COMMAND = fields("run") - {"id", "kind", "command", "argv", "session", "hold"}


def refused(name: str, why: str, fix: str) -> Any:
    """Return a method that raises InvalidCall with the reason and the alternative."""

    def called(self: object, /, *_: Any, **__: Any) -> Any:
        raise InvalidCall(f"a sandbox of a server has no {name}", why=why, fix=fix)

    called.__name__ = name
    called.__doc__ = f"Raise InvalidCall: {why}; {fix}."
    vars(called)["is_refused"] = True
    return called


def checked_options(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the options, ready to send. Raises InvalidCall for what does not travel."""
    found = {}
    for name, value in options.items():
        if name in known:
            if repr(value) == "(the policy's)":
                continue
            if name == "stdin" and hasattr(value, "read"):
                value = value.read()  # noqa: PLW2901
            if value is not None or name in ("timeout", "output_limit"):
                found[name] = encode(value)
        elif value is not None:
            why, fix = _LOCAL.get(name, ("there is no such option", f"known are {', '.join(sorted(known))}"))
            raise InvalidCall(f"{name} does not work through a server", why=why, fix=fix)
    return found


def command_body(kind: str, what: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request for a command."""
    return {"kind": kind, **what, **checked_options(options, _COMMAND)}


class Client:
    """A connection to a server. Thread-safe."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.about()  # raises if no server answers

    def about(self) -> dict[str, Any]:
        """Return facts about the server: version, pid, when it began, the number of sandboxes."""
        found: dict[str, Any] = self._transport.request("GET", "/v1").json()
        return found

    def open_page(self) -> dict[str, Any]:
        """Return the address of the server's page, with the token; see `staddle serve --page`."""
        found: dict[str, Any] = self._transport.request("POST", "/v1/page").json()
        return found

    def create(
        self, workspace: str | os.PathLike[str] | None = None, policy: Policy | None = None, **options: Any
    ) -> ServerSandbox:
        """Open a sandbox, with the options of `Sandbox`. `ask=True`: ask about unlisted destinations."""
        body = checked_options(options, fields("create") - {"workspace", "policy"})
        if workspace is not None:
            body["workspace"] = os.path.abspath(os.fsdecode(workspace))
        if policy is not None:
            body["policy"] = encode(policy)
        return ServerSandbox(self, self._transport.request("POST", "/v1/sandboxes", body).json())

    def list(self, label: str | None = None) -> list[ServerSandbox]:
        """List the sandboxes, oldest first; with `label` ("NAME=VALUE") only those that have it."""
        query = None if label is None else {"label": label}
        return [
            ServerSandbox(self, each)
            for each in self._transport.request("GET", "/v1/sandboxes", query=query).json()
        ]

    def get(self, id: str) -> ServerSandbox:
        """Return the sandbox with this id, or the only one with this name; else FileNotFoundError."""
        return ServerSandbox(
            self, self._transport.request("GET", f"/v1/sandboxes/{quote(id, safe='')}").json()
        )

    def events(self, after: int = 0, wait: float = 0.0, sandbox: str | None = None) -> dict[str, Any]:
        """Return `events` after the number `after`, `last`, and the number of `missed` ones; wait for one."""
        query = {"after": after, "wait": wait, **({} if sandbox is None else {"sandbox": sandbox})}
        found: dict[str, Any] = self._transport.request("GET", "/v1/events", query=query).json()
        return found

    def stop(self) -> None:
        """End the server with every sandbox. What is kept stays on disk."""
        self._transport.request("POST", "/v1/stop")

    def close(self) -> None:
        """Close the connections. The sandboxes stay."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._transport.where or 'the server of this user'}>"


def connect(
    url_or_socket: str | None = None,
    *,
    token: str | None = None,
    cafile: str | None = None,
    start: bool = True,
) -> Client:
    """Connect to a server (default: this user's own, started if none runs).

    With `start=False` no server is started: StaddleError if none runs.
    A path is a UNIX socket. A URL (https://HOST:PORT) needs the `token`, or STADDLE_SERVER_TOKEN in the
    environment; `cafile` has the certificates to trust (default: the system's).
    """
    return Client(Transport(url_or_socket, token=token, cafile=cafile, start=start))


class SandboxRequests:
    """The requests about one sandbox. SandboxClosed if the server has it no more."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.begin, self.upgraded = transport.begin, transport.upgraded

    def request(self, method: str, path: str, data: Any = None, **options: Any) -> Reply:
        """Make a request; see `Transport.request`."""
        try:
            return self._transport.request(method, path, data, **options)
        except FileNotFoundError as error:
            if str(error.strerror).startswith(NO_SANDBOX):
                raise SandboxClosed(
                    "the sandbox is closed",
                    why="it was closed, its time was up, or the server has ended",
                    fix="create another one",
                ) from error
            raise


class ServerPart(BlockingFace):
    """A sandbox of a server, or a part of it: rows of the table become calls."""

    keeps_properties = True
    _path, _on = "", ""
    _transport: SandboxRequests

    def _forward(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Any:
        return self._call(row.name, *args, **options)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        body = {"on": self._on, "method": method, "args": encode(list(args)), "options": encode(options)}
        return decode(self._transport.request("POST", f"{self._path}/call", body).json()["value"])


class ServerFiles(ServerPart, FilesNames):
    """The files inside, as the sandbox's own user sees them."""

    def __init__(self, transport: SandboxRequests, path: str, on: str = "files") -> None:
        self._transport, self._path, self._on = transport, path, on

    def as_user(self, user: str | int) -> ServerFiles:
        """Return the files as another user sees them."""
        return ServerFiles(self._transport, self._path, f"files:{user}")

    def write(self, /, path: str | os.PathLike[str], data: Any, **options: Any) -> None:
        """Write a file; see `Files.write`."""
        self._call("write", path, data.read() if hasattr(data, "read") else data, **options)

    def upload(self, source: str | os.PathLike[str] | IO[bytes], path: str | os.PathLike[str]) -> None:
        """Copy a file of this program, given by path or opened, to `path`; missing directories are made."""
        if isinstance(source, str | os.PathLike):
            with open(source, "rb") as opened:
                data = opened.read()
        else:
            data = source.read()
        if self._on != "files":
            self._call("write", path, data, parents=True)
            return
        query = {"path": os.fsdecode(path)}
        self._transport.request("PUT", f"{self._path}/files/content", query=query, body=data)

    def download(self, path: str | os.PathLike[str], target: str | os.PathLike[str] | IO[bytes]) -> int:
        """Copy a file of the sandbox to a file of this program, given by path or opened; return its size."""
        if isinstance(target, str | os.PathLike):
            with open(target, "wb") as opened:
                return self.download(path, opened)
        if not (at := self.stat(path).size):
            return 0
        size, at = at, 0
        while at < size:
            headers = {"Range": f"bytes={at}-{min(at + _RANGE, size) - 1}"}
            query = {"path": os.fsdecode(path)}
            reply = self._transport.request(
                "GET", f"{self._path}/files/content", query=query, headers=headers
            )
            target.write(reply.body)
            at += len(reply.body)
        return size

    open = refused("files.open", "a file would be read in many small calls", "use read_bytes, or download")
    watch = refused("files.watch", "the kernel's events end in the server", "compare stat")


def _changes_of(sandbox: ServerSandbox, path: str, query: dict[str, Any]) -> list[Any]:
    """Return the changes that a request gives."""
    found: list[Any] = decode(sandbox._request("GET", path, query=query))
    for each in found:
        _ask_for_text(sandbox, each, path, query)
    return found


def _ask_for_text(sandbox: ServerSandbox, change: Any, path: str, query: dict[str, Any]) -> None:
    """Have `change.text_diff()` ask the server."""

    def asked(context: int, limit: int) -> str:
        if (context, limit) != (3, 1 << 20):
            raise InvalidCall("context and limit are the server's", why="it makes the text", fix="omit them")
        every = sandbox._request("GET", path, query={**query, "path": change.path, "diff": 1})
        return "".join(each["diff"] for each in every)

    change.__dict__["_asked"] = asked


class ServerSnapshot:
    """A snapshot of a sandbox in the server."""

    def __init__(self, sandbox: ServerSandbox, facts: dict[str, Any]) -> None:
        self._sandbox = sandbox
        self.id, self.label, self.created = facts["id"], facts["label"], facts["created"]
        self.method, self._parent = facts["method"], facts["parent"]
        self.processes = decode(facts["processes"])
        self.closed = False

    @property
    def parent(self) -> ServerSnapshot | None:
        """The snapshot that it continues; None if there is none."""
        return next((each for each in self._sandbox.snapshots() if each.id == self._parent), None)

    def diff(self, other: ServerSnapshot) -> list[Any]:
        """Return the changes that lead from the files of `other` to the files of this snapshot."""
        query = {"since": other.id}
        return _changes_of(self._sandbox, f"/snapshots/{self.id}/changes", query)

    def close(self) -> None:
        """Delete it."""
        self._sandbox._request("DELETE", f"/snapshots/{self.id}")
        self.closed = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerSnapshot) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<ServerSnapshot {self.id} {self.label!r}>"


class ServerPoint:
    """A point of a sandbox's history, as a value; see `HistoryPoint`."""

    number: int
    time: float
    cause: str
    command: str
    exit_code: int | None
    changed: int | None
    merged: int

    def __init__(self, sandbox: ServerSandbox, facts: dict[str, Any]) -> None:
        self.__dict__.update(facts)
        self._sandbox, found = sandbox, facts["changes"]
        self.changes = None if found is None else tuple(type_named("Change")(**each) for each in found)

    def diff(self, other: ServerPoint) -> list[Any]:
        """Return the changes that lead from the files of `other` to the files of this point."""
        query = {"since": other.number}
        return _changes_of(self._sandbox, f"/history/{self.number}/changes", query)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerPoint) and (other.number, other.time) == (self.number, self.time)

    def __hash__(self) -> int:
        return hash((self.number, self.time))

    def __repr__(self) -> str:
        return f"<ServerPoint {self.number} {self.cause} {self.command[:60]!r}>"


class ServerReview:
    """A review that the server keeps: what a commit would do. See `Review`."""

    def __init__(self, sandbox: ServerSandbox, facts: dict[str, Any]) -> None:
        self._sandbox, self.id, self.digest = sandbox, facts["id"], facts["digest"]
        self.changes, self.conflicts, self.held, self.refused = (
            tuple(decode(facts[name])) for name in ("changes", "conflicts", "held", "refused")
        )
        self.left_out, self.root = tuple(facts["left_out"]), facts["root"]
        for each in self.changes:
            _ask_for_text(sandbox, each, f"/reviews/{self.id}/changes", {})

    def commit(self, /, paths: Collection[str] | None = None, **options: Any) -> Any:
        """Write exactly the reviewed changes, or those at and below `paths`; see `Review.commit`."""
        return self._sandbox.commit(paths, review=self, **options)


class ServerStream:
    """A command with streamed output; afterwards `result` is set. A slow reader slows the command."""

    def __init__(self, where: ServerSandbox | ServerSession, command: str, options: dict[str, Any]) -> None:
        body = {**command_body("run", {"command": command}, options), "hold": True, **where._session}
        self._run = ServerCommand(where._transport, where._path, body, wait=0)
        self._held = {STDOUT: b"", STDERR: b""}  # the beginning of a character
        self._ready: list[Any] = []
        self.result: Result | None = None

    @property
    def id(self) -> str:
        """Id of the command."""
        return self._run.id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while not self._ready:
            if self.result is not None:
                raise StopIteration
            self._read()
        return self._ready.pop(0)

    def _read(self) -> None:
        kind = type_named("Chunk")
        pieces, is_end = self._run.read()
        for stream, data in pieces:
            whole, self._held[stream] = whole_characters(self._held[stream] + data)
            if whole:
                self._ready.append(kind("stdout" if stream == STDOUT else "stderr", whole))
        if is_end:
            for stream, rest in self._held.items():
                if rest:
                    self._ready.append(kind("stdout" if stream == STDOUT else "stderr", rest))
            self.result = self._run.result()

    def close(self) -> None:
        """Interrupt the command, if it still runs, and wait for its end."""
        if self.result is None:
            self._run.interrupt()
            while self.result is None:
                self._read()
            self._ready.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerCommand:
    """A command of the server, by an id that is chosen here."""

    def __init__(
        self, transport: SandboxRequests, path: str, body: dict[str, Any], wait: float | None
    ) -> None:
        self.id = os.urandom(8).hex()
        self._transport, self._path = transport, f"{path}/commands/{self.id}"
        self._offset = 0
        self._pending: PendingReply | None = None  # the next piece is under way while this one is read
        path = f"{path}/commands?short=1" if wait is None else f"{path}/commands?short=1&wait={wait:g}"
        try:
            reply = transport.request("POST", path, {"id": self.id, **body}, is_known=True)
            self.facts, self._output = reply.outcome()
        except KeyboardInterrupt:
            self.interrupt()
            raise

    def read(self) -> tuple[Sequence[tuple[int, bytes]], bool]:
        """Return the next pieces of its output, and whether that was all."""
        pending, self._pending = self._pending, None
        reply = None if pending is None else pending.get()
        if reply is None:
            reply = self._transport.request("GET", f"{self._path}/output", query=self._next_piece())
        self._offset = int(reply.headers["staddle-next"])
        is_end = reply.headers["staddle-end"] == "1"
        if sum(len(data) for _, data in reply.pieces) >= _LARGE and not is_end:
            self._pending = self._transport.begin(f"{self._path}/output", self._next_piece())
        return reply.pieces, is_end

    def _next_piece(self) -> dict[str, object]:
        return {"offset": self._offset, "wait": _WAIT, "frames": 1, "taken": 1}

    def result(self) -> Result:
        """Wait for its end, and return its result."""
        try:
            while self.facts["state"] != "ended":
                reply = self._transport.request("GET", self._path, query={"short": 1, "wait": _WAIT})
                self.facts, self._output = reply.outcome()
        except KeyboardInterrupt:
            self.interrupt()
            raise
        if "error" in self.facts:
            raise decode_error(self.facts["error"])
        found: Result = read_result(self.facts["result"], self._output)
        return found

    def interrupt(self) -> None:
        """End it."""
        self._transport.request("POST", f"{self._path}/interrupt")


def _chunks(transport: SandboxRequests, path: str, offset: int = 0, *, follow: bool = True) -> Iterator[Any]:
    """Yield the output of a command from an offset on; with `follow` to its end."""
    while True:
        found, offset, is_end = _piece(transport, path, offset, _WAIT if follow else 0)
        yield from found
        if is_end or not (follow or found):
            return


def _piece(transport: SandboxRequests, path: str, offset: int, wait: float) -> tuple[list[Any], int, bool]:
    """Return output of a command from an offset on, the next offset, and whether that was all."""
    kind = type_named("Chunk")
    query = {"offset": offset, "wait": wait, "frames": 1}
    reply = transport.request("GET", f"{path}/output", query=query)
    found = [kind("stdout" if stream == STDOUT else "stderr", data) for stream, data in reply.pieces]
    return found, int(reply.headers["staddle-next"]), reply.headers["staddle-end"] == "1"


class ServerProcess(ServerPart, RemoteProcessNames):
    """A background process of a sandbox; `pid` is its process number inside."""

    def __init__(self, sandbox: ServerSandbox, facts: dict[str, Any]) -> None:
        self._transport, self._path, self._on = sandbox._transport, sandbox._path, f"command:{facts['id']}"
        self.id, self.command, self.pid = facts["id"], facts["command"], facts.get("pid", 0)

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self.poll() is None

    @property
    def timed_out(self) -> bool:
        """Whether it was ended because its time was up."""
        path = f"{self._path}/commands/{self.id}"
        return bool(self._transport.request("GET", path, query={"short": 1}).outcome()[0].get("timed_out"))

    def read(self, offset: int = 0, timeout: float = 0.0) -> tuple[list[Any], int, bool]:
        """Return its output from `offset` on, the next offset, and whether that was all. Waits for some."""
        return _piece(self._transport, f"{self._path}/commands/{self.id}", offset, timeout)

    def send_stdin(self, data: bytes | str) -> None:
        """Write to its standard input. Waits while it does not read."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        self._transport.request("POST", f"{self._path}/commands/{self.id}/stdin", body=content)

    def stream(self, offset: int = 0) -> Iterator[Any]:
        """Iterate over its output from `offset` on, to its end."""
        return _chunks(self._transport, f"{self._path}/commands/{self.id}", offset)

    def output(self) -> str:
        """Return its output so far, as text."""
        reply = self._transport.request("GET", f"{self._path}/commands/{self.id}/output")
        return reply.body.decode("utf-8", "replace")

    follow = refused("follow of a process", "it calls functions of this program", "use stream()")
    wait_for_output = refused("wait_for_output of a process", "stream() waits in the server", "use stream()")
    wait_for_text = refused("wait_for_text of a process", "stream() waits in the server", "use stream()")

    def __repr__(self) -> str:
        return f"<ServerProcess {self.pid}>"


class ServerTerminal(ServerPart, RemoteTerminalNames):
    """A terminal of a sandbox. Its program continues without a reader."""

    def __init__(self, sandbox: ServerSandbox, facts: dict[str, Any]) -> None:
        self._transport, self._path, self._on = sandbox._transport, sandbox._path, f"terminal:{facts['id']}"
        self.id, self.pid, self.rows, self.cols = facts["id"], facts["pid"], facts["rows"], facts["cols"]
        self.at_end, self.offset = False, 0  # `offset`: bytes of its output that were read
        self._terminal = f"{self._path}/terminals/{self.id}"

    def read(self, timeout: float | None = None) -> bytes:
        """Wait for output and return it; empty after the timeout, or when it is `at_end`."""
        while not self.at_end:
            query = {"offset": self.offset, "wait": _WAIT if timeout is None else timeout}
            reply = self._transport.request("GET", f"{self._terminal}/output", query=query)
            self.offset = int(reply.headers["staddle-next"])
            self.at_end = reply.headers["staddle-end"] == "1"
            if reply.body or timeout is not None:
                return reply.body
        return b""

    def write(self, data: bytes | str) -> None:
        """Type `data`."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        self._transport.request("POST", f"{self._terminal}/input", body=content)

    def close(self) -> None:
        """Hang up its program."""
        self._transport.request("DELETE", self._terminal)

    def attach(self, offset: int | None = None) -> tuple[Any, WebSocket]:
        """Return the socket and WebSocket of an attachment, from an offset on (default: all output)."""
        path = f"{self._terminal}/attach" + ("" if offset is None else f"?offset={offset}")
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        }
        channel, _ = self._transport.upgraded(path, headers)
        return channel.socket, WebSocket(channel.receive, channel.socket.sendall, is_client=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerSession(ServerPart, RemoteSessionNames):
    """Another shell of a sandbox."""

    def __init__(self, sandbox: ServerSandbox, name: str) -> None:
        self._transport, self._path, self._on = sandbox._transport, sandbox._path, f"session:{name}"
        self.name, self._session = name, {"session": name}

    def run(self, command: str, **options: Any) -> Result:
        """Run a command in this session; see `Session.run`."""
        return _run(self, command, options)

    def stream(self, command: str, **options: Any) -> ServerStream:
        """Run a command in this session, and iterate over its output; see `Session.stream`."""
        return ServerStream(self, command, options)


def _run(where: ServerSandbox | ServerSession, command: str, options: dict[str, Any]) -> Result:
    check = options.pop("check", False)
    heard = {"stdout": options.pop("on_stdout", None), "stderr": options.pop("on_stderr", None)}
    if heard["stdout"] is heard["stderr"] is None:
        body = {**command_body("run", {"command": command}, options), **where._session}
        result = ServerCommand(where._transport, where._path, body, wait=None).result()
        return result.check() if check else result
    with ServerStream(where, command, options) as stream:
        for chunk in stream:
            if heard[chunk.stream] is not None:
                heard[chunk.stream](chunk.text)
    if stream.result is None:
        raise AssertionError("a stream ends with a result: please report this")
    return stream.result.check() if check else stream.result


class ServerSandbox(ServerPart, RemoteSandboxNames):
    """A sandbox in a server. It stays open when this program ends; `close()` ends it."""

    drift = Forwarded(Sandbox.drift)
    _session: dict[str, str] = {}  # noqa: RUF012 - never changed: the main session

    def __init__(self, client: Client, facts: dict[str, Any]) -> None:
        self._client, self._transport = client, SandboxRequests(client._transport)
        self.id, self.name, self.opened = facts["id"], facts["name"], facts["opened"]
        self._path = f"/v1/sandboxes/{self.id}"

    def _request(self, method: str, path: str, data: Any = None, **more: Any) -> Any:
        return self._transport.request(method, self._path + path, data, **more).json()

    def describe(self) -> dict[str, Any]:
        """Return its state: name, labels, state, backend, gaps, and counts."""
        found: dict[str, Any] = self._request("GET", "")
        return found

    @property
    def frozen(self) -> bool:
        """Whether later edits on the host are hidden; see `Sandbox.frozen`."""
        return bool(self._call("frozen"))

    @property
    def alive(self) -> bool:
        """Whether it can run commands."""
        try:
            return bool(self.describe()["state"] != "ended")
        except SandboxClosed:
            return False

    # ------------------------------------------------------------ commands

    def run(self, command: str, **options: Any) -> Result:
        """Run `command` in the main session and wait for its end; see `Sandbox.run`."""
        return _run(self, command, options)

    def stream(self, command: str, **options: Any) -> ServerStream:
        """Run `command`, and iterate over its output as it arrives; see `Sandbox.stream`."""
        return ServerStream(self, command, options)

    def exec(self, argv: Sequence[str], *, check: bool = False, **options: Any) -> Result:
        """Run a program with exactly these arguments, without a shell; see `Sandbox.exec`."""
        words = argv if isinstance(argv, str) else list(argv)
        body = command_body("exec", {"argv": words}, options)
        result = ServerCommand(self._transport, self._path, body, wait=None).result()
        return result.check() if check else result

    def start(self, /, command: str | Sequence[str], **options: Any) -> ServerProcess:
        """Start `command`, shell text or a list of arguments, in the background; see `Sandbox.start`."""
        what = {"command": command} if isinstance(command, str) else {"argv": list(command)}
        body = {"kind": "start", **what, **checked_options(options, _COMMAND - {"stdin", "output_limit"})}
        facts = ServerCommand(self._transport, self._path, body, wait=_WAIT).facts
        return ServerProcess(self, {"command": next(iter(what.values())), **facts})

    def processes(self) -> list[ServerProcess]:
        """List the background processes that clients have started, including recently ended ones."""
        return [ServerProcess(self, each) for each in self.commands() if each["kind"] == "start"]

    def commands(self) -> list[dict[str, Any]]:
        """List the commands of all clients, oldest first."""
        found: list[dict[str, Any]] = self._request("GET", "/commands")
        return found

    def output_of(self, command: str, offset: int = 0, *, follow: bool = True) -> Iterator[Any]:
        """Iterate over the output of a command of any client; with `follow` to its end."""
        return _chunks(self._transport, f"{self._path}/commands/{command}", offset, follow=follow)

    def terminal(self, /, argv: Sequence[str] | None = None, **options: Any) -> ServerTerminal:
        """Open a terminal with an interactive shell, or with the program `argv`; see `Sandbox.terminal`."""
        body = checked_options(options, fields("open_terminal") - {"argv"})
        if argv is not None:
            body["argv"] = list(argv)
        return ServerTerminal(self, self._request("POST", "/terminals", body))

    def terminals(self) -> list[ServerTerminal]:
        """List the open terminals of all clients."""
        return [ServerTerminal(self, each) for each in self._request("GET", "/terminals")]

    def session(self, name: str) -> ServerSession:
        """Return the session with this name, another shell; its first command creates it."""
        return ServerSession(self, name)

    # ------------------------------------------------------------ files

    @property
    def files(self) -> ServerFiles:
        """Files inside, with the rights of the sandbox's own user."""
        return ServerFiles(self._transport, self._path)

    def upload_tar(self, f: IO[bytes], path: str | os.PathLike[str] = ".") -> None:
        """Unpack a tar from `f` into the directory `path`; see `Sandbox.upload_tar`."""
        self._request("PUT", "/files/tar", query={"path": os.fsdecode(path)}, body=f.read())

    def download_tar(self, f: IO[bytes], path: str | os.PathLike[str] = ".") -> None:
        """Write the directory or file `path` to `f` as a tar."""
        query = {"path": os.fsdecode(path)}
        f.write(self._transport.request("GET", f"{self._path}/files/tar", query=query).body)

    # ------------------------------------------------------------ changes

    def diff(
        self, paths: Collection[str] | None = None, *, everything: bool = False, wait: bool = True
    ) -> list[Any]:
        """Return the changes that it made to the workspace; see `Sandbox.diff`."""
        found: list[Any] = self._call(
            "diff", None if paths is None else list(paths), everything=everything, wait=wait
        )
        for each in found:
            _ask_for_text(self, each, "/changes", {"everything": int(everything)})
        return found

    def text_diff(self) -> str:
        """Return the changes as one unified diff. The agent wrote the text."""
        return "".join(each["diff"] for each in self._request("GET", "/changes", query={"diff": 1}))

    def review(self, paths: Collection[str] | None = None) -> ServerReview:
        """Return what `commit` would do, taken at one moment; see `Sandbox.review`."""
        return ServerReview(
            self, self._request("POST", "/review", {"paths": None if paths is None else list(paths)})
        )

    def commit(
        self, /, paths: Collection[str] | None = None, *, review: ServerReview | None = None, **options: Any
    ) -> Any:
        """Write the changes to the server's host, all or none; see `Sandbox.commit`."""
        body = checked_options(options, fields("commit") - {"paths", "review"})
        if "allow" in body:
            body["allow"] = list(options["allow"])
        if paths is not None:
            body["paths"] = list(paths)
        if review is not None:
            body["review"] = review.id
        return decode(self._request("POST", "/commit", body))

    def snapshot(self, label: str = "", *, processes: str = "none") -> ServerSnapshot:
        """Save the current state; see `Sandbox.snapshot`. It stays until it is closed."""
        body = {"label": label, "processes": processes}
        return ServerSnapshot(self, self._request("POST", "/snapshots", body))

    def snapshots(self) -> list[ServerSnapshot]:
        """List the snapshots, oldest first."""
        return [ServerSnapshot(self, each) for each in self._request("GET", "/snapshots")]

    def restore(self, snapshot: ServerSnapshot | str, *, processes: str = "end") -> Any:
        """Return to a snapshot; a string is a label. See `Sandbox.restore`."""
        name = snapshot.id if isinstance(snapshot, ServerSnapshot) else snapshot
        return decode(self._request("POST", "/restore", {"snapshot": name, "processes": processes}))

    def fork(self, n: int = 1, *, freeze: bool | None = None) -> list[ServerSandbox]:
        """Open `n` sandboxes that continue from here; see `Sandbox.fork`."""
        found = self._request("POST", "/fork", {"count": n, "freeze": freeze})
        return [ServerSandbox(self._client, each) for each in found]

    def history(self) -> list[ServerPoint]:
        """List the points of a sandbox created with `history=True`, oldest first; see `Sandbox.history`."""
        return [ServerPoint(self, each) for each in self._request("GET", "/history")]

    def undo(self, n: int = 1) -> Any:
        """Take back the last `n` points, and return the HistoryStep; see `Sandbox.undo`."""
        return self._step("/undo", n)

    def redo(self, n: int = 1) -> Any:
        """Return to the state before the last undo, or `n` points forward; see `Sandbox.redo`."""
        return self._step("/redo", n)

    def _step(self, path: str, n: int) -> Any:
        found = self._request("POST", path, {"count": n})
        points = tuple(ServerPoint(self, each) for each in found["points"])
        ended = tuple(decode(found["ended"]))
        return type_named("HistoryStep")(ServerPoint(self, found["point"]), points, ended)

    # ------------------------------------------------------------ network and lifetime

    def questions(self) -> list[dict[str, Any]]:
        """List the destinations and HTTP requests that wait for an answer: `id`, `event`, `age`.

        See `ask` of `create`. `event.what` is `host:port`, or the method and URL of a request without scheme.
        """
        return [{**each, "event": decode(each["event"])} for each in self._request("GET", "/questions")]

    def set_timeout(self, seconds: float | None, *, then: str = "close") -> None:
        """Close it `seconds` from now, or with `then="pause"` pause it; None: never."""
        self._call("set_timeout", seconds, then=then)

    def answer(self, question: str, allow: bool, always: bool = False) -> None:
        """Answer a question. `always` also allows equal HTTP requests later."""
        self._request("POST", f"/questions/{question}", {"allow": allow, "always": always})

    def close(self) -> None:
        """End the sandbox and all its processes, for every client. A second call does nothing."""
        try:
            self._request("DELETE", "")
        except SandboxClosed:
            pass

    connect = refused("connect", "its network is the server's", "run the client inside, or use a Sandbox")
    expose = refused("expose", "the port would be the server's", "use a Sandbox")
    environment = refused("environment", "its tools would be a call for each file", "use a Sandbox")
    check = refused("check", "the server checks options", "call create(), which raises before anything runs")
    learned = refused("learned", "a server learns no policies", "use Sandbox(learn=True), or `staddle learn`")
    at = refused("at", "its files would be a fork for each call", _KEPT_HISTORY)
    bisect = refused("bisect", "its test may be a function", _KEPT_HISTORY)
    blame = refused("blame", "it reads the layers of this process", _KEPT_HISTORY)
    merge = refused("merge", "it compares sandboxes of one process", "run git inside, or use a Sandbox")
    best_of = refused(
        "best_of", "an attempt is a function", "use fork(), run(), and commit() of the best fork"
    )
    from_snapshot = refused("from_snapshot", "snapshot files are of one program", "use fork()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ServerSandbox {self.id}{f' {self.name!r}' if self.name else ''}>"
