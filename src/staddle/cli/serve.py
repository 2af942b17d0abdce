"""`staddle serve`: hold sandboxes for other programs."""

from __future__ import annotations

import os

from ..errors import UsageError
from .options import HELP, Option, help_rows, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = (
    Option("socket", "PATH", "listen at this UNIX socket (default: this user's own)"),
    Option("idle", "SECONDS", "end after this time without sandboxes and connections (default: never)"),
    Option("unused", "SECONDS", "close unlabelled sandboxes without use for this time (default: never)"),
    Option("detach", "", "go on in the background"),
    Option("page", "", "print the address of the page for a browser; of your server, if it runs already"),
    Option("listen", "HOST:PORT", "listen at a TCP port as well; 0 is any free port"),
    Option("cert", "FILE", "certificate for TLS, in PEM; needed for any HOST but loopback"),
    Option("key", "FILE", "key of the certificate, in PEM"),
    Option(
        "host-name", "NAME", "accept this name of the server in requests over TCP (repeatable)", many=True
    ),
    HELP,
)
_HELP = """\
Hold sandboxes for other programs, until it is told to stop.

usage: staddle serve [options]

It listens on a UNIX socket that only you can open. Programs use it by `staddle.connect()`, which
starts it by itself, or by HTTP. With --page it listens at a free port of this machine too, for your
browser. The first line of standard output is JSON with the socket and, with --listen or --page, the
address and the header with the token that a client needs. STADDLE_SERVER_TOKEN sets the token
(default: a new one). SIGTERM ends it with all sandboxes; kept ones stay on disk.

{options}

  staddle serve --page
  staddle serve --listen 127.0.0.1:8931
  curl --unix-socket SOCKET http://localhost/v1/sandboxes
"""


def main(words: Sequence[str]) -> int:
    """Serve until it is told to stop."""
    import gc

    parsed = parse(words, _OPTIONS, "serve")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if parsed.words:
        raise UsageError(
            f"staddle serve does not understand {parsed.words[0]!r}", fix="see `staddle serve --help`"
        )
    from ..server.process import ServeSettings, announce, connected, default_socket, serve

    listen, path = parsed.one("listen"), os.path.abspath(parsed.one("socket") or default_socket())
    if listen is None and (parsed.on("cert") or parsed.on("key") or parsed.on("host-name")):
        raise UsageError("--cert, --key and --host-name are for a TCP port", fix="add --listen HOST:PORT")
    if (listen is not None or parsed.on("page")) and parsed.on("detach"):
        raise UsageError(
            f"--detach and {'--listen' if listen is not None else '--page'} exclude each other",
            why="nobody would see the token",
            fix="use `&`",
        )
    if parsed.on("page") and listen is None:
        found = connected(path)
        if found is not None:
            found.close()
            from ..server.client import connect

            with connect(path) as client:
                announce({"socket": path, "pid": client.about()["pid"], **client.open_page()}, page=True)
            return 0
        listen = "127.0.0.1:0"
    gc.enable()  # it lives long
    return serve(
        ServeSettings(
            path,
            idle=_seconds("idle", parsed.one("idle")),
            unused=_seconds("unused", parsed.one("unused")),
            address=None if listen is None else _address(listen),
            certificate=parsed.one("cert") or "",
            key=parsed.one("key") or "",
            names=parsed.many("host-name"),
            token=os.environ.get("STADDLE_SERVER_TOKEN"),
            detach=parsed.on("detach"),
            page=parsed.on("page"),
        )
    )


def _seconds(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise UsageError(f"--{option} {text!r} is not a number of seconds", fix="write it as in 60")
    return seconds


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"--listen {text!r} is not HOST:PORT", fix="write it as in 127.0.0.1:8931")
    host = host.removeprefix("[").removesuffix("]")
    return ("127.0.0.1" if host in ("", "localhost") else host), int(port)
