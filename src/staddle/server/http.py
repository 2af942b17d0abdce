"""HTTP/1.1 as this server speaks it: one request after the other on a connection, each part bounded.

It reads a strict subset. A body has a Content-Length. Repeated or folded headers, a request in another form
than `/path?query`, and anything that two programs could read in two ways, is refused and the connection
closed.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
import time
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from staddle.errors import StaddleError
from staddle.json_values import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .operations import Route

#: The most bytes of a request's head, and of a body that is read whole.
MOST_HEAD, MOST_BODY = 16 << 10, 32 << 20
MOST_HEADERS = 64
_MOST_DIGITS = 15
#: Seconds for a request's head once it has begun, for each further piece of a body, and for a reader to take
#: a piece.
HEAD_TIME, PIECE_TIME = 10.0, 60.0
_PIECE = 256 << 10
#: Parts of so few bytes are joined.
_SMALL = 16 << 10
#: The most parts that one call sends.
_MOST_PARTS = 64
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"/[\x21\x22\x24-\x7e]*")
#: Headers that are one value. A second one is refused, whatever it says.
_ONCE = frozenset(
    (
        *("host", "content-length", "content-type", "authorization", "transfer-encoding", "origin", "expect"),
        *("connection", "upgrade", "cookie", "range", "idempotency-key", "sec-websocket-key"),
        *("sec-websocket-protocol", "sec-fetch-site"),
    )
)
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Refused(StaddleError):
    """A request that is answered with an HTTP status of its own."""

    def __init__(self, status: int, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status


class Disconnected(Exception):
    """The client is gone, or does not read."""


class HttpRequest:
    """One request. Its body is still to be read."""

    def __init__(
        self, method: str, target: bytes, headers: dict[str, str], connection: HttpConnection
    ) -> None:
        self.method, self.headers, self.connection = method, headers, connection
        path, _, query = target.decode("ascii").partition("?")
        self.path = path
        self.segments = tuple(
            unquote(part, errors="strict") if "%" in part else part for part in path[1:].split("/")
        )
        self.query: dict[str, str] = {}
        for pair in query.split("&") if query else ():
            name, _, value = pair.partition("=")
            name = unquote(name)
            if name in self.query:
                raise Refused(400, f"the parameter {name!r} is given twice", fix="give it once")
            self.query[name] = unquote(value.replace("+", " "), errors="surrogateescape")
        self.left = int(headers.get("content-length", "0"))
        #: Its row, the named parts of its path and its checked query, once they were found.
        self.route: tuple[Route, dict[str, str], dict[str, Any]] | None = None
        self.keep = headers.get("connection", "").lower() != "close"

    def read(self, most: int = MOST_BODY) -> bytes:
        """Read the whole body."""
        if self.left > most:
            raise Refused(
                413, "the request is too large", why=f"more than {most} bytes", fix="send it in parts"
            )
        whole = self.connection.take(self.left)
        if whole is None:
            return b"".join(self.pieces())
        self.left = 0
        return whole

    def pieces(self) -> Iterable[bytes]:
        """Read the body in pieces."""
        if self.left and self.headers.get("expect", "").lower() == "100-continue":
            self.connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while self.left:
            data = self.connection.receive(min(self.left, _PIECE))
            self.left -= len(data)
            yield data

    def json(self) -> Any:
        """Read the body as JSON; None if there is none."""
        data = self.read()
        if not data:
            return None
        try:
            return read_json(data.decode())
        except (ValueError, RecursionError) as error:
            raise Refused(400, "the body is not JSON", why=str(error)[:200], fix="send valid JSON") from None

    def has_word(self, header: str, word: str) -> bool:
        """Whether a header's list has this word."""
        return word in (each.strip().lower() for each in self.headers.get(header, "").split(","))


class HttpConnection:
    """A client's connection, as bytes with time limits."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = b""
        self._both = threading.Lock()
        #: Functions to call once the response is sent.
        self.afterwards: list[Callable[[], None]] = []
        self._seconds: float | None = -1.0  # that the socket waits; setting it is a system call
        # The last request whose head ends with its Content-Length, and the bytes of the head before that.
        self._last: HttpRequest | None = None
        self._last_head = b""
        # The last response's status, headers and ways of ending, and the bytes that these became.
        self._told: tuple[object, ...] = ()
        self._told_head = b""

    def _wait_at_most(self, seconds: float | None) -> None:
        """Set how long the next calls of the socket wait; None: for ever."""
        if seconds != self._seconds:
            self._seconds = seconds
            self.socket.settimeout(seconds)

    def take(self, size: int) -> bytes | None:
        """Return so many bytes if they are here and no more have come; else None."""
        data = self._buffer
        if size != len(data):
            return None
        self._buffer = b""
        return data

    def receive(self, most: int) -> bytes:
        """Return at least one byte. Raises Disconnected at the end, or if nothing comes."""
        if self._buffer:
            data, self._buffer = self._buffer[:most], self._buffer[most:]
            return data
        self._wait_at_most(PIECE_TIME)
        return self._some(most)

    def _some(self, most: int = MOST_HEAD) -> bytes:
        try:
            data = self.socket.recv(most)
        except (OSError, ValueError) as error:
            raise Disconnected(str(error)) from error
        if not data:
            raise Disconnected("it was closed")
        return data

    def receive_forever(self, most: int) -> bytes:
        """Return at least one byte, however long that takes. Another thread may send meanwhile."""
        if self._buffer:
            return self.receive(most)
        waiting = select.poll()
        waiting.register(self.socket.fileno(), select.POLLIN)
        while True:
            with self._both:  # one thread at a time: TLS has one state for both directions
                self._wait_at_most(0)
                try:
                    return self._some(most)
                except Disconnected as error:
                    if not isinstance(error.__cause__, BlockingIOError | ssl.SSLWantReadError):
                        raise
            waiting.poll()

    def send(self, *parts: bytes | memoryview) -> None:
        """Send these parts as one. A client that takes nothing for PIECE_TIME seconds is disconnected."""
        try:
            with self._both:
                if isinstance(self.socket, ssl.SSLSocket):
                    rest = memoryview(b"".join(parts))
                    self._wait_at_most(PIECE_TIME)
                    while rest:
                        rest = rest[self.socket.send(rest[:_PIECE]) :]
                    return
                sent = self._sent_some(parts[:_MOST_PARTS])
                if len(parts) == 1 and sent == len(parts[0]):
                    return
                left = [memoryview(part) for part in reversed(parts)]
                while left:
                    if sent < len(left[-1]):
                        left[-1] = left[-1][sent:]
                        sent = self._sent_some(left[: -_MOST_PARTS - 1 : -1])
                    else:
                        sent -= len(left.pop())
        except (OSError, ValueError) as error:
            raise Disconnected(str(error)) from None

    def _sent_some(self, parts: Sequence[bytes | memoryview]) -> int:
        """Send what the socket takes, and return how much; only if it takes nothing, wait before."""
        try:
            return self.socket.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._wait_at_most(PIECE_TIME)
            return self.socket.sendmsg(parts)

    def request(self, idle: float | None) -> HttpRequest:
        """Read the head of the next request, which may begin within `idle` seconds."""
        data = self._buffer
        deadline = None
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > MOST_HEAD:
                raise Refused(431, "the head of the request is too long", why=f"more than {MOST_HEAD} bytes")
            if data and deadline is None:
                deadline = time.monotonic() + HEAD_TIME
            left = idle if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise Disconnected("it sends its request too slowly")
            self._wait_at_most(left)
            data += self._some()
        if end > MOST_HEAD:
            raise Refused(431, "the head of the request is too long", why=f"more than {MOST_HEAD} bytes")
        self._buffer = data[end + 4 :]
        # A client repeats its heads. If only the length differs, and is the last header, all else is known.
        head, _, length = data[:end].rpartition(b"\r\nContent-Length: ")
        if not (length.isdigit() and len(length) <= _MOST_DIGITS):
            return self._parsed(data[:end].split(b"\r\n"))
        if self._last is None or head != self._last_head:
            self._last = self._parsed(data[:end].split(b"\r\n"))
            self._last_head = head
        self._last.left = int(length)
        return self._last

    def _parsed(self, lines: list[bytes]) -> HttpRequest:
        words = lines[0].split(b" ")
        if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
            raise Refused(400, "the request line is not valid", fix="send METHOD /path HTTP/1.1")
        if words[2] != b"HTTP/1.1":
            raise Refused(505, "the version of HTTP is not supported", fix="speak HTTP/1.1")
        if len(lines) > MOST_HEADERS:
            raise Refused(431, "the request has too many headers", why=f"more than {MOST_HEADERS}")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise Refused(400, "a header is not valid", why=repr(line[:80]))
            key = name.decode("ascii").lower()
            if key in headers and key in _ONCE:
                raise Refused(400, f"the header {key} is given twice", fix="send it once")
            headers[key] = value.strip(b" \t").decode("latin-1")
        if "host" not in headers:
            raise Refused(400, "the header host is missing", fix="send it")
        if "transfer-encoding" in headers:
            raise Refused(411, "a body needs a Content-Length", why="chunked bodies are not read")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > _MOST_DIGITS:
            raise Refused(400, "the Content-Length is not valid", fix="send a number of bytes")
        try:
            return HttpRequest(words[0].decode("ascii"), words[1], headers, self)
        except UnicodeDecodeError:
            raise Refused(400, "the path is not UTF-8", fix="encode it as UTF-8") from None

    def respond(self, response: Response, *, keep: bool, is_head: bool = False) -> None:
        """Send a response. A body in pieces has no known length, and is sent in chunks."""
        length = response.length
        told = (response.status, response.headers, keep, length is None)
        if told != self._told:
            lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, '')}"]
            lines += [f"{name}: {value}" for name, value in response.headers.items()]
            if not keep:
                lines.append("Connection: close")
            if length is None and response.status != 101:
                lines.append("Transfer-Encoding: chunked")
            self._told, self._told_head = told, "\r\n".join(lines).encode("latin-1")
        size = b"" if length is None else b"\r\nContent-Length: %d" % length
        head = b"%b%b\r\n\r\n" % (self._told_head, size)
        if is_head or response.status == 101:
            self.send(head)
        elif isinstance(response.body, bytes):
            self.send(head + response.body)
        elif length is None or not isinstance(response.body, list):
            self._send_pieces(head, response.body, length)
        elif length < _SMALL:  # one part costs less than a copy
            self.send(b"".join([head, *response.body]))
        else:
            self.send(head, *response.body)

    def _send_pieces(self, head: bytes, pieces: Iterable[bytes], left: int | None) -> None:
        self.send(head)
        for piece in pieces:
            if left is not None:
                self.send(piece[:left])
                left -= min(len(piece), left)
            elif piece:
                self.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if left:
            raise Disconnected("the body ended early")
        if left is None:
            self.send(b"0\r\n\r\n")

    def settle(self) -> None:
        """Call the functions in `afterwards`."""
        while self.afterwards:
            self.afterwards.pop()()

    def close(self) -> None:
        """Close it."""
        try:
            self.socket.close()
        except OSError:
            pass


@cache
def _usual_headers(kind: str) -> dict[str, str]:
    # Bytes from inside are never interpreted as a page, whatever they look like.
    return {"Content-Type": kind, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Response:
    """A response: a status, headers, and a body of bytes or of pieces."""

    def __init__(
        self,
        status: int = 200,
        body: bytes | Iterable[bytes] = b"",
        *,
        kind: str = "application/octet-stream",
        length: int | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.body = status, body
        self.length = len(body) if isinstance(body, bytes) else length
        usual = _usual_headers(kind)
        self.headers: Mapping[str, str] = {**usual, **more} if more else usual

    @classmethod
    def json(cls, data: Any, status: int = 200) -> Response:
        """A response of JSON."""
        body = write_json(data).encode()
        return cls(status, body, kind="application/json")
