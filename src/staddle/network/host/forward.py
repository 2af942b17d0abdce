"""From the host into the sandbox's loopback: a connection, or a port of ours that leads to one of its.

A socket that reaches the sandbox's loopback has to be made inside. So the host asks the first
process in there over a UNIX socket (SOCK_SEQPACKET), and gets sockets back (see `handing`):

    connect(socket, 8000)             a connection to a server inside
    exposed(gateway, socket, 8000)    127.0.0.1 of the host, at a port of its own
    feed(gateway, socket)             whenever the gateway has asked for sockets
"""

from __future__ import annotations

import _socket
import os

from ...errors import StaddleError
from ...ipc import wire
from ...ipc.descriptors import receive
from ...ipc.gateway_messages import LONGEST, MOST_DESCRIPTORS
from ...policy.hosts import checked_port
from ..namespace.socket_handoff import CONNECT, FORWARD_REQUEST, NEED_SOCKETS, STOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .gateway_process import GatewayProcess

#: Seconds for an answer.
_PATIENCE = 10.0


class ForwardFailed(StaddleError, ConnectionError):
    """There is no such server in the sandbox, or the sandbox is gone."""


def connect(socket: int, port: int) -> int:
    """The descriptor of a connection to `port` of the sandbox's loopback."""
    _, descriptors = _ask(socket, CONNECT, checked_port(port))
    if len(descriptors) != 1:
        for fd in descriptors:
            os.close(fd)
        raise ForwardFailed(
            f"port {port} of the sandbox cannot be reached",
            why="nothing listens there",
            fix="start a server inside first",
        )
    return descriptors[0]


def exposed(gateway: GatewayProcess, socket: int, port: int, host_port: int = 0) -> int:
    """Have a port of the host's 127.0.0.1 lead to `port` inside; returns which. Ends with the gateway."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", host_port and checked_port(host_port)))
        listener.listen(128)
        gateway.expose(listener.fileno(), checked_port(port))
        found: int = listener.getsockname()[1]
    finally:
        listener.close()
    _give(gateway, socket, STOCK)
    return found


def feed(gateway: GatewayProcess, socket: int) -> None:
    """Give the gateway the sockets that it asked for; to be called after `gateway.attempts()`."""
    wanted = gateway.wanted()
    while wanted > 0:
        now = min(wanted, MOST_DESCRIPTORS)
        _give(gateway, socket, now)
        wanted -= now


def _give(gateway: GatewayProcess, socket: int, count: int) -> None:
    message, descriptors = _ask(socket, NEED_SOCKETS, count)
    try:
        gateway.pass_on(message, descriptors)
    finally:
        for fd in descriptors:
            os.close(fd)


def _ask(socket: int, kind: int, value: int) -> tuple[bytes, list[int]]:
    channel = _socket.socket(fileno=os.dup(socket))
    try:
        channel.settimeout(_PATIENCE)
        channel.send(wire.encode(FORWARD_REQUEST, (kind, value)))
        message, descriptors = receive(channel, LONGEST, MOST_DESCRIPTORS)
    except OSError as error:
        raise ForwardFailed("the sandbox does not answer", why=error.strerror or str(error)) from None
    finally:
        channel.close()
    if not message:
        raise ForwardFailed("the sandbox does not answer", why="it has ended")
    return message, descriptors
