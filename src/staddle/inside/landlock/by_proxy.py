"""Connections that the supervisor leads to the sandbox's proxy, for programs that know of no proxy.

What is led there: questions to any nameserver, over TCP, and connections to addresses that its answers gave,
which stand for names. The socket stays the caller's, who can read and write it while we do: that spoils his
own connection, and what he could say to the proxy instead of us he may say anyway. The proxy decides.

See `ipc.led_connection` for what is said.
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
#: Milliseconds for the proxy to take a connection, to say whether it may be, and to have dialled.
_TAKEN, _DECIDED, _DIALLED = 5_000, 5_000, 60_000
_NO_ADDRESS = struct.pack("H14x", _socket.AF_UNSPEC)


def leads(address: bytes, port: int) -> bool:
    """Whether a connection to this address is for the proxy."""
    return port == _NAMES_PORT or synthetic.is_ours(address)


class ProxyRoute:
    """The way to the proxy of one sandbox."""

    def __init__(self, port: int, word: bytes) -> None:
        self._port, self._word = port, word.decode()

    def connect(
        self, fd: int, family: int, address: bytes, port: int, connect: Callable[[int, bytes], int]
    ) -> int:
        """Connect the caller's socket to what the address stands for; 0, or the error that he gets."""
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
                connect(fd, _NO_ADDRESS)  # it is as before, and can be connected to something else
            return error
        finally:
            copy.close()

    def _address(self, family: int) -> bytes:
        """The proxy's address, as a socket of this family takes it."""
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
        """Say where it is to go; the answer."""
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
    """The outcome of a connection that was begun."""
    if not _ready(copy, select.POLLOUT, _TAKEN):
        return errno.ETIMEDOUT
    return copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)


def _ready(copy: _socket.socket, events: int, patience: int) -> bool:
    poll = select.poll()
    poll.register(copy.fileno(), events)
    return bool(poll.poll(patience))
