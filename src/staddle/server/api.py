"""The handlers of the API, each for the row of its name in `operations.py`.

A handler gets an `ApiCall`, and returns data for JSON (None: an empty object) or a `Response`, or raises an
error; `server.py` turns errors into responses.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
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
from staddle.json_values import OF_CLIENTS, decode, encode, read_json, write_json

from .access import PROTOCOL
from .commands import ServedCommand
from .http import MOST_BODY, Disconnected, HttpRequest, Refused, Response
from .output import FRAMES, OutputLog, frames
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
        def open_page(self) -> dict[str, Any]: ...
        def stop(self) -> None: ...


#: Seconds that a request may wait for something: clients ask again.
MOST_WAIT = 300.0
#: Bytes of output in one reply.
_PIECE = 4 << 20
#: After so many bytes at once, a reply waits a moment for as many as these: each reply costs both ends time.
_FAST, _BATCH, _MOMENT = 32 << 10, 1 << 20, 0.002
#: Names that `call` may use, by the object.
_CALLED = {
    "": names(RemoteSandboxNames) | {"drift", "frozen"},
    "files": names(FilesNames) | {"write"},
    "session": names(RemoteSessionNames),
    "command": names(RemoteProcessNames),
    "terminal": names(RemoteTerminalNames) - {"read", "write"},
}
#: The media type of an outcome with bytes beside it.
_OUTCOME = "application/vnd.staddle.outcome"


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
        entry = self.server.sandboxes.get(self.parts["sandbox"])
        entry.use(self.request.connection)
        return entry

    def used(self, entry: SandboxEntry) -> SandboxEntry:
        """Note that the client of this connection uses a sandbox."""
        entry.use(self.request.connection)
        return entry

    @property
    def command(self) -> ServedCommand:
        """The command that the path names."""
        return self.entry.commands.get(self.parts["command"])

    @property
    def seconds(self) -> float:
        """The time to wait."""
        return min(float(self.query.get("wait", 0.0)), MOST_WAIT)


# ------------------------------------------------------------ the server


def about(call: ApiCall) -> Any:
    server = call.server
    return {
        "version": __version__,
        "pid": os.getpid(),
        "began": server.began,
        "sandboxes": len(server.sandboxes),
    }


def openapi(call: ApiCall) -> Any:
    from .openapi import description

    return description()


def metrics(call: ApiCall) -> Any:
    return Response(body=call.server.metrics().encode(), kind="text/plain; version=0.0.4")


def events(call: ApiCall) -> Any:
    sandbox = call.query.get("sandbox", "")
    return call.server.sandboxes.events.after(call.query.get("after", 0), call.seconds, sandbox)


def stop(call: ApiCall) -> Any:
    call.server.stop()
    return None


def open_page(call: ApiCall) -> Any:
    return call.server.open_page()


def kept(call: ApiCall) -> Any:
    return kept_sandboxes()


# ------------------------------------------------------------ sandboxes


def list_sandboxes(call: ApiCall) -> Any:
    call.server.sandboxes.forget_ended()
    label = call.query.get("label")
    found = [entry.describe() for entry in call.server.sandboxes.listed()]
    if label is not None:
        name, _, value = label.partition("=")
        found = [each for each in found if each["labels"].get(name) == value]
    return found


def create(call: ApiCall) -> Any:
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
    return call.used(call.server.sandboxes.create(options, ask=ask)).describe()


def get(call: ApiCall) -> Any:
    return call.entry.describe()


def close(call: ApiCall) -> Any:
    call.server.sandboxes.close(call.parts["sandbox"])
    return None


def pause(call: ApiCall) -> Any:
    call.entry.sandbox.pause()
    call.entry.paused = True
    return None


def resume(call: ApiCall) -> Any:
    call.entry.sandbox.resume()
    call.entry.paused = False
    return None


def lifetime(call: ApiCall) -> Any:
    entry, left = call.entry, None
    if "timeout" in call.body:
        entry.set_timeout(call.body["timeout"], call.body.get("then", "close"))
    if "extend" in call.body:
        left = entry.extend(call.body["extend"])
    return {"left": left}


def interrupt(call: ApiCall) -> Any:
    call.entry.sandbox.interrupt()
    return None


def usage(call: ApiCall) -> Any:
    return encode(call.entry.sandbox.usage)


def enforced(call: ApiCall) -> Any:
    return encode(call.entry.sandbox.enforced)


def network(call: ApiCall) -> Any:
    call.entry.sandbox.set_network(Network.allow(*call.body["allow"]))
    return None


def call_method(call: ApiCall) -> Any:
    entry, body = call.entry, call.body
    part, _, name = body.get("on", "").partition(":")
    method = body["method"]
    if method not in _CALLED.get(part, ()):
        raise InvalidCall(
            f"{part or 'a sandbox'} has no {method!r} here",
            why="it is not in the table",
            fix="see the page of the server",
        )
    on: Any = entry if method in ("set_timeout", "extend") else entry.sandbox
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
    return {"value": encode(found)}


# ------------------------------------------------------------ commands


def list_commands(call: ApiCall) -> Any:
    return [each.describe(result=False) for each in call.entry.commands.listed()]


#: For each kind of command: how it may be given, and the fields that it does not take.
_KINDS = {
    "run": ({"command"}, {"argv"}),
    "exec": ({"argv"}, {"command", "session", "hold"}),
    "start": ({"command", "argv"}, {"stdin", "output_limit", "session", "hold"}),
}


def _check_kind(body: dict[str, Any]) -> None:
    kind = body.get("kind", "run")
    if kind == "run" and "command" in body and "argv" not in body:
        return  # the usual case
    if kind not in _KINDS:
        raise InvalidCall(
            f"there is no kind {kind!r} of command", why="it is unknown", fix=f"choose {', '.join(_KINDS)}"
        )
    given, refused = _KINDS[kind]
    if refused & body.keys() or len(given & body.keys()) != 1:
        raise InvalidCall(
            f"a command of the kind {kind} cannot be given so",
            why=f"it does not take {', '.join(sorted(refused))}",
            fix=f"give one {' or '.join(sorted(given))}, and none of these",
        )


def run(call: ApiCall) -> Any:
    body = call.body
    command_id = body.pop("id", None) or os.urandom(8).hex()
    _check_kind(body)
    for name in ("env", "stdin"):
        if name in body:
            body[name] = decode(body[name], only=OF_CLIENTS)
    wait = call.query.get("wait")
    afterwards = call.request.connection.afterwards if wait is None else None
    command, _ = call.entry.commands.begin(command_id, body, afterwards=afterwards)
    seconds = MOST_WAIT if wait is None else min(wait, MOST_WAIT)
    if command.kind == "start":
        command.started.wait(seconds)
        if command.error is not None:
            raise command.error
    elif command.state != "ended":
        command.output.wait_closed(seconds)
    return _described(call, command, 201)


def _described(call: ApiCall, command: ServedCommand, status: int) -> Any:
    if not call.query.get("short"):
        return command.describe(text=call.query.get("text", True))
    body = command.short()
    return Response(status, body, kind=_OUTCOME, length=sum(map(len, body)))


def get_command(call: ApiCall) -> Any:
    command = call.command
    command.output.wait_closed(call.seconds)
    return _described(call, command, 200)


def output(call: ApiCall) -> Any:
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
    if source.wait(offset, call.seconds) and source.end - offset >= _FAST:
        source.wait(offset + _BATCH, _MOMENT)
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


def stdin(call: ApiCall) -> Any:
    command = call.command
    sent = command.send_stdin(call.request.read(), call.query.get("offset"))
    if call.query.get("close"):
        command.process.close_stdin()
    return {"sent": sent}


def interrupt_command(call: ApiCall) -> Any:
    call.command.interrupt()
    return None


# ------------------------------------------------------------ terminals


def open_terminal(call: ApiCall) -> Any:
    return call.entry.add_terminal(**call.body).describe()


def list_terminals(call: ApiCall) -> Any:
    return [each.describe() for each in list(call.entry.terminals.values())]


def get_terminal(call: ApiCall) -> Any:
    return call.entry.terminal(call.parts["terminal"]).describe()


def close_terminal(call: ApiCall) -> Any:
    entry = call.entry
    entry.terminal(call.parts["terminal"]).terminal.close()
    entry.terminals.pop(call.parts["terminal"], None)
    return None


def terminal_output(call: ApiCall) -> Any:
    return _output(call, call.entry.terminal(call.parts["terminal"]).output)


def terminal_input(call: ApiCall) -> Any:
    served = call.entry.terminal(call.parts["terminal"])
    data = call.request.read()
    with served.typing:
        if "offset" in call.query:
            data = data[max(0, served.sent - call.query["offset"]) :]
        served.terminal.write(data)
        served.sent += len(data)
        return {"sent": served.sent}


def resize(call: ApiCall) -> Any:
    call.entry.terminal(call.parts["terminal"]).terminal.resize(call.body["rows"], call.body["cols"])
    return None


def attach(call: ApiCall) -> Any:
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
    if request.has_word("sec-websocket-protocol", PROTOCOL):
        more["Sec-WebSocket-Protocol"] = PROTOCOL
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
        if kind == BINARY:
            self._terminal.write(data)
            return
        said = read_json(data.decode())
        if isinstance(said, dict) and isinstance(said.get("rows"), int) and isinstance(said.get("cols"), int):
            self._terminal.resize(said["rows"], said["cols"])

    def _send(self, offset: int) -> None:
        from staddle.errors import StaddleError

        def tell(**facts: Any) -> None:
            self._socket.send(TEXT, write_json(facts).encode())

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


def list_files(call: ApiCall) -> Any:
    return [encode(each) for each in call.entry.sandbox.files.list(call.query.get("path", "."))]


def read_file(call: ApiCall) -> Any:
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


def write_file(call: ApiCall) -> Any:
    with _spooled(call.request) as data:
        call.entry.sandbox.files.upload(data, call.query["path"])
    return None


def _spooled(request: HttpRequest) -> Any:
    """Read a body to its end, before anything inside is changed."""
    data = tempfile.SpooledTemporaryFile(max_size=MOST_BODY)  # noqa: SIM115 - the caller closes it
    for piece in request.pieces():
        data.write(piece)
    data.seek(0)
    return data


def remove_file(call: ApiCall) -> Any:
    call.entry.sandbox.files.remove(call.query["path"], recursive=call.query.get("recursive", False))
    return None


def download(call: ApiCall) -> Any:
    data = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the response
    call.entry.sandbox.download_tar(data, call.query["path"])
    return Response(body=_pieces(data, 0, size := data.tell()), kind="application/x-tar", length=size)


def upload(call: ApiCall) -> Any:
    with _spooled(call.request) as data:
        call.entry.sandbox.upload_tar(data, call.query["path"])
    return None


# ------------------------------------------------------------ changes


def changes(call: ApiCall) -> Any:
    paths = [call.query["path"]] if "path" in call.query else None
    return _told(call, call.entry.sandbox.diff(paths, everything=call.query.get("everything", False)))


def _told(call: ApiCall, found: Iterable[Any]) -> list[dict[str, Any]]:
    """Changes as data for JSON, as the query asks."""
    path, shown = call.query.get("path"), call.query.get("diff", False)
    return [
        {**encode(each), **({"diff": each.text_diff()} if shown else {})}
        for each in found
        if path in (None, each.path)
    ]


def review(call: ApiCall) -> Any:
    found = call.entry.sandbox.review(call.body.get("paths"))
    return {"id": call.entry.add_review(found), **described_review(found)}


def described_review(found: Any) -> dict[str, Any]:
    """A review as data for JSON."""
    shown = {
        name: [encode(each) for each in getattr(found, name)]
        for name in ("changes", "conflicts", "held", "refused")
    }
    return {
        **shown,
        "left_out": list(found.left_out),
        "digest": found.digest,
        "paths": found.paths,
        "root": found.root,
    }


def review_changes(call: ApiCall) -> Any:
    return _told(call, call.entry.review(call.parts["review"]).changes)


def commit(call: ApiCall) -> Any:
    options = dict(call.body)
    name = options.pop("review", None)
    committed = call.entry.sandbox if name is None else call.entry.review(name)
    return encode(committed.commit(**options))


def discard(call: ApiCall) -> Any:
    call.entry.sandbox.discard(call.body.get("paths"))
    return None


# ------------------------------------------------------------ snapshots


def list_snapshots(call: ApiCall) -> Any:
    return call.entry.listed_snapshots()


def snapshot(call: ApiCall) -> Any:
    entry = call.entry
    name = entry.add_snapshot(entry.sandbox.snapshot(**call.body))
    return next(each for each in entry.listed_snapshots() if each["id"] == name)


def delete_snapshot(call: ApiCall) -> Any:
    entry, found = call.entry, call.entry.snapshot(call.parts["snapshot"])
    entry.snapshots = {name: each for name, each in entry.snapshots.items() if each is not found}
    found.close()
    return None


def snapshot_changes(call: ApiCall) -> Any:
    new, old = (call.entry.snapshot(name) for name in (call.parts["snapshot"], call.query["since"]))
    return _told(call, new.diff(old))


def restore(call: ApiCall) -> Any:
    entry, found = call.entry, call.entry.snapshot(call.body["snapshot"])
    restored = entry.sandbox.restore(found, processes=call.body.get("processes", "end"))
    entry.current = found
    return encode(restored)


def fork(call: ApiCall) -> Any:
    entry, body = call.entry, call.body
    begin = entry.snapshot(body["snapshot"]) if "snapshot" in body else None
    made = call.server.sandboxes.fork(entry, body.get("count", 1), begin, freeze=body.get("freeze"))
    return [call.used(each).describe() for each in made]


# ------------------------------------------------------------ history


def history(call: ApiCall) -> Any:
    return [each.facts for each in call.entry.sandbox.history()]


def point_changes(call: ApiCall) -> Any:
    points = call.entry.sandbox.history()
    at = _position(points, call.parts["point"])
    other = _position(points, str(call.query["since"])) if "since" in call.query else max(0, at - 1)
    return _told(call, points[at].diff(points[other]))


def _position(points: list[Any], number: str) -> int:
    for at, point in enumerate(points):
        if str(point.number) == number:
            return at
    raise FileNotFoundError(2, f"the history has no point {number!r}")


def undo(call: ApiCall) -> Any:
    return _step(call.entry, call.entry.sandbox.undo(call.body.get("count", 1)))


def redo(call: ApiCall) -> Any:
    return _step(call.entry, call.entry.sandbox.redo(call.body.get("count", 1)))


def _step(entry: SandboxEntry, found: Any) -> dict[str, Any]:
    entry.current = None  # a point of the history is no listed snapshot
    points = [each.facts for each in found.points]
    return {"point": found.point.facts, "points": points, "ended": encode(list(found.ended))}


# ------------------------------------------------------------ questions


def questions(call: ApiCall) -> Any:
    now = time.time()
    found = list(call.entry.questions.values())
    return [{"id": each.id, "event": encode(each.event), "age": now - each.asked} for each in found]


def answer(call: ApiCall) -> Any:
    call.entry.answer(call.parts["question"], call.body["allow"], call.body.get("always") or False)
    return None
