"""Sockets that are made inside and handed out, and what the host asks for. Runs in the sandbox.

A socket belongs for ever to the network namespace in which it was made, whoever holds it. The host
asks over a UNIX socket (SOCK_SEQPACKET); see `forward` for its side:

    hand_over(socket, ready)            send the sockets out; ours are closed
    answer(socket, message)             for every message that `is_forward_request`

As little as possible is imported: some agents carry this along.
"""

from __future__ import annotations

import _socket
import os

from ..._value import Value
from ...ipc import wire
from ...ipc.gateway_messages import MOST_DESCRIPTORS, Sockets, encode_sockets
from ...ipc.wire import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ipc.gateway_messages import Label

FORWARD_REQUEST, FORWARD_REPLY = b"forward 1\n", b"forwarded 1\n"
CONNECT, NEED_SOCKETS, LISTENERS = 1, 2, 3
#: The first message of a process that has entered a command's network to answer there.
ENTERED = b"!"
#: The answer where the sockets that a gateway had cannot be made again.
_NOT_HERE = 95  # EOPNOTSUPP
#: Unconnected sockets to hand out at a time.
STOCK = 16
#: Seconds for a server inside that does not accept.
_INSIDE = 0.5


class PreparedSockets(Value):
    """The sockets that were made, with their labels, and the features of this kernel.

    `redirects` is whether every port is delivered to one listener, `v6` whether there is IPv6, `tells`
    whether the kernel reports what it refuses.
    """

    sockets: tuple[tuple[Label, _socket.socket], ...]
    redirects: bool
    v6: bool
    tells: bool = False


def hand_over(socket: int, ready: PreparedSockets, *, copies: int = -1) -> None:
    """Send the prepared sockets over the UNIX socket `socket`, and close ours.

    The same over `copies`, if given. There they wait to be needed; it goes on if they cannot be sent.
    """
    channel = _socket.socket(fileno=os.dup(socket))
    another = _socket.socket(fileno=os.dup(copies)) if copies >= 0 else None
    try:
        whole = list(ready.sockets)
        first = True
        while whole or first:
            now, whole = whole[:MOST_DESCRIPTORS], whole[MOST_DESCRIPTORS:]
            order = Sockets(tuple(label for label, _ in now), ready.redirects, ready.v6)
            message, descriptors = encode_sockets(order), [each.fileno() for _, each in now]
            send(channel, message, descriptors)
            if another is not None:
                another = _copied(another, message, descriptors)
            first = False
    finally:
        channel.close()
        if another is not None:
            another.close()
        for _, each in ready.sockets:
            each.close()


def _copied(channel: _socket.socket, message: bytes, descriptors: list[int]) -> _socket.socket | None:
    """The same channel, or None if it takes no more: only so many descriptors may be on their way."""
    channel.settimeout(0)
    try:
        send(channel, message, descriptors)
    except OSError:
        channel.close()
        return None
    return channel


def stock(count: int) -> PreparedSockets:
    """Sockets that are not connected yet: from outside, they connect to servers in here.

    Of both families, so that one that is refused at 127.0.0.1 can be connected to ::1.
    """
    return PreparedSockets(
        tuple((("stock", b"", 0), _of_both_families()) for _ in range(count)), False, False
    )


def _of_both_families() -> _socket.socket:
    stream = _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
    try:
        made = _socket.socket(_socket.AF_INET6, stream)
    except OSError:  # a kernel without IPv6
        return _socket.socket(_socket.AF_INET, stream)
    made.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
    return made


def connected(port: int, host: str = "127.0.0.1", timeout: float = 5.0) -> _socket.socket:
    """A connection to a server in here, to be handed out. Raises OSError as connect does."""
    family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
    made = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        made.settimeout(timeout)
        made.connect((host, port))
        made.settimeout(None)
    except BaseException:
        made.close()
        raise
    return made


def is_forward_request(message: bytes) -> bool:
    """Whether a message to the first process inside is one for `answer`."""
    return message.startswith(FORWARD_REQUEST)


def answer(
    socket: int, message: bytes, make_again: Callable[[], PreparedSockets | None] | None = None
) -> None:
    """Do what the host asks for, and send the sockets. Who asks is the host: it is trusted.

    `make_again` makes the sockets that a gateway had which has ended; None where it had none.
    """
    kind, value = wire.decode(FORWARD_REQUEST, message, 2)
    channel = _socket.socket(fileno=os.dup(socket))
    try:
        if kind == NEED_SOCKETS:
            hand_over(socket, stock(min(int(value), MOST_DESCRIPTORS)))
            return
        if kind == LISTENERS:
            channel.send(wire.encode(FORWARD_REPLY, (_handed_again(socket, make_again),)))
            return
        try:
            made = _connected(int(value))
        except OSError as error:
            channel.send(wire.encode(FORWARD_REPLY, (error.errno or 111,)))
            return
        send(channel, wire.encode(FORWARD_REPLY, (0,)), (made.fileno(),))
        made.close()
    finally:
        channel.close()


def _handed_again(socket: int, make_again: Callable[[], PreparedSockets | None] | None) -> int:
    """Hand the sockets over that a gateway had, made again; 0, or the number of the error."""
    if make_again is None:
        return _NOT_HERE
    try:
        made = make_again()
    except OSError as error:
        return error.errno or _NOT_HERE
    if made is not None:
        hand_over(socket, made)
    return 0


def _connected(port: int) -> _socket.socket:
    """To 127.0.0.1, or to ::1 where a server listens only there. Not for long."""
    try:
        return connected(port, timeout=_INSIDE)
    except ConnectionRefusedError:
        return connected(port, "::1", timeout=_INSIDE)


class ForwardSockets:
    """An agent's answers about its network where another process has made that."""

    def hand_over(self, socket: int) -> None:
        """Do nothing: the process that made the sockets has given them to the gateway."""

    def answer(self, socket: int, wish: bytes) -> None:
        """A connection to a server inside, or sockets that can be connected to one."""
        if is_forward_request(wish):
            answer(socket, wish)
