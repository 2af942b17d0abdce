"""The server process: it accepts connections, gives each a thread, and ends when told to or when idle.

All requests of a connection are served by its thread, one after the other, so a slow client slows only
itself.
"""

from __future__ import annotations

import os
import queue
import resource
import socket
import ssl
import threading
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from staddle.errors import (
    CommitRefused,
    InvalidCall,
    PolicyNotEnforceable,
    SandboxClosed,
    SessionBusy,
    StaddleError,
    WaitTimeout,
    WorkspaceBusy,
)
from staddle.json_values import encode_error, write_json

from . import api
from .access import SocketAccess, TokenAccess
from .http import HEAD_TIME, Disconnected, HttpConnection, HttpRequest, Refused, Response
from .operations import Route, routes
from .routes import RouteTable, checked_body, checked_query
from .sandboxes import SandboxTable

if TYPE_CHECKING:
    from collections.abc import Callable

    Access = SocketAccess | TokenAccess

#: The most connections at a time; a further one is closed at once.
MOST_CONNECTIONS = 1024
#: Bytes that the kernel holds for a reader on the UNIX socket. With its default both ends wait often.
_SEND_BUFFER = 512 << 10
#: Answers kept for repeated requests, the bytes of them, and keys that are remembered beyond these.
KEPT_ANSWERS, KEPT_ANSWER_BYTES, KEPT_KEYS = 4096, 64 << 20, 100_000
_LONGEST_KEY = 128
#: Seconds between two looks at ended sandboxes and at idleness.
_LOOK_EVERY = 0.5
#: HTTP statuses of errors, the most special first.
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (SandboxClosed, 410),
    (FileNotFoundError, 404),
    (PermissionError, 403),
    (FileExistsError, 409),
    ((CommitRefused), 409),
    (SessionBusy, 409),
    (WorkspaceBusy, 409),
    (WaitTimeout, 408),
    (PolicyNotEnforceable, 422),
    (ValueError, 400),
    (TypeError, 400),
    (OSError, 400),
)


class Answers:
    """Answers to requests with an `Idempotency-Key`: a repeated request gets the first answer.

    So a client whose connection was lost can send its request again. Thread-safe.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[str, tuple[threading.Event, list[Response]]] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def begin(self, key: str) -> Response | None:
        """Return the answer for this key, waiting for it; None if the caller is to do the work."""
        if len(key) > _LONGEST_KEY:
            raise Refused(400, "the Idempotency-Key is too long", why=f"more than {_LONGEST_KEY} characters")
        while True:
            with self._lock:
                found = self._all.get(key)
                if key in self._gone:
                    raise Refused(409, "the request was made before", why="its answer is not kept any more")
                if found is None:
                    self._all[key] = (threading.Event(), [])
                    return None
            found[0].wait()
            if found[1]:
                return found[1][0]
            # The first request did nothing: its client was gone before its body had come.

    def end(self, key: str, response: Response | None) -> None:
        """Give the answer; None if nothing was done, so that a repeated request does it."""
        with self._lock:
            done, kept = self._all[key]
            if response is None:
                del self._all[key]
            else:
                kept.append(response)
                self._size += response.length or 0
                self._forget()
        done.set()

    def _forget(self) -> None:
        for key in list(self._all):
            if len(self._all) <= KEPT_ANSWERS and self._size <= KEPT_ANSWER_BYTES:
                return
            kept = self._all[key][1]
            if kept:
                del self._all[key]
                self._size -= kept[0].length or 0
                self._gone[key] = None
                if len(self._gone) > KEPT_KEYS:
                    self._gone.popitem(last=False)


class SandboxServer:
    """Holds sandboxes, and answers requests about them.

    `idle`: seconds without any use until it ends. `unused`: seconds without use until it closes a sandbox
    without label, `keep` or limit of time.
    """

    def __init__(self, *, idle: float | None = None, unused: float | None = None) -> None:
        self.sandboxes = SandboxTable()
        self.began = time.time()
        self._idle, self._unused = idle, unused
        self._answers = Answers()
        self._routes = RouteTable(routes().values())
        self._connections: set[HttpConnection] = set()
        self._lock = threading.Lock()
        self._used = time.monotonic()
        #: An item wakes `wait`. Unlike an Event, a signal handler may add one at any moment: in the main
        #: thread it would wait for the lock of an Event that this very thread looks at.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_stopping = False
        self._listeners: list[socket.socket] = []
        self._counts: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        #: Listens at a port if it does not yet; returns what a client needs to know. Set by the process.
        self.open_port: Callable[[], dict[str, Any]] | None = None

    # ------------------------------------------------------------ connections

    def listen(self, listener: socket.socket, access: Access, context: ssl.SSLContext | None = None) -> None:
        """Accept connections of a listening socket, in a thread."""
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, access, context), daemon=True).start()

    def _accept(self, listener: socket.socket, access: Access, context: ssl.SSLContext | None) -> None:
        while not self._is_stopping:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self._is_stopping:
                    return
                time.sleep(0.05)  # no descriptor is free: others will be closed
                continue
            connection = HttpConnection(sock)
            with self._lock:
                is_refused = len(self._connections) >= MOST_CONNECTIONS or not access.may_connect(sock)
                if is_refused:
                    self._counts["refused_connections"] += 1
                else:
                    self._connections.add(connection)
            if is_refused:
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection, access, context), daemon=True).start()
            except RuntimeError:  # no thread can be started
                self._forget(connection)

    def _serve(self, connection: HttpConnection, access: Access, context: ssl.SSLContext | None) -> None:
        try:
            if context is not None:
                connection.socket.settimeout(HEAD_TIME)
                connection.socket = context.wrap_socket(connection.socket, server_side=True)
            elif connection.socket.family != socket.AF_UNIX:
                connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            else:
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            while self._one(connection, access):
                pass
        except (Disconnected, OSError, ValueError):
            pass  # the client is gone; its commands and terminals go on
        finally:
            self._forget(connection)

    def _forget(self, connection: HttpConnection) -> None:
        connection.close()
        connection.settle()
        with self._lock:
            self._connections.discard(connection)
            self._used = time.monotonic()

    def _one(self, connection: HttpConnection, access: Access) -> bool:
        """Serve one request. Returns whether another one may follow."""
        request: HttpRequest | None = None
        try:
            request = connection.request(access.idle)
            response = access.check(request) or self._answer(request)
        except Refused as error:
            response = _failed(error, error.status)
            if request is None or error.status in (401, 403, 421):
                self._counts["refused_requests"] += 1
                connection.respond(response, keep=False)
                return False
        # What is left of a refused body would be read as the next request.
        keep = request.keep and not request.left
        try:
            connection.respond(response, keep=keep, is_head=request.method == "HEAD")
        finally:
            self._statuses[response.status] += 1
            connection.settle()
        return keep

    # ------------------------------------------------------------ requests

    def _answer(self, request: HttpRequest) -> Response:
        if request.route is None:
            method = "GET" if request.method == "HEAD" else request.method
            row, parts = self._routes.find(method, request.segments)
            request.route = row, parts, checked_query(row, request)
        row = request.route[0]
        key = request.headers.get("idempotency-key")
        if key is None or row.method == "GET":
            return self._handled(request, *request.route)
        known = self._answers.begin(key)
        if known is not None:
            for _ in request.pieces():
                pass
            return known
        response = None
        try:
            response = self._handled(request, *request.route)
        except Refused as error:
            response = _failed(error, error.status)
        finally:
            self._answers.end(key, response)
        return response

    def _handled(
        self, request: HttpRequest, row: Route, parts: dict[str, str], query: dict[str, Any]
    ) -> Response:
        try:
            body = checked_body(row, request)
            found = getattr(api, row.name)(api.ApiCall(self, request, parts, query, body))
            if isinstance(found, Response):
                return found
            return Response.json({} if found is None else found, row.status)
        except (Refused, Disconnected):
            raise
        except Exception as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
            return _failed(error, status)

    def metrics(self) -> str:
        """Return counters and gauges in Prometheus' text format."""
        sandboxes = self.sandboxes
        entry = sandboxes.listed()
        pages = int(_read("/proc/self/statm").split()[1])
        rows: list[tuple[str, str, str, float]] = [
            ("sandboxes", "gauge", "Open sandboxes", len(entry)),
            ("sandboxes_created_total", "counter", "Sandboxes that were opened", sandboxes.created),
            ("sandboxes_closed_total", "counter", "Sandboxes that were closed", sandboxes.closed),
            (
                "commands_total",
                "counter",
                "Commands begun in open sandboxes",
                sum(each.commands.count for each in entry),
            ),
            ("terminals", "gauge", "Open terminals", sum(len(each.terminals) for each in entry)),
            ("questions", "gauge", "Questions without an answer", sum(len(each.questions) for each in entry)),
            ("connections", "gauge", "Open connections", len(self._connections)),
            (
                "refused_connections_total",
                "counter",
                "Connections refused",
                self._counts["refused_connections"],
            ),
            (
                "refused_requests_total",
                "counter",
                "Requests refused before their route",
                self._counts["refused_requests"],
            ),
            ("events_total", "counter", "Events", sandboxes.events.last),
            ("memory_bytes", "gauge", "Resident memory of the server", pages * resource.getpagesize()),
            ("threads", "gauge", "Threads of the server", threading.active_count()),
            ("start_time_seconds", "gauge", "When the server started", self.began),
        ]
        text = [
            f"# HELP staddle_{name} {told}\n# TYPE staddle_{name} {kind}\nstaddle_{name} {value}\n"
            for name, kind, told, value in rows
        ]
        text.append(
            "# HELP staddle_requests_total Requests, by status\n# TYPE staddle_requests_total counter\n"
        )
        for status, count in sorted(self._statuses.items()):
            text.append(f'staddle_requests_total{{status="{status}"}} {count}\n')
        return "".join(text)

    def open_page(self) -> dict[str, Any]:
        """Return the address of the page, with the token."""
        if self.open_port is None:
            raise InvalidCall(
                "this server has no page", why="it is part of another program", fix="run `staddle serve`"
            )
        return self.open_port()

    # ------------------------------------------------------------ its life

    def stop(self) -> None:
        """End soon. Called from a signal handler or any thread."""
        self._is_stopping = True
        self._wakes.put(None)

    def wait(self) -> None:
        """Return when it is told to stop, or was idle for long enough."""
        while not self._is_stopping:
            with suppress(queue.Empty):
                self._wakes.get(timeout=_LOOK_EVERY)
            if self._is_stopping:
                return
            with suppress(Exception):  # a sandbox that cannot be closed now is looked at again
                self.sandboxes.forget_ended()
                if self._unused is not None:
                    with self._lock:
                        connections: set[HttpConnection] = set(self._connections)
                    self.sandboxes.close_unused(self._unused, connections)
            with self._lock:
                if self._connections or len(self.sandboxes):
                    self._used = time.monotonic()
                elif self._idle is not None and time.monotonic() - self._used > self._idle:
                    self._is_stopping = True

    def end(self) -> None:
        """Close every sandbox and connection."""
        self._is_stopping = True
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            listener.close()
        time.sleep(0.05)  # for the answer to the request that has asked for the end
        self.sandboxes.end()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)


def _failed(error: BaseException, status: int) -> Response:
    found: dict[str, Any] = {"error": encode_error(error)}
    if isinstance(error, Refused):
        found["error"]["type"] = (
            "InvalidCall" if status in (400, 404, 405, 411, 413, 416, 426, 431) else "StaddleError"
        )
    try:
        body = write_json(found).encode()
    except (TypeError, ValueError):
        body = write_json({"error": {"type": "StaddleError", "what": str(error)}}).encode()
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Response(status, body, kind="application/json", more=headers)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def unix_listener(path: str) -> socket.socket:
    """Return a listening socket at `path`, which only this user can open."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        made.bind(path)
        made.listen(512)
    except OSError as error:
        made.close()
        raise InvalidCall(
            f"the server cannot listen at {path!r}",
            why=error.strerror or str(error),
            fix="name a path in an own directory",
        ) from None
    finally:
        os.umask(before)
    return made


def tcp_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(512)
    except OSError as error:
        made.close()
        raise StaddleError(
            f"the server cannot listen at {host}:{port}",
            why=error.strerror or str(error),
            fix="choose another port",
        ) from None
    return made
