"""Hand connections of inspected hosts over to the HTTP inspector, a process of its own.

The gateway has decided about the destination, connected to it, and seen that the opening is for it. After
that it has no part in the connection: keys and secrets are never in this process.
"""

from __future__ import annotations

import _socket
import errno
import struct
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

    #: The message, the sockets of both sides, and the function that is called when they are sent.
    Waiting = tuple[bytes, tuple[_socket.socket, _socket.socket], Callable[[bool], None]]

#: Connections that wait until the inspector has read the ones before them.
_MOST_WAITING = 512
_FULL = (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS)


class InspectorSocket:
    """The gateway's socket to the inspector."""

    def __init__(self, loop: Loop, socket: _socket.socket) -> None:
        socket.setblocking(False)
        self._socket = socket
        self._waiting: deque[Waiting] = deque()
        loop.watch(socket.fileno(), lambda _: self._send())
        loop.sweep(self._sweep)

    def hand_over(
        self,
        name: str,
        port: int,
        opening: bytes,
        sides: tuple[_socket.socket, _socket.socket],
        done: Callable[[bool], None],
    ) -> None:
        """Send both sockets of a connection. `done` is called once: False if the inspector is gone."""
        if len(self._waiting) >= _MOST_WAITING:
            done(False)
            return
        self._waiting.append((b"connection 1\n%s %d\n%s" % (name.encode(), port, opening), sides, done))
        self._send()

    def _send(self) -> None:
        while self._waiting:
            message, sides, done = self._waiting[0]
            try:
                if all(side.fileno() >= 0 for side in sides):  # else it was closed meanwhile
                    rights = struct.pack("2i", *(side.fileno() for side in sides))
                    extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)]
                    self._socket.sendmsg([message], extra, _socket.MSG_NOSIGNAL)
            except OSError as error:
                if error.errno in _FULL:
                    return
                self._waiting.popleft()
                done(False)
                continue
            self._waiting.popleft()
            done(True)

    def _sweep(self, _now: float) -> bool:
        self._send()
        return bool(self._waiting)
