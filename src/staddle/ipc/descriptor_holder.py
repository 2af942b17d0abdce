"""A process that holds descriptors for the host program, which may not have so many open itself.

    python -I -S .../ipc/descriptor_holder.py STARTER

It runs on the host with the rights of the program that has started it, and its end of a SOCK_SEQPACKET pair
is descriptor 0. It reads nothing from what it holds. A request is a letter and a number, and the answer is
the same, or `!` when it cannot be done:

    h 7  with descriptors     hold these by the number 7
    t 7                       send them back, as copies: not all may have room where they arrive
    d 7                       close them
    a 7                       answer, if the other end of the first one is still open

It ends, and everything that it holds is closed, when its socket or the process STARTER ends. It loads the
standard library alone. `parked_sockets.py` is the other side.
"""

from __future__ import annotations

import _socket
import errno
import os
import resource
import select
import struct
import sys

HOLD, TAKE, DROP, ASK = b"h", b"t", b"d", b"a"
REFUSED = b"!"
#: Descriptors in one message at most.
MOST = 16
_NUMBER = struct.Struct("=cQ")
_CLOSE_ON_EXEC = 0x40000000  # MSG_CMSG_CLOEXEC


def encode(letter: bytes, number: int) -> bytes:
    """A request, or its answer."""
    return _NUMBER.pack(letter, number)


def receive(socket: _socket.socket) -> tuple[bytes, int, list[int]]:
    """One message: its letter, its number and its descriptors; the letter is empty at the end of the socket.

    REFUSED, without descriptors, when this process may not have so many open, or it is no message of ours.
    """
    data, extra, flags, _ = socket.recvmsg(64, _socket.CMSG_SPACE(4 * MOST), _CLOSE_ON_EXEC)
    descriptors = [
        fd
        for level, kind, rights in extra
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for fd in struct.unpack(f"{len(rights) // 4}i", rights[: len(rights) // 4 * 4])
    ]
    if not data:
        return b"", 0, descriptors
    if flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC) or len(data) != _NUMBER.size:
        for fd in descriptors:
            os.close(fd)
        return REFUSED, 0, []
    letter, number = _NUMBER.unpack(data)
    return letter, number, descriptors


def send(socket: _socket.socket, letter: bytes, number: int, descriptors: list[int]) -> None:
    """Send one message."""
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else []
    message = [encode(letter, number)]
    try:
        socket.sendmsg(message, extra, _socket.MSG_NOSIGNAL)
        return
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
    # As `linux.process.sent_at_any_rate`, which is not to be had here.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        socket.sendmsg(message, extra, _socket.MSG_NOSIGNAL)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_connected(descriptor: int) -> bool:
    """Whether the other end of this socket is open."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return not poll.poll(0)


def _serve(socket: _socket.socket, starter: int) -> None:
    held: dict[int, list[int]] = {}
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    poll.register(starter, select.POLLIN)
    while starter not in dict(poll.poll()):
        letter, number, descriptors = receive(socket)
        if not letter:
            return
        if letter == HOLD and number not in held:
            held[number] = descriptors
            send(socket, letter, number, [])
        elif letter == TAKE and number in held:
            send(socket, letter, number, held[number])
        elif letter == DROP and number in held:
            _close(held.pop(number))
            send(socket, letter, number, [])
        elif letter == ASK and number in held and is_connected(held[number][0]):
            send(socket, letter, number, [])
        else:
            _close(descriptors)
            send(socket, REFUSED, number, [])


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def main() -> None:
    """Be that process."""
    starter = os.pidfd_open(int(sys.argv[1]))
    if os.getppid() != int(sys.argv[1]):
        return  # it has ended already, and the number may be another process's
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _serve(_socket.socket(fileno=0), starter)


if __name__ == "__main__":
    main()
