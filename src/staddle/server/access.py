"""Access to the server: this user on the UNIX socket, holders of the token over TCP, no foreign web page.

A page in the user's browser can reach loopback, by a form or by a host name that resolves to it (DNS
rebinding). It has no token, sends its own Origin, and its own name as Host: each of these is refused.
Our own page has no secret in its files, which are served without the token.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import socket
import struct
from typing import TYPE_CHECKING

from staddle.errors import InvalidCall

from .http import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .http import HttpRequest, Response

#: Fewer characters could be guessed.
LEAST_TOKEN = 32
#: Seconds without a request before a connection over TCP is closed.
_IDLE = 75.0
#: The subprotocol of an attached terminal. A browser sets no header of a WebSocket, so a page sends the token
#: as the name of another subprotocol: this prefix, and the token in base64url without padding.
PROTOCOL, _TOKEN_PROTOCOL = "staddle.terminal", "staddle.token."


def peer_uid(sock: socket.socket) -> int:
    """Return the user who connected a UNIX socket, as the kernel recorded it."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


class SocketAccess:
    """The rule of the UNIX socket: only processes of this user. No browser can connect to it."""

    idle: float | None = None
    scheme = "http"

    def may_connect(self, sock: socket.socket) -> bool:
        """Whether this peer may connect. Called before a byte is read."""
        return peer_uid(sock) == os.geteuid()

    def check(self, request: HttpRequest) -> Response | None:
        """Refuse what only a browser sends: it would be a proxy that lets pages in."""
        if "origin" in request.headers or "sec-fetch-site" in request.headers:
            raise Refused(
                403, "a web page may not use the socket", why="the request has an Origin", fix="use --listen"
            )
        return None


class TokenAccess:
    """The rule of a TCP port: the token, and one of the server's own names as Host and Origin."""

    idle: float | None = _IDLE

    def __init__(
        self, names: set[str], token: str, *, is_tls: bool, page: Mapping[str, Response] | None = None
    ) -> None:
        if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidCall(
                "the token of the server cannot be used",
                why=f"it has fewer than {LEAST_TOKEN} characters, or others than printable ASCII",
                fix="leave it out: the server makes one",
            )
        self.names, self.scheme = names, "https" if is_tls else "http"
        self._expected = f"Bearer {token}".encode()
        self._page = page or {}

    def may_connect(self, sock: socket.socket) -> bool:
        """Anybody may connect; the token decides."""
        return True

    def check(self, request: HttpRequest) -> Response | None:
        """Refuse a request with a wrong name, from a page of another site, or without the token.

        Returns the answer if it asks for a file of the page, which needs no token.
        """
        host = request.headers["host"].lower()
        if host not in self.names:
            raise Refused(
                421, "the server has another name", why=f"Host is {host[:100]!r}", fix="use its own URL"
            )
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{self.scheme}://{host}":
            raise Refused(
                403, "a page of another site may not use the server", why=f"Origin is {origin[:100]!r}"
            )
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refused(403, "a page of another site may not use the server", why="the browser says so")
        if request.method in ("GET", "HEAD") and request.path in self._page:
            return self._page[request.path]
        if not hmac.compare_digest(_given(request), self._expected):
            raise Refused(
                401,
                "the token of this server is missing or wrong",
                fix="send it as Authorization: Bearer TOKEN",
            )
        return None


def _given(request: HttpRequest) -> bytes:
    """Return the credentials that a request has, in the form of the Authorization header."""
    if not request.has_word("upgrade", "websocket"):
        return request.headers.get("authorization", "").encode("latin-1")
    for word in request.headers.get("sec-websocket-protocol", "").split(","):
        name = word.strip()
        if name.startswith(_TOKEN_PROTOCOL):
            text = name[len(_TOKEN_PROTOCOL) :]
            try:
                return b"Bearer " + base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            except ValueError:
                return b""
    return request.headers.get("authorization", "").encode("latin-1")


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's loopback. A name is not: what it means can change."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
