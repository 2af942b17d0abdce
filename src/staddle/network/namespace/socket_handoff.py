"""Hand sockets from the sandbox to the host, and answer the host's requests. Runs in the sandbox.

A socket stays in the network namespace in which it was created, whichever process has it. The host sends
requests over a UNIX socket (SOCK_SEQPACKET); `forward` is its side:

    hand_over(socket, ready)            send the sockets to the host, and close ours
    answer(socket, message)             for every message that `is_forward_request`

It imports as little as possible, because some agents include this module.
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
#: First message of a process that has entered a command's network namespace to answer there.
ENTERED = b"!"
#: The answer if the sockets of a gateway cannot be created again.
_NOT_HERE = 95  # EOPNOTSUPP
#: Unconnected sockets handed out at a time.
STOCK = 16
#: Seconds to connect to a server inside.
_INSIDE = 0.5


class PreparedSockets(Value):
    """The created sockets with their labels, and the features of this kernel.

    `redirects`: every port leads to one listener. `v6`: there is IPv6. `tells`: the kernel reports refusals.
    """

    sockets: tuple[tuple[Label, _socket.socket], ...]
    redirects: bool
    v6: bool
    tells: bool = False


def hand_over(socket: int, ready: PreparedSockets, *, copies: int = -1) -> None:
    """Send the prepared sockets over the UNIX socket `socket`, and close ours.

    If `copies` is given, also send them there, where they stay queued. A failure of that is ignored.
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
    """Send copies. Returns the channel, or None if it is full: the kernel limits descriptors in flight."""
    channel.settimeout(0)
    try:
        send(channel, message, descriptors)
    except OSError:
        channel.close()
        return None
    return channel


def stock(count: int) -> PreparedSockets:
    """Create unconnected sockets, with which the host connects to servers inside.

    They are dual-stack, so that a socket that is refused at 127.0.0.1 can be connected to ::1.
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
    """Connect to a server inside, for the host. Raises OSError as connect does."""
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
    """Whether a message to the first process inside is a request for `answer`."""
    return message.startswith(FORWARD_REQUEST)


def answer(
    socket: int, message: bytes, make_again: Callable[[], PreparedSockets | None] | None = None
) -> None:
    """Process a request and send the sockets. The host, which sends the requests, is trusted.

    `make_again` creates the sockets of an exited gateway again, or returns None if it had none.
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
    """Create the sockets of a gateway again and hand them over. Returns 0 or an errno."""
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
    """Connect to 127.0.0.1, or to ::1 if a server listens only there, with a short timeout."""
    try:
        return connected(port, timeout=_INSIDE)
    except ConnectionRefusedError:
        return connected(port, "::1", timeout=_INSIDE)


class ForwardSockets:
    """Network requests to an agent whose network another process has created."""

    def hand_over(self, socket: int) -> None:
        """Do nothing: the process that created the sockets has given them to the gateway."""

    def answer(self, socket: int, wish: bytes) -> None:
        """Return a connection to a server inside, or unconnected sockets."""
        if is_forward_request(wish):
            answer(socket, wish)
