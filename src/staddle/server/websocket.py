"""WebSocket messages (RFC 6455), for both ends: no extensions, whole messages, each bounded."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_CONTINUED = 0
#: The most bytes of a message.
MOST_MESSAGE = 1 << 20
_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketError(Exception):
    """The other end broke the protocol, or is gone."""


def accept_key(key: str) -> str:
    """Return the answer to the `Sec-WebSocket-Key` of a client."""
    return base64.b64encode(hashlib.sha1(key.encode("latin-1") + _SALT).digest()).decode()  # noqa: S324 - the RFC's


def masked(data: bytes, mask: bytes) -> bytes:
    """Return the data with the mask applied, or removed."""
    size = len(data)
    if not size:
        return b""
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")


class WebSocket:
    """One end of a WebSocket. `receive(n)` returns 1 to n bytes. Only a client masks what it sends."""

    def __init__(
        self, receive: Callable[[int], bytes], send: Callable[[bytes], object], *, is_client: bool
    ) -> None:
        self._receive, self._send, self._is_client = receive, send, is_client
        self._lock = threading.Lock()
        self._is_closing = False

    def send(self, kind: int, data: bytes) -> None:
        """Send a message."""
        flag = 0x80 if self._is_client else 0
        size = len(data)
        if size < 126:
            head = bytes((0x80 | kind, flag | size))
        elif size < 65536:
            head = bytes((0x80 | kind, flag | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((0x80 | kind, flag | 127)) + size.to_bytes(8, "big")
        if self._is_client:
            mask = os.urandom(4)
            head, data = head + mask, masked(data, mask)
        with self._lock:
            if not self._is_closing:
                self._is_closing = kind == CLOSE
                self._send(head + data)

    def message(self) -> tuple[int, bytes] | None:
        """Return the next message, as (TEXT or BINARY, data); None when the other end closes."""
        kind, parts, size = 0, [], 0
        while True:
            is_last, code, data = self._frame(MOST_MESSAGE - size)
            if code == PING:
                self.send(PONG, data)
            elif code == CLOSE:
                self.send(CLOSE, data[:2])
                return None
            elif code in (TEXT, BINARY, _CONTINUED):
                if (code == _CONTINUED) != bool(kind):
                    raise WebSocketError("a message is continued that has not begun, or the reverse")
                kind = kind or code
                parts.append(data)
                size += len(data)
                if is_last:
                    return kind, b"".join(parts)
            elif code != PONG:
                raise WebSocketError("a frame has an unknown code")

    def _frame(self, most: int) -> tuple[bool, int, bytes]:
        first, second = self._exactly(2)
        code, size = first & 0x0F, second & 0x7F
        if first & 0x70 or bool(second & 0x80) is self._is_client:
            raise WebSocketError("a frame has flags that were not agreed on, or is masked by the wrong end")
        if code >= CLOSE and (size > 125 or not first & 0x80):
            raise WebSocketError("a control frame is too long, or in parts")
        if size == 126:
            size = int.from_bytes(self._exactly(2), "big")
        elif size == 127:
            size = int.from_bytes(self._exactly(8), "big")
        if size > most:
            raise WebSocketError(f"a message has more than {MOST_MESSAGE} bytes")
        mask = b"" if self._is_client else self._exactly(4)
        data = self._exactly(size)
        return bool(first & 0x80), code, masked(data, mask) if mask else data

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            data = self._receive(min(size, 65536))
            if not data:
                raise WebSocketError("the connection was closed")
            parts.append(data)
            size -= len(data)
        return b"".join(parts)
