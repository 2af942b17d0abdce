"""A terminal of an open sandbox for another process of the same user, over a socket.

  python -m staddle.adapters._attach SOCKET

is the other process: it sends the keys of its terminal, and prints the output. The socket is in a directory
that only the user can enter, and is removed with the sandbox. It is never visible inside.

Each message is a letter, a length of four bytes, and the data: `d` data, `r` rows and columns as JSON, `x`
the exit status, which comes last.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HEAD = struct.Struct(">cI")
_PIECE = 1 << 16
_PREFIX = "staddle-attach-"
#: Not TMPDIR: that may be in a workspace, where a sandbox could put its own socket.
_PLACE = "/tmp"


def send(line: socket.socket, kind: bytes, data: bytes) -> None:
    """Send one message."""
    line.sendall(_HEAD.pack(kind, len(data)) + data)


def receive(line: socket.socket) -> tuple[bytes, bytes] | None:
    """The next message; None at the end, or if it is invalid."""
    head = _exactly(line, _HEAD.size)
    if head is None:
        return None
    kind, length = _HEAD.unpack(head)
    data = _exactly(line, length) if length <= _PIECE else None
    return None if data is None else (kind, data)


def _exactly(line: socket.socket, length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        piece = line.recv(length - len(data))
        if not piece:
            return None
        data += piece
    return data


class AttachServer:
    """Opens a terminal for each process that connects.

    `open_terminal(rows, cols)` returns one with blocking methods: `read`, `write`, `resize`, `wait`, `close`.
    """

    def __init__(self, open_terminal: Callable[[int, int], Any]) -> None:
        self._open = open_terminal
        _remove_dead()
        self._home = tempfile.mkdtemp(prefix=_PREFIX, dir=_PLACE)
        self.path = f"{self._home}/terminal"
        self._listener = socket.socket(socket.AF_UNIX)
        self._lines: set[socket.socket] = set()
        try:
            self._listener.bind(self.path)
            self._listener.listen(8)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._accept, name="staddle-attach", daemon=True).start()

    @property
    def command(self) -> str:
        """Shell text that opens a terminal."""
        return shlex.join([sys.executable, "-m", __name__, self.path])

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._lines.add(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        try:
            first = receive(line)
            if first is None or first[0] != b"r":
                return
            terminal = self._open(*json.loads(first[1]))
            try:
                threading.Thread(target=_type, args=(line, terminal), daemon=True).start()
                while data := terminal.read():
                    for start in range(0, len(data), _PIECE):
                        send(line, b"d", data[start : start + _PIECE])
                send(line, b"x", str(terminal.wait()).encode())
            finally:
                terminal.close()
        except Exception as error:  # the peer or the sandbox is gone; send the reason
            try:
                send(line, b"d", f"staddle: {error}\r\n".encode("utf-8", "replace")[:_PIECE])
            except OSError:
                pass
        finally:
            self._lines.discard(line)
            line.close()

    def close(self) -> None:
        """Accept no more connections, end the open ones, and remove the socket."""
        # shutdown() wakes the waiting thread; close() alone does not.
        for line in (self._listener, *self._lines):
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._listener.close()
        shutil.rmtree(self._home, ignore_errors=True)


def _remove_dead() -> None:
    """Remove the directories of killed programs of ours: their sockets refuse connections."""
    for name in os.listdir(_PLACE):
        home = f"{_PLACE}/{name}"
        try:
            if not name.startswith(_PREFIX) or os.lstat(home).st_uid != os.geteuid():
                continue
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(1)
                line.connect(f"{home}/terminal")
        except ConnectionRefusedError:
            shutil.rmtree(home, ignore_errors=True)
        except OSError:
            continue  # being made, or not ours


def _type(line: socket.socket, terminal: Any) -> None:
    """Type the peer's input until it is gone."""
    try:
        while message := receive(line):
            kind, data = message
            if kind == b"r":
                terminal.resize(*json.loads(data))
            else:
                terminal.write(data)
        terminal.close()
    except Exception:  # noqa: S110 - the terminal has ended
        pass


def on_loop(terminal: Any, loop: Any) -> Any:
    """A terminal of an AsyncSandbox with blocking methods, for threads other than its loop's."""
    import asyncio

    def waiting(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: asyncio.run_coroutine_threadsafe(method(*args), loop).result()

    methods = {name: waiting(getattr(terminal, name)) for name in ("read", "write", "wait", "close")}
    return SimpleNamespace(**methods, resize=terminal.resize)


def main(path: str) -> int:
    """Run as the other process; return the exit status of the program on the terminal."""
    import termios
    import tty

    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        is_terminal = os.isatty(0)

        def resized(*_: object) -> None:
            size = termios.tcgetwinsize(0) if is_terminal else (24, 80)
            send(line, b"r", json.dumps(size).encode())

        resized()
        before = termios.tcgetattr(0) if is_terminal else None
        if before is not None:
            signal.signal(signal.SIGWINCH, resized)
            tty.setraw(0, termios.TCSADRAIN)  # keeps keys typed already
        threading.Thread(target=_keys, args=(line,), daemon=True).start()
        status = 1
        try:
            while message := receive(line):
                kind, data = message
                if kind == b"x":
                    status = int(data)
                    break
                os.write(1, data)
        finally:
            if before is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, before)
    return status


def _keys(line: socket.socket) -> None:
    try:
        while data := os.read(0, _PIECE):
            send(line, b"d", data)
    except OSError:
        pass  # ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
