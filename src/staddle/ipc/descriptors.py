"""Messages with descriptors on a socket between our own processes."""

from __future__ import annotations

import _socket
import os
import struct

from ..linux.process import sent_at_any_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The most descriptors of one message.
_MOST = 64
#: Seconds to wait for something that is being made meanwhile.
_PATIENCE = 60.0
_CLOSE_ON_EXEC = 0x40000000  # MSG_CMSG_CLOEXEC


def send(socket: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message. OSError if the other end is closed, or the message does not fit."""
    flags = _socket.MSG_NOSIGNAL | _without_blocking(socket)
    if not descriptors:
        socket.sendmsg([message], (), flags)
        return
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)]
    sent_at_any_rate(lambda: socket.sendmsg([message], extra, flags))


def await_descriptors(socket: int, count: int) -> list[int]:
    """Receive `count` descriptors in one message on this socket. OSError if they do not arrive."""
    channel = _socket.socket(fileno=socket)
    try:
        channel.settimeout(_PATIENCE)
        found = receive(channel, 1)[1]
    finally:
        channel.detach()
    if len(found) != count:
        close_all(found)
        raise OSError(103, "what was to come did not come")  # ECONNABORTED
    return found


def receive(socket: _socket.socket, longest: int, most: int = _MOST) -> tuple[bytes, list[int]]:
    """Receive one message, empty if the other end is closed, and its descriptors.

    OSError if it is too long, or if this process has no room for the descriptors.
    """
    room = _socket.CMSG_SPACE(4 * most)
    message, extra, flags, _ = socket.recvmsg(longest, room, _CLOSE_ON_EXEC | _without_blocking(socket))
    descriptors = [
        fd
        for level, kind, data in extra
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for fd in struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
    ]
    if flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
        close_all(descriptors)
        if not flags & _socket.MSG_TRUNC and len(descriptors) < most:  # there was room for more of them
            raise OSError(24, os.strerror(24))  # EMFILE
        raise OSError(90, "a message is longer than it may be")  # EMSGSIZE
    return message, descriptors


def receive_last(
    socket: _socket.socket, longest: int
) -> tuple[bytes, list[int], ConnectionResetError | None]:
    """Like `receive`; also return the error if the other end was closed before it read our last message.

    Its earlier messages arrive after that error.
    """
    unheard: ConnectionResetError | None = None
    for _ in range(2):
        try:
            return *receive(socket, longest), unheard
        except ConnectionResetError as error:
            if not _is_ours(error):
                raise
            unheard = error
    return b"", [], unheard


def _is_ours(error: BaseException) -> bool:
    """Whether a call of this module failed: a signal handler of the host program may raise the same error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_globals is globals()


def _without_blocking(socket: _socket.socket) -> int:
    """Return the flag with which a call on a socket with a timeout never blocks, whatever its O_NONBLOCK.

    An agent that hands out a socket shares the open file, and may clear O_NONBLOCK on it.
    """
    return 0 if socket.gettimeout() is None else _socket.MSG_DONTWAIT


def close_all(descriptors: Iterable[int]) -> None:
    """Close these descriptors."""
    for fd in descriptors:
        os.close(fd)
