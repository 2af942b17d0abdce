"""Redirects connections to the sandbox's proxy, for programs that do not know of a proxy.

The supervisor redirects queries to any nameserver, over TCP, and connections to the synthetic addresses in
its answers, which stand for names. The socket stays the caller's, who can read and write it meanwhile. That
breaks only the caller's own connection, as it may talk to the proxy directly anyway. The proxy decides.

See `ipc.led_connection` for the protocol.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import struct

from ...ipc.led_connection import NAMES, LedConnection, encode
from ...network.rules import synthetic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The port of nameservers.
_NAMES_PORT = 53
#: Milliseconds for the proxy to accept a connection, to decide about it, and to connect.
_TAKEN, _DECIDED, _DIALLED = 5_000, 5_000, 60_000
_NO_ADDRESS = struct.pack("H14x", _socket.AF_UNSPEC)


def leads(address: bytes, port: int) -> bool:
    """Whether a connection to this address goes to the proxy."""
    return port == _NAMES_PORT or synthetic.is_ours(address)


class ProxyRoute:
    """The route to the proxy of one sandbox."""

    def __init__(self, port: int, word: bytes) -> None:
        self._port, self._word = port, word.decode()

    def connect(
        self, fd: int, family: int, address: bytes, port: int, connect: Callable[[int, bytes], int]
    ) -> int:
        """Connect the caller's socket to the destination behind the address;

        return 0, or the error for the caller.
        """
        waits = not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
        copy = _socket.socket(fileno=os.dup(fd))
        try:
            error = connect(fd, self._address(family))
            if error == errno.EINPROGRESS:
                error = _finished(copy)
            if error:
                return error
            error = self._led(copy, self._line(address, port, waits), _DIALLED if waits else _DECIDED)
            if error:
                connect(fd, _NO_ADDRESS)  # disconnect, so that it can be connected to another address
            return error
        finally:
            copy.close()

    def _address(self, family: int) -> bytes:
        """Return the proxy's address, for a socket of this family."""
        if family == _socket.AF_INET:
            return struct.pack("=H", family) + struct.pack(">H4s8x", self._port, bytes((127, 0, 0, 1)))
        mapped = bytes(10) + b"\xff\xff" + bytes((127, 0, 0, 1))
        return struct.pack("=H", family) + struct.pack(">HI16sI", self._port, 0, mapped, 0)

    def _line(self, address: bytes, port: int, waits: bool) -> bytes:
        host = NAMES
        if synthetic.is_ours(address):
            host = _socket.inet_ntop(_socket.AF_INET if len(address) == 4 else _socket.AF_INET6, address)
        return encode(LedConnection(self._word, host, port, waits))

    def _led(self, copy: _socket.socket, line: bytes, patience: int) -> int:
        """Send the destination; return the answer, or an error."""
        try:
            if copy.send(line, _socket.MSG_NOSIGNAL | _socket.MSG_DONTWAIT) != len(line):
                return errno.EAGAIN
            if not _ready(copy, select.POLLIN, patience):
                return errno.ETIMEDOUT
            answer = copy.recv(1, _socket.MSG_DONTWAIT)
        except OSError as error:
            return error.errno or errno.ECONNRESET
        return answer[0] if answer else errno.ECONNRESET


def _finished(copy: _socket.socket) -> int:
    """Wait for a connection in progress; return its error, or 0."""
    if not _ready(copy, select.POLLOUT, _TAKEN):
        return errno.ETIMEDOUT
    return copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)


def _ready(copy: _socket.socket, events: int, patience: int) -> bool:
    poll = select.poll()
    poll.register(copy.fileno(), events)
    return bool(poll.poll(patience))
