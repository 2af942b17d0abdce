"""Requests of a client: HTTP/1.1 over the UNIX socket, or over TCP with a token.

A request whose connection breaks is sent again, with a key by which the server knows that it is the same one.
So it is done once, and its answer arrives.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from staddle.errors import InvalidCall, SandboxLost, StaddleError
from staddle.json_values import decode_error, read_json, write_json

from .http import MOST_HEAD
from .output import DROPPED, FRAMES
from .process import connected, connected_or_started

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: How often a request is sent again, and seconds before that.
_ATTEMPTS, _PAUSE = 8, 0.02
#: Connections that wait for the next request.
_MOST_IDLE = 16
_TO_CONNECT = 10.0
#: Bytes that one read of a head, or of TLS, asks for.
_AT_ONCE = 16 << 10


class Broken(Exception):
    """The connection broke before the answer was complete."""


class Reply(NamedTuple):
    """An answer. Frames of output are its `pieces`, and not in its body."""

    status: int
    headers: dict[str, str]
    body: bytes
    pieces: Sequence[tuple[int, bytes]] = ()

    def json(self) -> Any:
        """Return the body as data."""
        return read_json(self.body.decode())

    def outcome(self) -> tuple[dict[str, Any], bytes]:
        """Return the state of a command that was asked for with `short`, and its output."""
        line, _, output = self.body.partition(b"\n")
        found: dict[str, Any] = read_json(line.decode())
        return found, output


class HttpChannel:
    """One connection to the server."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = b""
        # The last answer's head without its Content-Length, and what it says: it is often the same again.
        self._head: bytes | None = None
        self._status, self._headers = 0, dict[str, str]()

    def exchange(self, data: bytes) -> Reply:
        """Send a request, and read its answer."""
        try:
            self.socket.sendall(data)
            return self.reply()
        except OSError as error:
            raise Broken(str(error)) from None

    def reply(self) -> Reply:
        """Read an answer."""
        data = self._buffer
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > MOST_HEAD:
                raise StaddleError(
                    "the server sent no HTTP", why="the head is too long", fix="check the address"
                )
            data += self._some()
        head, _, length = data[:end].rpartition(b"\r\nContent-Length: ")
        if not length.isdigit():  # it is not the last header
            head, length = data[:end], b""
        if head != self._head:
            lines = head.decode("latin-1").split("\r\n")
            self._headers = {
                name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
            }
            self._head, self._status = head, int(lines[0][9:12])
        status, headers = self._status, self._headers
        self._buffer = data[end + 4 :]
        size = int(length) if length else int(headers.get("content-length", 0))
        if headers.get("content-type") == FRAMES:
            return Reply(status, headers, b"", self._frames(size))
        return Reply(status, headers, self._exactly(size))

    def _frames(self, left: int) -> list[tuple[int, bytes]]:
        """Read frames: the bytes of each as they come from the kernel, in one piece or two."""
        found = []
        while left > 0:
            head = self._exactly(8)
            size = min(int.from_bytes(head[4:], "big"), left - 8)
            left -= 8 + size
            while size > 0:
                data = self._part(size)
                size -= len(data)
                if head[0] != DROPPED:
                    found.append((head[0], data))
        return found

    def _exactly(self, size: int) -> bytes:
        if len(self._buffer) == size:
            data, self._buffer = self._buffer, b""
            return data
        parts = []
        while size > 0:
            parts.append(self._part(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def _part(self, most: int) -> bytes:
        """Return at least one byte of the body; without TLS all of it, except for what came with the head."""
        if self._buffer:
            return self.receive(most)
        if isinstance(self.socket, ssl.SSLSocket):
            return self._some(min(most, _AT_ONCE))
        return self._some(most, socket.MSG_WAITALL)

    def receive(self, most: int) -> bytes:
        """Return bytes after an upgrade; empty at the end."""
        if self._buffer:
            data, self._buffer = self._buffer[:most], self._buffer[most:]
            return data
        return self.socket.recv(most)

    def _some(self, most: int = _AT_ONCE, flags: int = 0) -> bytes:
        data = self.socket.recv(most, flags)
        if not data:
            raise Broken("it was closed")
        return data


class PendingReply:
    """The answer to a request that was sent."""

    def __init__(self, transport: Transport, channel: HttpChannel) -> None:
        self._transport = transport
        self._channel: HttpChannel | None = channel

    def get(self) -> Reply | None:
        """Wait for the answer, once; None if the connection broke, or it is an error: ask again."""
        channel, self._channel = self._channel, None
        if channel is None:
            return None
        try:
            reply = channel.reply()
        except (Broken, OSError):
            channel.socket.close()
            return None
        except BaseException:  # a signal: the rest of the answer would be read as the next one
            channel.socket.close()
            raise
        self._transport.give_back(channel, reply)
        return reply if reply.status < 400 else None

    def __del__(self) -> None:
        if self._channel is not None:
            self._channel.socket.close()  # nobody waits for the answer


class Transport:
    """All requests of a client. Thread-safe: each thread that waits for an answer has its own connection."""

    def __init__(
        self, where: str | None, *, token: str | None = None, cafile: str | None = None, start: bool = True
    ) -> None:
        self.where = where
        self._path, self._address = "", ("", 0)
        self._context: ssl.SSLContext | None = None
        self._head = "Host: localhost\r\n"
        if where is None or "://" not in where or where.startswith("unix://"):
            self._path = "" if where is None else os.path.abspath(where.removeprefix("unix://"))
            if where is None and not start:
                from .process import default_socket

                self._path = default_socket()
            if token or cafile:
                raise InvalidCall(
                    "a UNIX socket needs no token", why="the kernel tells who connects", fix="leave it out"
                )
        else:
            self._parse(where, token or os.environ.get("STADDLE_SERVER_TOKEN", ""), cafile)
        self._idle: list[HttpChannel] = []
        self._lock = threading.Lock()
        self._closed = False

    def _parse(self, url: str, token: str, cafile: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise InvalidCall(
                f"{url!r} is no address of a server",
                why="it is no http or https URL of a host",
                fix="write https://HOST:PORT, or a socket's path",
            )
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidCall(
                "the server needs its token",
                why="no token is given",
                fix="give token=, or set STADDLE_SERVER_TOKEN",
            )
        self._address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        if parts.scheme == "https":
            self._context = ssl.create_default_context(cafile=cafile)

    def channel(self) -> HttpChannel:
        """Return a new connection. A server of this user is started if none runs."""
        if self._closed:
            raise InvalidCall("the client is closed", why="close() was called", fix="connect again")
        if self._path:
            found = connected(self._path)
            if found is None:
                raise StaddleError(
                    f"no server runs at {self._path!r}",
                    why="nothing listens there",
                    fix="start `staddle serve`",
                )
            return HttpChannel(found)
        if self.where is None:
            from .process import default_socket

            return HttpChannel(connected_or_started(default_socket()))
        try:
            made = socket.create_connection(self._address, _TO_CONNECT)
            if self._context is not None:
                made = self._context.wrap_socket(made, server_hostname=self._address[0])
        except OSError as error:
            raise StaddleError(
                f"the server {self.where} cannot be reached", why=str(error), fix="check its address"
            ) from None
        made.settimeout(None)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return HttpChannel(made)

    def request(
        self,
        method: str,
        path: str,
        data: Any = None,
        *,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        is_known: bool = False,
    ) -> Reply:
        """Make a request and return its answer; an error of the server is raised.

        `is_known`: the server knows a repeated request by its content.
        """
        if query:
            path += "?" + "&".join(f"{name}={quote(_text(value), safe='')}" for name, value in query.items())
        content = body if body is not None else b"" if data is None else write_json(data).encode()
        lines = [f"{method} {path} HTTP/1.1\r\n{self._head}"]
        if method != "GET" and not is_known:
            lines.append(f"Idempotency-Key: {os.urandom(12).hex()}\r\n")
        lines += [f"{name}: {value}\r\n" for name, value in (headers or {}).items()]
        lines.append(f"Content-Length: {len(content)}\r\n\r\n")  # last: the rest may be the same as before
        reply = self._sent("".join(lines).encode("latin-1") + content)
        if reply.status >= 400:
            raise decode_error(_error_of(reply))
        return reply

    def begin(self, path: str, query: Mapping[str, object]) -> PendingReply | None:
        """Send a GET whose answer is read later; None if it cannot be sent now."""
        path += "?" + "&".join(f"{name}={_text(value)}" for name, value in query.items())
        try:
            channel = self._taken()
            channel.socket.sendall(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode("latin-1"))
        except (OSError, StaddleError):
            return None
        return PendingReply(self, channel)

    def _sent(self, data: bytes) -> Reply:
        for attempt in range(_ATTEMPTS):
            channel = self._taken()
            try:
                reply = channel.exchange(data)
            except Broken as error:
                channel.socket.close()
                why = str(error)
                time.sleep(_PAUSE * attempt)
                continue
            except BaseException:  # a signal: the rest of the answer would be read as the next one
                channel.socket.close()
                raise
            self.give_back(channel, reply)
            return reply
        raise SandboxLost(
            "the server gave no answer", why=f"the connection broke: {why}", fix="see whether it still runs"
        )

    def give_back(self, channel: HttpChannel, reply: Reply) -> None:
        """Keep a connection for the next request, after this answer."""
        with self._lock:
            may_stay = len(self._idle) < _MOST_IDLE and not self._closed
            if may_stay and reply.headers.get("connection") != "close":
                self._idle.append(channel)
            else:
                channel.socket.close()

    def _taken(self) -> HttpChannel:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self.channel()

    def upgraded(self, path: str, headers: Mapping[str, str]) -> tuple[HttpChannel, Reply]:
        """Make a request on a connection of its own, and return both: for WebSockets."""
        channel = self.channel()
        head = f"GET {path} HTTP/1.1\r\n{self._head}" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        )
        reply = channel.exchange(f"{head}\r\n".encode("latin-1"))
        if reply.status != 101:
            channel.socket.close()
            raise decode_error(_error_of(reply))
        return channel, reply

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.socket.close()


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _error_of(reply: Reply) -> Any:
    try:
        return reply.json().get("error")
    except (ValueError, AttributeError):
        return reply.body[:200].decode("utf-8", "replace")
