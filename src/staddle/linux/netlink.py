"""rtnetlink: the loopback interface, its addresses and local routes. Thin, no policy.

    with Netlink() as kernel:
        kernel.ask(link_up(LOOPBACK), address(LOOPBACK, packed, 32), local_route(packed, 15))

Pure functions make the messages; one `ask` sends all and checks every answer. They act on the network
namespace in which the socket was made, and need CAP_NET_ADMIN over it.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

#: The index of `lo` in every network namespace.
LOOPBACK = 1
ROUTE, SOCK_DIAG, NETFILTER = 0, 4, 12

_AF_NETLINK = 16
_REQUEST, _ACKNOWLEDGE, _REPLACE, _CREATE = 1, 4, 0x100, 0x400
_ERROR = 2
_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE, _GET_ROUTE = 16, 20, 24, 26
_UP = 1
_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL = 255, 3, 254, 2
_OWN_TYPES = (_TYPE_LOCAL, 3, 4)  # with RTN_BROADCAST, RTN_ANYCAST
_NO_DUPLICATE_CHECK = 2  # IFA_F_NODAD
_HEADER = struct.Struct("IHHII")  # struct nlmsghdr
_ENOUGH = 65536


def message(kind: int, flags: int, body: bytes, sequence: int = 0) -> bytes:
    """Return one request, padded so that messages can follow each other."""
    length = _HEADER.size + len(body)
    return _HEADER.pack(length, kind, _REQUEST | flags, sequence, 0) + body + bytes(-length % 4)


def attribute(kind: int, content: bytes) -> bytes:
    """Return a struct nlattr, with its padding."""
    return struct.pack("HH", 4 + len(content), kind) + content + bytes(-len(content) % 4)


def link_up(index: int) -> bytes:
    """Switch the interface on."""
    return message(_NEW_LINK, _ACKNOWLEDGE, struct.pack("BxHiII", 0, 0, index, _UP, _UP))


def address(index: int, packed: bytes, prefix: int) -> bytes:
    """Add this address to the interface, if it is missing."""
    body = struct.pack("BBBBI", _family(packed), prefix, _NO_DUPLICATE_CHECK, _SCOPE_HOST, index)
    body += attribute(2, packed) + attribute(1, packed)  # IFA_LOCAL, IFA_ADDRESS
    return message(_NEW_ADDRESS, _ACKNOWLEDGE | _CREATE | _REPLACE, body)


def local_route(packed: bytes, prefix: int, source: bytes = b"", index: int = LOOPBACK) -> bytes:
    """Make every address of this network local (AnyIP): it can be bound, and reached from here.

    Packets to it have the source address `source`. Without one, IPv4 uses the destination.
    """
    body = struct.pack(
        "BBBBBBBBI",
        _family(packed),
        prefix,
        0,
        0,
        _TABLE_LOCAL,
        _PROTOCOL_BOOT,
        _SCOPE_HOST,
        _TYPE_LOCAL,
        0,
    )
    if prefix:
        body += attribute(1, packed)  # RTA_DST
    body += attribute(4, struct.pack("I", index))  # RTA_OIF
    if source:
        body += attribute(7, source)  # RTA_PREFSRC
    return message(_NEW_ROUTE, _ACKNOWLEDGE | _CREATE | _REPLACE, body)


class Netlink:
    """A socket to the kernel. Closed at the end of a `with`."""

    def __init__(self, protocol: int = ROUTE) -> None:
        self._socket = _socket.socket(_AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, protocol)

    def ask(self, *messages: bytes) -> None:
        """Send these messages at once; raise OSError for the first that the kernel refused."""
        for error in self.ask_each(*messages):
            if error:
                raise OSError(error, os.strerror(error))

    def ask_each(self, *messages: bytes) -> list[int]:
        """Send these messages at once; return the error of each, 0 for success."""
        self._socket.send(b"".join(messages))
        found: list[int] = []
        while len(found) < len(messages):
            found += errors(self._socket.recv(_ENOUGH))
        return found

    def ask_batch(self, batch: bytes, answers: int) -> None:
        """Send a batch that the kernel applies as a whole or not at all (nfnetlink); check its answers."""
        self._socket.send(batch)
        while answers > 0:
            for error in errors(self._socket.recv(_ENOUGH)):
                answers -= 1
                if error:
                    raise OSError(error, os.strerror(error))

    def is_own(self, packed: bytes) -> bool:
        """Whether packets to this address stay on this machine: a local or a broadcast address.

        Needs no capability. An address without a route is not local.
        """
        sent = struct.pack("BBBBBBBBI", _family(packed), 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
        self._socket.send(message(_GET_ROUTE, 0, sent + attribute(1, packed)))  # RTA_DST
        answer = self._socket.recv(_ENOUGH)
        _, kind, _, _, _ = _HEADER.unpack_from(answer)
        return kind == _NEW_ROUTE and answer[_HEADER.size + 7] in _OWN_TYPES

    def dump(self, request: bytes, size: int, wanted: int) -> Iterator[int]:
        """Yield the memory of each socket in sock_diag, from the attribute `wanted` after `size` bytes."""
        self._socket.send(message(_BY_FAMILY, _DUMP, request))
        while True:
            answer, at = self._socket.recv(_ENOUGH), 0
            while at + _HEADER.size <= len(answer):
                length, kind, _, _, _ = _HEADER.unpack_from(answer, at)
                if kind in (_DONE, _ERROR) or length < _HEADER.size:
                    return
                place, end = at + _HEADER.size + size, min(at + length, len(answer))
                while place + 4 <= end:
                    taken, name = struct.unpack_from("HH", answer, place)
                    if name == wanted and place + 28 <= end:
                        received, _, sent, _, _, queued = struct.unpack_from("6I", answer, place + 4)
                        yield received + max(sent, queued)
                    place += max(4, taken + -taken % 4)
                at += length + -length % 4
            if not answer:
                return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: sock_diag(7): a request for all sockets of a kind, the size of the header of an answer to it, and the
#: attribute with a struct sk_meminfo.
_BY_FAMILY, _DUMP, _DONE = 20, 0x300, 3
_ALL_STATES = 0xFFFFFFFF
_DUMPS = (
    (struct.pack("BBHIII8x", 1, 0, 0, _ALL_STATES, 0, 0x20), 16, 5),  # AF_UNIX, UDIAG_SHOW_MEMINFO
    (struct.pack("BBBxI48x", 2, 6, 1 << 6, _ALL_STATES), 72, 7),  # AF_INET, TCP, INET_DIAG_SKMEMINFO
    (struct.pack("BBBxI48x", 10, 6, 1 << 6, _ALL_STATES), 72, 7),  # AF_INET6
)


def socket_memory() -> int:
    """Return the bytes queued in the UNIX and TCP sockets of this network namespace, of every process.

    Needs no capability. A kind that the kernel cannot list counts as zero.
    """
    total = 0
    for request, size, kind in _DUMPS:
        try:
            with Netlink(SOCK_DIAG) as kernel:
                total += sum(kernel.dump(request, size, kind))
        except OSError:
            continue
    return total


def errors(answer: bytes) -> Iterator[int]:
    """Yield the error number of every acknowledgement from the kernel; 0 is success."""
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, _, _, _ = _HEADER.unpack_from(answer, at)
        if length < _HEADER.size or at + length > len(answer):
            return
        if kind == _ERROR and length >= _HEADER.size + 4:
            yield -struct.unpack_from("i", answer, at + _HEADER.size)[0]
        at += length + -length % 4


def _family(packed: bytes) -> int:
    return int(_socket.AF_INET if len(packed) == 4 else _socket.AF_INET6)


_SIOCSIFFLAGS = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40


def loopback_up() -> None:
    """Enable 127.0.0.1 and ::1 with one ioctl, like `link_up(LOOPBACK)`, if nothing else is needed."""
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        request = struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, request)
    finally:
        any_socket.close()
