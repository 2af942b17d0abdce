"""The life of the server of a user: one process, found by its socket, started on first use.

A lock beside the socket is locked as long as the server lives, so two programs that start it at the same time
get one. The directory is ours alone (`places`): no sandbox can reach it, and no variable moves it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from staddle import places
from staddle.errors import InvalidCall, StaddleError

from .access import SocketAccess, TokenAccess, is_loopback, peer_uid

# A client, which imports this module too, loads no server.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .server import SandboxServer

#: Seconds without use until a server that was started on first use ends.
IDLE = 60.0
#: Seconds without use until such a server closes a sandbox that nothing else ends.
UNUSED = 24 * 3600.0
#: Seconds for a server to start.
_TO_START = 20.0
_NAME = "socket"
#: The directory that has this package.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def default_socket() -> str:
    """Return the path of this user's socket. Its directory is made if it is missing."""
    top, _, name = places.server().rpartition("/")
    return f"{places.make_private(top, name)}/{_NAME}"


def connected(path: str) -> socket.socket | None:
    """Return a connection to the server at `path`; None if none listens there.

    Raises StaddleError if another user listens there.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.connect(path)
        if peer_uid(made) != os.geteuid():
            raise StaddleError(
                f"the socket {path!r} is another user's",
                why="a server of this user was expected",
                fix="remove it",
            )
    except OSError as error:
        made.close()
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET):
            return None
        raise StaddleError(
            f"the server at {path!r} cannot be reached",
            why=error.strerror or str(error),
            fix="name another socket",
        ) from None
    except StaddleError:
        made.close()
        raise
    return made


def connected_or_started(path: str, idle: float = IDLE, unused: float = UNUSED) -> socket.socket:
    """Return a connection to the server at `path`, which is started if none listens there."""
    until = time.monotonic() + _TO_START
    while (found := connected(path)) is None:
        times = ("--idle", f"{idle:g}", "--unused", f"{unused:g}")
        words = ("serve", "--socket", path, *times, "--detach")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH")))),
        }
        done = subprocess.run(
            [sys.executable, "-P", "-m", "staddle", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            check=False,
        )
        if done.returncode and time.monotonic() > until:
            raise StaddleError(
                "the server did not start",
                why=done.stderr.decode("utf-8", "replace").strip()[-500:],
                fix="run `staddle serve`",
            )
        if time.monotonic() > until:
            raise StaddleError(
                "the server did not start", why="nothing listens at its socket", fix="run `staddle serve`"
            )
    return found


def claimed(path: str) -> int:
    """Lock the place of a server; return the descriptor of the lock, or -1 if another server has it."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return -1
    return lock


class ServeSettings:
    """Settings of a server: the places to listen at, and the time until it ends when idle."""

    def __init__(
        self,
        path: str,
        *,
        idle: float | None = None,
        unused: float | None = None,
        address: tuple[str, int] | None = None,
        certificate: str = "",
        key: str = "",
        names: Sequence[str] = (),
        token: str | None = None,
        detach: bool = False,
        page: bool = False,
    ) -> None:
        self.path, self.idle, self.address, self.detach = path, idle, address, detach
        self.unused, self.page = unused, page
        self.token = token or secrets.token_urlsafe(32)
        self.names = names
        self.context: ssl.SSLContext | None = None
        if bool(certificate) != bool(key):
            raise InvalidCall(
                "TLS needs a certificate and its key",
                why="only one is given",
                fix="give both --cert and --key",
            )
        if certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                self.context.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:
                raise InvalidCall(
                    "the TLS files cannot be used", why=str(error), fix="name a certificate and its key"
                ) from None
        if address is not None and self.context is None and not is_loopback(address[0]):
            raise InvalidCall(
                f"the server does not listen at {address[0]} without TLS",
                why="the token and all files would cross the network unencrypted",
                fix="listen at 127.0.0.1, or give --cert and --key",
            )


def serve(settings: ServeSettings) -> int:
    """Serve until a signal, a request, or idleness ends it. Returns the exit status."""
    from .server import SandboxServer, unix_listener

    lock = claimed(settings.path)
    if lock < 0:
        if settings.detach:  # two programs started it at the same time
            return _await_other(settings.path)
        raise StaddleError(
            f"a server runs at {settings.path!r}",
            why="it has locked it",
            fix="use it, or `staddle stop --server`",
        )
    listener = unix_listener(settings.path)
    port = PortListener(settings)
    if settings.address is not None:
        port.bind()
    if settings.detach and not _detached():
        return 0
    server = SandboxServer(idle=settings.idle, unused=settings.unused)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: server.stop())
    facts: dict[str, Any] = {"socket": settings.path, "pid": os.getpid()}
    server.open_port = partial(port.open, server)
    if settings.address is not None:
        facts |= port.open(server)
    server.listen(listener, SocketAccess())
    if not settings.detach:
        announce(facts, page=settings.page)
    server.wait()
    # From here no client finds it; one that has just connected is told by the end of its connection.
    os.unlink(settings.path)
    server.end()
    os.close(lock)
    return 0


def announce(facts: dict[str, Any], *, page: bool) -> None:
    """Print the facts for programs and, if asked, the address of the page for a person."""
    print(json.dumps(facts), flush=True)
    if page:
        print(f"the page: {facts['page']}", file=sys.stderr, flush=True)


class PortListener:
    """The TCP port of a server, opened at its start or by the first request for the page. Thread-safe."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._listener: socket.socket | None = None
        self._facts: dict[str, Any] = {}
        self._lock = threading.Lock()

    def bind(self) -> socket.socket:
        """Return the listening socket: at the address of the settings, or a free port of loopback."""
        from .server import tcp_listener

        if self._listener is None:
            self._listener = tcp_listener(*self._settings.address or ("127.0.0.1", 0))
        return self._listener

    def open(self, server: SandboxServer) -> dict[str, Any]:
        """Serve it, once; return the URL, the header with the token, and the address of the page."""
        with self._lock:
            if not self._facts:
                self._facts = self._opened(server)
            return self._facts

    def _opened(self, server: SandboxServer) -> dict[str, Any]:
        from .page_files import page_files

        settings, listener = self._settings, self.bind()
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        names = {f"{name}:{port}".lower() for name in (shown, *settings.names)}
        if is_loopback(host):
            names.add(f"localhost:{port}")
        access = TokenAccess(names, settings.token, is_tls=settings.context is not None, page=page_files())
        server.listen(listener, access, settings.context)
        url = f"{access.scheme}://{shown}:{port}"
        called = f"{access.scheme}://{settings.names[0]}:{port}" if settings.names else url
        return {
            "url": url,
            "headers": {"Authorization": f"Bearer {settings.token}"},
            # A fragment is never sent to a server, so it is in no log.
            "page": f"{called}/#token={quote(settings.token, safe='')}",
        }


def _await_other(path: str) -> int:
    until = time.monotonic() + _TO_START
    while time.monotonic() < until:
        found = connected(path)
        if found is not None:
            found.close()
            return 0
        lock = claimed(path)
        if lock >= 0:  # the other one ended
            os.close(lock)
            return 1
        time.sleep(0.02)
    return 1


def _detached() -> bool:
    """Fork: return False in the parent, True in the child, which has no terminal and no standard streams."""
    if threading.active_count() > 1:
        raise StaddleError(
            "the server cannot detach", why="the process has threads", fix="start it without --detach"
        )
    if os.fork():
        return False
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    os.chdir("/")
    return True
