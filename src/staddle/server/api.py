"""The handlers of the API, each a row of the table of routes.

A handler gets an `ApiCall`, and returns a response or raises an error; `server.py` turns errors into
responses.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from staddle import Network, Policy, __version__, kept_sandboxes
from staddle.errors import InvalidCall
from staddle.faces import (
    FilesNames,
    RemoteProcessNames,
    RemoteSandboxNames,
    RemoteSessionNames,
    RemoteTerminalNames,
    names,
)
from staddle.json_values import OF_CLIENTS, decode, encode

from .commands import ServedCommand
from .http import MOST_BODY, Disconnected, HttpRequest, Refused, Response
from .output import OutputLog, frames
from .routes import Field, route
from .sandboxes import SandboxEntry
from .websocket import BINARY, TEXT, WebSocket, WebSocketError, accept_key

if TYPE_CHECKING:
    from typing import Protocol

    from .sandboxes import SandboxTable

    class ServerState(Protocol):
        """Part of the server that handlers use."""

        began: float
        sandboxes: SandboxTable

        def metrics(self) -> str: ...
        def stop(self) -> None: ...


#: Seconds that a request may wait for something: clients ask again.
MOST_WAIT = 300.0
#: Bytes of output in one reply.
_PIECE = 4 << 20
#: Names that `call` may use, by the object.
_CALLED = {
    "": names(RemoteSandboxNames) | {"drift"},
    "files": names(FilesNames) | {"write"},
    "session": names(RemoteSessionNames),
    "command": names(RemoteProcessNames),
    "terminal": names(RemoteTerminalNames) - {"read", "write"},
}
#: The media type of frames.
FRAMES = "application/vnd.staddle.frames"

_ONE = "/v1/sandboxes/{sandbox}"
_STRING, _BOOLEAN = Field("string", "text"), Field("boolean", "true or false")
_WAIT = Field("number", f"seconds to wait for something new (default: 0; at most {MOST_WAIT:g})")
_TEXT = Field("boolean", "add stdout and stderr as text, beside the bytes in the result (default: true)")
_OFFSET = Field("integer", "position of the first byte (default: 0)")
_PATH = Field("string", "path inside, relative to /workspace", required=True)
_PATHS = Field("array|null", "only these files and directories (default: all)")


class ApiCall:
    """One request, with the parts of its path, its checked query and its checked body."""

    def __init__(
        self,
        server: ServerState,
        request: HttpRequest,
        parts: dict[str, str],
        query: dict[str, Any],
        body: dict[str, Any],
    ) -> None:
        self.server, self.request, self.parts, self.query, self.body = server, request, parts, query, body

    @property
    def entry(self) -> SandboxEntry:
        """The sandbox that the path names."""
        return self.server.sandboxes.get(self.parts["sandbox"])

    @property
    def command(self) -> ServedCommand:
        """The command that the path names."""
        return self.entry.commands.get(self.parts["command"])

    @property
    def seconds(self) -> float:
        """The time to wait."""
        return min(float(self.query.get("wait", 0.0)), MOST_WAIT)


# ------------------------------------------------------------ the server


@route("GET", "/v1", "Facts about the server.")
def about(call: ApiCall) -> Response:
    server = call.server
    return Response.json(
        {
            "version": __version__,
            "pid": os.getpid(),
            "began": server.began,
            "sandboxes": len(server.sandboxes),
        }
    )


@route("GET", "/v1/openapi.json", "This description.")
def openapi(call: ApiCall) -> Response:
    from .openapi import description

    return Response.json(description())


@route("GET", "/metrics", "Counters and gauges, in Prometheus' text format.", returns="text/plain")
def metrics(call: ApiCall) -> Response:
    return Response(body=call.server.metrics().encode(), kind="text/plain; version=0.0.4")


@route(
    "GET",
    "/v1/events",
    "Events of all sandboxes, in order. `missed` events are no longer kept.",
    query={
        "after": Field("integer", "number of the last event that you have (default: 0)"),
        "wait": _WAIT,
        "sandbox": Field("string", "only events of this sandbox"),
    },
)
def events(call: ApiCall) -> Response:
    sandbox = call.query.get("sandbox", "")
    return Response.json(
        call.server.sandboxes.events.after(call.query.get("after", 0), call.seconds, sandbox)
    )


@route("POST", "/v1/stop", "End the server and every sandbox. Kept sandboxes stay on disk.", status=202)
def stop(call: ApiCall) -> Response:
    call.server.stop()
    return Response.json({}, 202)


@route("GET", "/v1/kept", "Names of kept sandboxes: create one with `keep` to continue it.", returns="array")
def kept(call: ApiCall) -> Response:
    return Response.json(kept_sandboxes())


# ------------------------------------------------------------ sandboxes

_OPTIONS = {
    "workspace": Field(
        "string|null", "absolute path of a directory of the host (default: an empty workspace)"
    ),
    "policy": Field("object|null", "a policy, as in a policy file (default: the installation's)"),
    "backend": Field("string", "name of a backend (default: auto)"),
    "mode": Field("string", "overlay (default), copy, bind or readonly"),
    "best_effort": Field("boolean", "accept what this host cannot enforce (default: false)"),
    "env": Field("object|null", "variables inside"),
    "keep": Field("string|null", "name under which its changes stay on disk"),
    "workspace_at": Field("string|null", "another path inside for the workspace"),
    "name": Field("string|null", "a name for people"),
    "labels": Field("object|null", "labels, for `GET /v1/sandboxes`"),
    "identity": Field("object|null", "the user inside"),
    "environment": Field("string|null", "linux, inherit or empty"),
    "base": Field("string|null", "a root file system"),
    "workdir": Field("string|null", "directory to start in"),
    "freeze": Field("boolean|null", "hide later edits on the host"),
    "on_connect_timeout": Field("number", "seconds until an unanswered question is a refusal (default: 60)"),
}


@route(
    "GET",
    "/v1/sandboxes",
    "List the sandboxes, oldest first.",
    query={"label": Field("string", "only those with this label: NAME=VALUE")},
    returns="array",
)
def list_sandboxes(call: ApiCall) -> Response:
    call.server.sandboxes.forget_ended()
    label = call.query.get("label")
    found = [entry.describe() for entry in call.server.sandboxes.listed()]
    if label is not None:
        name, _, value = label.partition("=")
        found = [each for each in found if each["labels"].get(name) == value]
    return Response.json(found)


@route(
    "POST",
    "/v1/sandboxes",
    "Open a sandbox. It ends with the server, by `DELETE`, or by a limit of its policy.",
    body={
        **_OPTIONS,
        "ask": Field("boolean", "ask about destinations that the policy leaves open: see questions"),
    },
    status=201,
)
def create(call: ApiCall) -> Response:
    body = dict(call.body)
    ask = body.pop("ask", False)
    options = {name: decode(value, only=OF_CLIENTS) for name, value in body.items()}
    if isinstance(options.get("policy"), dict):
        options["policy"] = Policy.from_dict(options["policy"], workspace=options.get("workspace"))
    if isinstance(options.get("identity"), dict):
        from staddle import Identity

        options["identity"] = Identity(**options["identity"])
    if not os.path.isabs(options.get("workspace") or "/"):
        raise InvalidCall(
            f"the workspace {options['workspace']!r} is relative",
            why="the server has its own directory",
            fix="send an absolute path",
        )
    return Response.json(call.server.sandboxes.create(options, ask=ask).describe(), 201)


@route("GET", _ONE, "State of a sandbox. Its id or, if no other has it, its name.")
def get(call: ApiCall) -> Response:
    return Response.json(call.entry.describe())


@route("DELETE", _ONE, "Close a sandbox, and end everything in it.")
def close(call: ApiCall) -> Response:
    call.server.sandboxes.close(call.parts["sandbox"])
    return Response.json({})


@route("POST", f"{_ONE}/pause", "Freeze all its processes.")
def pause(call: ApiCall) -> Response:
    call.entry.sandbox.pause()
    call.entry.paused = True
    return Response.json({})


@route("POST", f"{_ONE}/resume", "Continue all its processes.")
def resume(call: ApiCall) -> Response:
    call.entry.sandbox.resume()
    call.entry.paused = False
    return Response.json({})


@route(
    "POST",
    f"{_ONE}/lifetime",
    "Change when it ends. Returns the seconds left, if there is a limit and `extend` was given.",
    body={
        "timeout": Field("number|null", "close it after so many seconds from now; null: never"),
        "extend": Field("number", "close it so many seconds later"),
    },
)
def lifetime(call: ApiCall) -> Response:
    sandbox, left = call.entry.sandbox, None
    if "timeout" in call.body:
        sandbox.set_timeout(call.body["timeout"])
    if "extend" in call.body:
        left = sandbox.extend(call.body["extend"])
    return Response.json({"left": left})


@route("POST", f"{_ONE}/interrupt", "End the commands that run now. Background processes continue.")
def interrupt(call: ApiCall) -> Response:
    call.entry.sandbox.interrupt()
    return Response.json({})


@route("GET", f"{_ONE}/usage", "Resources used so far.")
def usage(call: ApiCall) -> Response:
    return Response.json(encode(call.entry.sandbox.usage))


@route("GET", f"{_ONE}/enforced", "Protections in force, and every gap.")
def enforced(call: ApiCall) -> Response:
    return Response.json(encode(call.entry.sandbox.enforced))


@route(
    "POST",
    f"{_ONE}/network",
    "Replace the network policy of the running sandbox.",
    body={"allow": Field("array", "hosts, as in a policy; none of them: refuse all", required=True)},
)
def network(call: ApiCall) -> Response:
    call.entry.sandbox.set_network(Network.allow(*call.body["allow"]))
    return Response.json({})


@route(
    "POST",
    f"{_ONE}/call",
    "Call a method of the Python library by its name. A value that JSON lacks is an object with a `$`.",
    body={
        "on": Field(
            "string", 'the object: "" (the sandbox, default), files, files:USER, session:NAME, command:ID'
        ),
        "method": Field("string", "the method, or property", required=True),
        "args": Field("array", "positional arguments"),
        "options": Field("object", "named arguments"),
    },
)
def call_method(call: ApiCall) -> Response:
    entry, body = call.entry, call.body
    part, _, name = body.get("on", "").partition(":")
    method = body["method"]
    if method not in _CALLED.get(part, ()):
        raise InvalidCall(
            f"{part or 'a sandbox'} has no {method!r} here",
            why="it is not in the table",
            fix="see the page of the server",
        )
    on: Any = entry.sandbox
    if part == "files":
        on = entry.sandbox.files.as_user(name) if name else entry.sandbox.files
    elif part == "session":
        on = entry.sandbox.session(name)
    elif part == "command":
        on = entry.commands.get(name).process
    elif part == "terminal":
        on = entry.terminal(name).terminal
    found = getattr(on, method)
    if callable(found) and not isinstance(getattr(type(on), method, None), property):
        args = decode(body.get("args", []), only=OF_CLIENTS)
        found = found(*args, **decode(body.get("options", {}), only=OF_CLIENTS))
    if method in ("pause", "resume"):
        entry.paused = method == "pause"
    return Response.json({"value": encode(found)})


# ------------------------------------------------------------ commands


@route("GET", f"{_ONE}/commands", "List the commands, oldest first, without their results.", returns="array")
def list_commands(call: ApiCall) -> Response:
    found = [each.describe() for each in call.entry.commands.listed()]
    return Response.json(
        [{k: v for k, v in each.items() if k not in ("result", "stdout", "stderr")} for each in found]
    )


#: For each kind of command: how it may be given, and the fields that it does not take.
_KINDS = {
    "run": (("command",), ("argv",)),
    "exec": (("argv",), ("command", "session", "hold")),
    "start": (("command", "argv"), ("stdin", "output_limit", "session", "hold")),
}


def _check_kind(body: dict[str, Any]) -> None:
    kind = body.get("kind", "run")
    if kind not in _KINDS:
        raise InvalidCall(
            f"there is no kind {kind!r} of command", why="it is unknown", fix=f"choose {', '.join(_KINDS)}"
        )
    given, refused = _KINDS[kind]
    unused = [name for name in refused if name in body]
    if unused or sum(name in body for name in given) != 1:
        raise InvalidCall(
            f"a command of the kind {kind} cannot be given so",
            why=f"it does not take {', '.join(refused)}",
            fix=f"give one {' or '.join(given)}, and none of these",
        )


@route(
    "POST",
    f"{_ONE}/commands",
    "Run a command. A repeated request with the same id gets the same command; it never runs twice.",
    query={"wait": Field("number", "seconds to wait for its end (default: until its end)"), "text": _TEXT},
    body={
        "id": Field("string", "an id of your choice, unique in the sandbox (default: the server's choice)"),
        "kind": Field(
            "string", "run: shell text in a session (default); exec: a program; start: in the background"
        ),
        "command": Field("string", "shell text"),
        "argv": Field("array", "a program and its arguments, in place of shell text; for exec and start"),
        "session": Field("string", "the session (default: main)"),
        "timeout": Field("number|null", "seconds, null: no limit (default: the policy's)"),
        "cwd": Field("string", "its directory"),
        "env": Field("object", "variables for this command"),
        "stdin": Field("string|object", "its standard input; bytes as a value"),
        "merge": Field("boolean", "send stderr to stdout"),
        "output_limit": Field("integer|string|null", "bytes kept in its result"),
        "user": Field("string|integer", "the user inside"),
        "hold": Field("boolean", "let it wait for the reader of its output, who loses nothing"),
    },
    status=201,
)
def run(call: ApiCall) -> Response:
    body = dict(call.body)
    command_id = body.pop("id", None) or os.urandom(8).hex()
    _check_kind(body)
    for name in ("env", "stdin"):
        if name in body:
            body[name] = decode(body[name], only=OF_CLIENTS)
    wait = call.query.get("wait")
    command, _ = call.entry.commands.begin(command_id, body, here=wait is None)
    (command.started if command.kind == "start" else command.ended).wait(
        MOST_WAIT if wait is None else min(wait, MOST_WAIT)
    )
    if command.kind == "start" and command.error is not None:
        raise command.error
    return Response.json(command.describe(text=call.query.get("text", True)), 201)


@route(
    "GET",
    f"{_ONE}/commands/{{command}}",
    "State of a command, and its result.",
    query={"wait": _WAIT, "text": _TEXT},
)
def get_command(call: ApiCall) -> Response:
    command = call.command
    command.ended.wait(call.seconds)
    return Response.json(command.describe(text=call.query.get("text", True)))


@route(
    "GET",
    f"{_ONE}/commands/{{command}}/output",
    "Output from an offset on, in order of arrival. `Staddle-Offset` is the offset of the first byte.",
    query={
        "offset": _OFFSET,
        "wait": _WAIT,
        "follow": Field("boolean", "stream until the end of the command"),
        "frames": Field("boolean", f"send frames ({FRAMES}), which separate stdout from stderr"),
        "taken": Field("boolean", "the bytes before `offset` have arrived: for a command with `hold`"),
    },
    returns="application/octet-stream",
)
def output(call: ApiCall) -> Response:
    return _output(call, call.command.output)


def _output(call: ApiCall, source: OutputLog) -> Response:
    offset, framed = call.query.get("offset", 0), call.query.get("frames", False)
    if offset > source.end:
        raise InvalidCall(
            f"there is no output at {offset}",
            why=f"it ends at {source.end}",
            fix="use the offset of the last reply",
        )
    if call.query.get("taken"):
        source.taken(offset)
    kind = FRAMES if framed else "application/octet-stream"
    if call.query.get("follow"):
        return Response(
            body=_followed(source, offset, framed),
            kind=kind,
            more={"Staddle-Offset": str(max(offset, source.start))},
        )
    source.wait(offset, call.seconds)
    is_closed = source.closed  # before reading: what comes later is for the next request
    begin, pieces = source.read(offset, _PIECE)
    end = begin + sum(len(data) for _, data in pieces)
    body = frames(begin, offset, pieces) if framed else [data for _, data in pieces]
    is_end = is_closed and end >= source.end
    return Response(
        body=body,
        kind=kind,
        length=sum(map(len, body)),
        more={"Staddle-Offset": str(begin), "Staddle-Next": str(end), "Staddle-End": str(int(is_end))},
    )


def _followed(source: OutputLog, offset: int, framed: bool) -> Iterator[bytes]:
    is_first = True
    while True:
        has_more = source.wait(offset, 1.0)
        if not has_more:
            if source.closed:
                return
            continue
        begin, pieces = source.read(offset, _PIECE)
        if begin > offset and not framed and not is_first:
            raise Disconnected(
                "it read too slowly, and bytes are gone"
            )  # ends without the last chunk: an error
        yield b"".join(frames(begin, offset, pieces)) if framed else b"".join(data for _, data in pieces)
        offset = begin + sum(len(data) for _, data in pieces)
        is_first = False


@route(
    "POST",
    f"{_ONE}/commands/{{command}}/stdin",
    "Write to the standard input of a background process. Waits while it does not read.",
    query={
        "offset": Field(
            "integer", "position of these bytes in its input: bytes that came before are left out"
        ),
        "close": Field("boolean", "close its standard input afterwards"),
    },
    body="application/octet-stream",
)
def stdin(call: ApiCall) -> Response:
    command = call.command
    sent = command.send_stdin(call.request.read(), call.query.get("offset"))
    if call.query.get("close"):
        command.process.close_stdin()
    return Response.json({"sent": sent})


@route("POST", f"{_ONE}/commands/{{command}}/interrupt", "End a command, or keep it from starting.")
def interrupt_command(call: ApiCall) -> Response:
    call.command.interrupt()
    return Response.json({})


# ------------------------------------------------------------ terminals


@route(
    "POST",
    f"{_ONE}/terminals",
    "Open a terminal. Its program goes on while nobody is attached.",
    body={
        "argv": Field("array|null", "the program (default: a shell)"),
        "rows": Field("integer", "rows (default: 24)"),
        "cols": Field("integer", "columns (default: 80)"),
        "term": Field("string", "the terminal's type (default: xterm-256color)"),
        "cwd": Field("string|null", "its directory"),
        "env": Field("object|null", "variables for it"),
        "user": Field("string|integer|null", "the user inside"),
    },
    status=201,
)
def open_terminal(call: ApiCall) -> Response:
    return Response.json(call.entry.add_terminal(**call.body).describe(), 201)


@route("GET", f"{_ONE}/terminals", "List the terminals.", returns="array")
def list_terminals(call: ApiCall) -> Response:
    return Response.json([each.describe() for each in list(call.entry.terminals.values())])


@route("GET", f"{_ONE}/terminals/{{terminal}}", "State of a terminal.")
def get_terminal(call: ApiCall) -> Response:
    return Response.json(call.entry.terminal(call.parts["terminal"]).describe())


@route("DELETE", f"{_ONE}/terminals/{{terminal}}", "Close a terminal, and hang up its program.")
def close_terminal(call: ApiCall) -> Response:
    entry = call.entry
    entry.terminal(call.parts["terminal"]).terminal.close()
    entry.terminals.pop(call.parts["terminal"], None)
    return Response.json({})


@route(
    "GET",
    f"{_ONE}/terminals/{{terminal}}/output",
    "Output from an offset on, as for a command.",
    query={"offset": _OFFSET, "wait": _WAIT, "follow": Field("boolean", "stream until the end")},
    returns="application/octet-stream",
)
def terminal_output(call: ApiCall) -> Response:
    return _output(call, call.entry.terminal(call.parts["terminal"]).output)


@route(
    "POST",
    f"{_ONE}/terminals/{{terminal}}/input",
    "Type bytes.",
    query={
        "offset": Field("integer", "position of these bytes in all that was typed here: none is typed twice")
    },
    body="application/octet-stream",
)
def terminal_input(call: ApiCall) -> Response:
    served = call.entry.terminal(call.parts["terminal"])
    data = call.request.read()
    with served.typing:
        if "offset" in call.query:
            data = data[max(0, served.sent - call.query["offset"]) :]
        served.terminal.write(data)
        served.sent += len(data)
        return Response.json({"sent": served.sent})


@route(
    "POST",
    f"{_ONE}/terminals/{{terminal}}/size",
    "Set the size.",
    body={
        "rows": Field("integer", "rows", required=True),
        "cols": Field("integer", "columns", required=True),
    },
)
def resize(call: ApiCall) -> Response:
    call.entry.terminal(call.parts["terminal"]).terminal.resize(call.body["rows"], call.body["cols"])
    return Response.json({})


@route(
    "GET",
    f"{_ONE}/terminals/{{terminal}}/attach",
    'Attach by WebSocket. Binary messages are output and keys. Text messages are JSON: `{"rows":…,"cols":…}` '
    'from you; `{"offset":…}` first, `{"missed":…}` and `{"exit_code":…}` from the server.',
    query={"offset": Field("integer", "continue from this offset (default: all kept output)")},
    returns="websocket",
    status=101,
)
def attach(call: ApiCall) -> Response:
    request, served = call.request, call.entry.terminal(call.parts["terminal"])
    key = request.headers.get("sec-websocket-key", "")
    if (
        not request.has_word("upgrade", "websocket")
        or not request.has_word("connection", "upgrade")
        or not key
    ):
        raise Refused(426, "a terminal is attached by WebSocket", fix="send Upgrade: websocket")
    if request.headers.get("sec-websocket-version") != "13":
        raise Refused(426, "the version of WebSocket is not supported", fix="send Sec-WebSocket-Version: 13")
    more = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept_key(key)}
    response = Response(101, more=more)
    response.length = None
    connection = request.connection
    connection.respond(response, keep=True)
    _Attached(
        WebSocket(connection.receive_forever, connection.send, is_client=False),
        served.output,
        served.terminal,
    ).serve(min(call.query.get("offset", served.output.start), served.output.end))
    raise Disconnected("it was detached")


class _Attached:
    """A client that is attached to a terminal: this thread reads its keys, another one sends output."""

    def __init__(self, socket: WebSocket, output: OutputLog, terminal: Any) -> None:
        self._socket, self._output, self._terminal = socket, output, terminal
        self._is_over = False

    def serve(self, offset: int) -> None:
        """Serve it until it detaches, or the program has ended."""
        sender = threading.Thread(target=self._send, args=(offset,), daemon=True)
        sender.start()
        try:
            while (message := self._socket.message()) is not None:
                self._hear(*message)
        except (WebSocketError, Disconnected, OSError, ValueError):
            pass  # the client is gone, or breaks the protocol: its terminal goes on
        finally:
            self._is_over = True

    def _hear(self, kind: int, data: bytes) -> None:
        import json

        if kind == BINARY:
            self._terminal.write(data)
            return
        said = json.loads(data)
        if isinstance(said, dict) and isinstance(said.get("rows"), int) and isinstance(said.get("cols"), int):
            self._terminal.resize(said["rows"], said["cols"])

    def _send(self, offset: int) -> None:
        import json

        from staddle.errors import StaddleError

        def tell(**facts: Any) -> None:
            self._socket.send(TEXT, json.dumps(facts).encode())

        try:
            tell(offset=max(offset, self._output.start))
            while not self._is_over:
                if not self._output.wait(offset, 1.0):
                    if self._output.closed:
                        tell(exit_code=None if self._terminal.closed else self._terminal.wait(1.0))
                        self._socket.send(8, b"\x03\xe8")
                        return
                    continue
                begin, pieces = self._output.read(offset, 65536)
                if begin > offset:
                    tell(missed=begin - offset)
                for _, data in pieces:
                    self._socket.send(BINARY, data)
                offset = begin + sum(len(data) for _, data in pieces)
        except (Disconnected, OSError, StaddleError):
            pass


# ------------------------------------------------------------ files


@route(
    "GET",
    f"{_ONE}/files",
    "List a directory.",
    query={"path": Field("string", "path inside (default: the workspace)")},
    returns="array",
)
def list_files(call: ApiCall) -> Response:
    return Response.json(
        [encode(each) for each in call.entry.sandbox.files.list(call.query.get("path", "."))]
    )


@route(
    "GET",
    f"{_ONE}/files/content",
    "Content of a file. A `Range` gets a part of it.",
    query={"path": _PATH},
    returns="application/octet-stream",
)
def read_file(call: ApiCall) -> Response:
    file = call.entry.sandbox.files.open(call.query["path"])
    try:
        size = file.seek(0, 2)
        asked = call.request.headers.get("range")
        begin, end = 0, size
        if asked is not None:
            begin, end = _range(asked, size)
    except BaseException:
        file.close()
        raise
    headers = {"Accept-Ranges": "bytes"}
    if asked is not None:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    return Response(
        206 if asked is not None else 200, _pieces(file, begin, end), length=end - begin, more=headers
    )


def _pieces(file: Any, begin: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(begin)
        while begin < end and (data := file.read(min(1 << 20, end - begin))):
            begin += len(data)
            yield data


def _range(text: str, size: int) -> tuple[int, int]:
    first, dash, last = text.removeprefix("bytes=").partition("-")
    if (
        text.startswith("bytes=")
        and dash
        and all(not part or (part.isascii() and part.isdigit()) for part in (first, last))
    ):
        if first:
            begin, end = int(first), min(int(last) + 1 if last else size, size)
        else:
            begin, end = max(0, size - int(last or 0)), size
        if begin < end:
            return begin, end
    raise Refused(
        416,
        f"the range {text[:80]!r} is not in the file",
        why=f"it has {size} bytes",
        fix="send bytes=FIRST-LAST",
    )


@route(
    "PUT",
    f"{_ONE}/files/content",
    "Write a file. Missing directories are made.",
    query={"path": _PATH},
    body="application/octet-stream",
)
def write_file(call: ApiCall) -> Response:
    with _spooled(call.request) as data:
        call.entry.sandbox.files.upload(data, call.query["path"])
    return Response.json({})


def _spooled(request: HttpRequest) -> Any:
    """Read a body to its end, before anything inside is changed."""
    data = tempfile.SpooledTemporaryFile(max_size=MOST_BODY)  # noqa: SIM115 - the caller closes it
    for piece in request.pieces():
        data.write(piece)
    data.seek(0)
    return data


@route(
    "DELETE",
    f"{_ONE}/files/content",
    "Remove a file or a directory.",
    query={"path": _PATH, "recursive": Field("boolean", "with all that is in it")},
)
def remove_file(call: ApiCall) -> Response:
    call.entry.sandbox.files.remove(call.query["path"], recursive=call.query.get("recursive", False))
    return Response.json({})


@route(
    "GET", f"{_ONE}/files/tar", "A directory as a tar.", query={"path": _PATH}, returns="application/x-tar"
)
def download(call: ApiCall) -> Response:
    data = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the response
    call.entry.sandbox.download_tar(data, call.query["path"])
    return Response(body=_pieces(data, 0, size := data.tell()), kind="application/x-tar", length=size)


@route(
    "PUT",
    f"{_ONE}/files/tar",
    "Unpack a tar, all of it or nothing.",
    query={"path": _PATH},
    body="application/x-tar",
)
def upload(call: ApiCall) -> Response:
    with _spooled(call.request) as data:
        call.entry.sandbox.upload_tar(data, call.query["path"])
    return Response.json({})


# ------------------------------------------------------------ changes


@route(
    "GET",
    f"{_ONE}/changes",
    "Changes to the workspace.",
    query={
        "everything": Field("boolean", "with the home and /tmp"),
        "diff": Field("boolean", "each with its text diff"),
    },
    returns="array",
)
def changes(call: ApiCall) -> Response:
    found = call.entry.sandbox.diff(everything=call.query.get("everything", False))
    shown = call.query.get("diff", False)
    return Response.json(
        [{**encode(each), **({"diff": each.text_diff()} if shown else {})} for each in found]
    )


@route(
    "POST",
    f"{_ONE}/review",
    "What `commit` would do, taken at one moment.",
    body={"paths": _PATHS},
    status=201,
)
def review(call: ApiCall) -> Response:
    found = call.entry.sandbox.review(call.body.get("paths"))
    return Response.json({"id": call.entry.add_review(found), **described_review(found)}, 201)


def described_review(found: Any) -> dict[str, Any]:
    """A review as data for JSON."""
    shown = {
        name: [encode(each) for each in getattr(found, name)]
        for name in ("changes", "conflicts", "held", "refused")
    }
    return {**shown, "left_out": list(found.left_out), "digest": found.digest, "paths": found.paths}


_COMMIT = {
    "paths": _PATHS,
    "on_conflict": Field("string", "refuse (default) or overwrite"),
    "allow": Field("array", "protected names to accept"),
    "allow_protected": Field("boolean", "accept all protected names"),
}


@route(
    "POST",
    f"{_ONE}/commit",
    "Write the changes to the host, all or none. With `review` exactly the reviewed ones.",
    body={**_COMMIT, "review": Field("string", "id of a review")},
)
def commit(call: ApiCall) -> Response:
    options = dict(call.body)
    name = options.pop("review", None)
    if name is None:
        return Response.json(encode(call.entry.sandbox.commit(**options)))
    found = call.entry.reviews.get(name)
    if found is None:
        raise FileNotFoundError(2, f"the sandbox has no review {name!r}")
    return Response.json(encode(found.commit(**options)))


@route("POST", f"{_ONE}/discard", "Drop changes.", body={"paths": _PATHS})
def discard(call: ApiCall) -> Response:
    call.entry.sandbox.discard(call.body.get("paths"))
    return Response.json({})


# ------------------------------------------------------------ snapshots


@route("GET", f"{_ONE}/snapshots", "List the snapshots, each with its parent: a tree.", returns="array")
def list_snapshots(call: ApiCall) -> Response:
    return Response.json(call.entry.listed_snapshots())


@route("POST", f"{_ONE}/snapshots", "Take a snapshot.", body={"label": _STRING}, status=201)
def snapshot(call: ApiCall) -> Response:
    entry = call.entry
    name = entry.add_snapshot(entry.sandbox.snapshot(call.body.get("label", "")))
    return Response.json(next(each for each in entry.listed_snapshots() if each["id"] == name), 201)


@route("DELETE", f"{_ONE}/snapshots/{{snapshot}}", "Delete a snapshot.")
def delete_snapshot(call: ApiCall) -> Response:
    entry, found = call.entry, call.entry.snapshot(call.parts["snapshot"])
    entry.snapshots = {name: each for name, each in entry.snapshots.items() if each is not found}
    found.close()
    return Response.json({})


@route(
    "POST",
    f"{_ONE}/restore",
    "Return to a snapshot, by its id or label.",
    body={
        "snapshot": Field("string", "id or label", required=True),
        "processes": Field("string", "end (default) or keep the background processes"),
    },
)
def restore(call: ApiCall) -> Response:
    found = call.entry.snapshot(call.body["snapshot"])
    return Response.json(
        encode(call.entry.sandbox.restore(found, processes=call.body.get("processes", "end")))
    )


@route(
    "POST",
    f"{_ONE}/fork",
    "Open sandboxes that continue from here.",
    body={
        "count": Field("integer", "how many (default: 1)"),
        "freeze": Field("boolean|null", "see `Sandbox.fork`"),
    },
    returns="array",
    status=201,
)
def fork(call: ApiCall) -> Response:
    made = call.server.sandboxes.fork(call.entry, call.body.get("count", 1), freeze=call.body.get("freeze"))
    return Response.json([each.describe() for each in made], 201)


# ------------------------------------------------------------ questions


@route("GET", f"{_ONE}/questions", "Destinations that wait for an answer.", returns="array")
def questions(call: ApiCall) -> Response:
    now = time.time()
    found = list(call.entry.questions.values())
    return Response.json(
        [{"id": each.id, "event": encode(each.event), "age": now - each.asked} for each in found]
    )


@route(
    "POST",
    f"{_ONE}/questions/{{question}}",
    "Answer a question: let programs inside connect there, or refuse it.",
    body={"allow": Field("boolean", "true: allow", required=True)},
)
def answer(call: ApiCall) -> Response:
    call.entry.answer(call.parts["question"], call.body["allow"])
    return Response.json({})
