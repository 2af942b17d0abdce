"""The server over HTTP: on loopback only, for clients with the token, and for no web page.

A web page in the user's browser can reach loopback, by a form or by a host name that resolves to it (DNS
rebinding). It has no token, sends its own Origin, and its own name as Host: each of these is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse

from staddle import StaddleError

from .server import make_server

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .sandboxes import ServerSettings

PATH = "/mcp"
_HOSTS = ("127.0.0.1", "localhost")


class TokenCheck:
    """Refuses every request without the token, before reading its body."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
                refusal = PlainTextResponse(
                    "the token of this server is missing or wrong",
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        elif scope["type"] != "lifespan":
            return
        await self._app(scope, receive, send)


def http_app(server: MCPServer[Any], port: int) -> ASGIApp:
    """The server as an ASGI application, only for loopback names with this port."""
    names = [f"{host}:{port}" for host in _HOSTS]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )
    return server.streamable_http_app(
        streamable_http_path=PATH, transport_security=security, host="127.0.0.1"
    )


def loopback_socket(port: int) -> socket.socket:
    """A listening socket on 127.0.0.1; port 0 means any free port."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(128)
    except OSError as error:
        made.close()
        raise StaddleError(
            f"the port {port} cannot be had", why=error.strerror or str(error), fix="choose another, or 0"
        ) from None
    return made


def serve_http(settings: ServerSettings, port: int, token: str | None = None) -> None:
    """Serve until a signal ends it. Prints one line with the URL and the token."""
    import uvicorn

    secret = token or secrets.token_urlsafe(32)
    with loopback_socket(port) as listener:
        bound = listener.getsockname()[1]
        app = TokenCheck(http_app(make_server(settings), bound), secret)
        config = uvicorn.Config(app, log_level="warning", lifespan="on", server_header=False)
        url = f"http://127.0.0.1:{bound}{PATH}"
        print(json.dumps({"url": url, "headers": {"Authorization": f"Bearer {secret}"}}), flush=True)
        print(f"staddle: serving {url}; Ctrl-C ends it", file=sys.stderr, flush=True)
        server = uvicorn.Server(config)
        try:
            asyncio.run(server.serve([listener]))
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
