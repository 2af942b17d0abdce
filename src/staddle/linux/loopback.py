"""The loopback interface of a network namespace of our own, which is down when it is made."""

from __future__ import annotations

import _socket
import fcntl
import struct

_SIOCSIFFLAGS = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40


def up() -> None:
    """Make 127.0.0.1 and ::1 work. Needs CAP_NET_ADMIN over the namespace."""
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        request = struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, request)
    finally:
        any_socket.close()
