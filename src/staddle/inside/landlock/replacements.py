"""A new socket in place of the caller's, where we may not copy descriptors of another process.

The default filters of container engines refuse pidfd_getfd. There the supervisor reads the kind of the
caller's socket from /proc and connects a new socket of that kind. It replaces the caller's descriptor
atomically with SECCOMP_IOCTL_NOTIF_ADDFD. Only O_NONBLOCK and O_CLOEXEC are copied from the old socket. Other
options that were set before connect() are lost, and a socket that was bound to a name is refused.

The caller can change the data in /proc meanwhile. That is harmless: we make only kinds of sockets that its
filter allows, and connect them only where the policy allows.
"""

from __future__ import annotations

import _socket as socket
import errno
import fcntl
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ADD_DESCRIPTOR = 0x40182103
_ADD = struct.Struct("QIIII")  # struct seccomp_notif_addfd
_AT_NUMBER = 1  # SECCOMP_ADDFD_FLAG_SETFD

#: Protocol names, as in the attributes of a socket, and their address families.
_STREAM = {"TCP": socket.AF_INET, "TCPv6": socket.AF_INET6}
_DATAGRAM = {"UDP": socket.AF_INET, "UDPv6": socket.AF_INET6}
#: Types of UNIX sockets. No datagram sockets, which can send to any path.
_UNIX = {1: socket.SOCK_STREAM, 5: socket.SOCK_SEQPACKET}
_ESTABLISHED, _CONNECTING = 1, 2
_UNIX_CONNECTED = 3


class SocketUnknown(OSError):
    """The caller's socket cannot be replaced; the caller gets `errno`."""


class CallersSocket:
    """The kind of a socket in another process."""

    def __init__(self, thread: int, fd: int, *, datagrams: bool) -> None:
        """Read it from /proc. `datagrams`: an Internet socket may be a datagram socket."""
        where = f"/proc/{thread}/fd/{fd}"
        try:
            name = os.readlink(where)
        except FileNotFoundError:
            raise SocketUnknown(errno.EBADF, "no such descriptor") from None
        if not name.startswith("socket:["):
            raise SocketUnknown(errno.ENOTSOCK, "not a socket")
        self._inode = int(name[8:-1])
        self.flags = _flags(thread, fd)
        protocol = os.getxattr(where, "system.sockprotoname").rstrip(b"\0").decode("ascii", "replace")
        if protocol.startswith("UNIX"):
            self.family, self.type = socket.AF_UNIX, self._unix_type()
        elif protocol in _STREAM:
            self.family, self.type = _STREAM[protocol], socket.SOCK_STREAM
            self._check_tcp("tcp" if self.family == socket.AF_INET else "tcp6")
        elif datagrams and protocol in _DATAGRAM:
            self.family, self.type = _DATAGRAM[protocol], socket.SOCK_DGRAM
        else:
            raise SocketUnknown(errno.EACCES, f"a socket of {protocol}")

    def _unix_type(self) -> int:
        for cells in _table("unix"):
            # Num RefCount Protocol Flags Type St Inode Path
            if len(cells) < 7 or int(cells[6]) != self._inode:
                continue
            kind, state = int(cells[4], 16), int(cells[5], 16)
            if state == _UNIX_CONNECTED:
                raise SocketUnknown(errno.EISCONN, "connected already")
            if kind in _UNIX and len(cells) == 7:
                return _UNIX[kind]
        raise SocketUnknown(errno.EACCES, "a UNIX socket with a name, or that sends datagrams")

    def _check_tcp(self, table: str) -> None:
        for cells in _table(table):
            # sl local rem st tx:rx tr:when retrnsmt uid timeout inode
            if len(cells) > 9 and int(cells[9]) == self._inode:
                state = int(cells[3], 16)
                told = {_ESTABLISHED: errno.EISCONN, _CONNECTING: errno.EALREADY}.get(state, errno.EACCES)
                raise SocketUnknown(told, "in use already")

    def another(self) -> int:
        """Return a new socket of the same kind, nonblocking if the caller's is."""
        kind = self.type | socket.SOCK_CLOEXEC | (self.flags & os.O_NONBLOCK)
        return socket.socket(self.family, kind).detach()


def _flags(thread: int, fd: int) -> int:
    with open(f"/proc/{thread}/fdinfo/{fd}", "rb") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith(b"flags:"))


def _table(name: str) -> Iterator[list[bytes]]:
    """Yield the rows of a table of sockets, without its header."""
    with open(f"/proc/self/net/{name}", "rb") as file:
        next(file, b"")
        for line in file:
            yield line.split()


def put(listener: int, request: int, made: int, fd: int, *, closes_on_exec: bool) -> None:
    """Replace the caller's descriptor `fd` with `made`."""
    flags = os.O_CLOEXEC if closes_on_exec else 0
    fcntl.ioctl(listener, _ADD_DESCRIPTOR, _ADD.pack(request, _AT_NUMBER, made, fd, flags))
