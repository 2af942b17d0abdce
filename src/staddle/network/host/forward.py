"""Connections from the host to the sandbox's loopback, and host ports that lead there.

A socket that reaches the sandbox's loopback has to be created inside. So the host asks the first process
inside over a UNIX socket (SOCK_SEQPACKET), and receives sockets (see `socket_handoff`):

    connect(socket, 8000)             a connection to a server inside
    ExposedPort(8000)                 a port of the host's 127.0.0.1, served by a gateway
    feed(gateway, socket)             when the gateway has asked for sockets
    listen_again(gateway, socket)     for a gateway that replaces a killed one
"""

from __future__ import annotations

import _socket
import os

from ...errors import InvalidCall, LaunchFailed, StaddleError
from ...hostnames import checked_port
from ...ipc import wire
from ...ipc.gateway_messages import LONGEST, MOST_DESCRIPTORS
from ...ipc.wire import receive
from ..namespace.socket_handoff import CONNECT, FORWARD_REPLY, FORWARD_REQUEST, LISTENERS, NEED_SOCKETS, STOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .gateway_process import GatewayProcess

#: Seconds to wait for an answer.
_PATIENCE = 10.0


class ForwardFailed(StaddleError, ConnectionError):
    """No server listens on this port of the sandbox, or the sandbox has exited."""


def connect(socket: int, port: int) -> int:
    """Return the descriptor of a connection to `port` of the sandbox's loopback."""
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


def same_port(port: int, host_port: int) -> int:
    """Return the host port that leads to `port` inside if both share one network: the same port."""
    if host_port not in (0, port):
        raise InvalidCall(
            f"port {port} cannot be had at {host_port}", why="its network is the host's", fix=f"use {port}"
        )
    return checked_port(port)


class ExposedPort:
    """A port of the host's 127.0.0.1 that leads to `port` inside. It stays bound until `close`.

    Every local user of the host can connect to it.
    """

    def __init__(self, port: int, host_port: int = 0) -> None:
        self.port = checked_port(port)
        self._listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            self._listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", host_port and checked_port(host_port)))
            self._listener.listen(128)
            self.host_port: int = self._listener.getsockname()[1]
        except BaseException:
            self._listener.close()
            raise

    def serve(self, gateway: GatewayProcess, socket: int) -> None:
        """Let this gateway accept its connections. `socket` leads to the first process inside."""
        gateway.expose(self._listener.fileno(), self.port)
        _give(gateway, socket, STOCK)

    def close(self) -> None:
        """Close the listener."""
        self._listener.close()


def listen_again(gateway: GatewayProcess, socket: int) -> None:
    """Give a gateway the sockets of its predecessor. Raises ForwardFailed if they cannot be created again."""
    message, descriptors = _ask(socket, LISTENERS, 0)
    failure: LaunchFailed | None = None
    while not message.startswith(FORWARD_REPLY):
        try:
            if failure is None:
                gateway.pass_on(message, descriptors)
        except LaunchFailed as error:
            failure = error  # raised after the last answer, so that the next request does not read it
        finally:
            for fd in descriptors:
                os.close(fd)
        message, descriptors = _answer(socket)
    for fd in descriptors:
        os.close(fd)
    if failure is not None:
        raise failure
    (number,) = wire.decode(FORWARD_REPLY, message, 1)
    if number != 0:
        raise ForwardFailed(
            "its sockets inside could not be made again",
            why=os.strerror(number) if isinstance(number, int) else "it gives no reason",
            fix="call reset() or fork()",
        )


def feed(gateway: GatewayProcess, socket: int) -> None:
    """Give the gateway the sockets that it asked for. Call it after `gateway.attempts()`."""
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
    return _answer(socket, wire.encode(FORWARD_REQUEST, (kind, value)))


def _answer(socket: int, request: bytes = b"") -> tuple[bytes, list[int]]:
    """Send `request` if it is not empty, and return the next answer."""
    channel = _socket.socket(fileno=os.dup(socket))
    try:
        channel.settimeout(_PATIENCE)
        if request:
            channel.send(request)
        message, descriptors = receive(channel, LONGEST, MOST_DESCRIPTORS)
    except OSError as error:
        raise ForwardFailed("the sandbox does not answer", why=error.strerror or str(error)) from None
    finally:
        channel.close()
    if not message:
        raise ForwardFailed("the sandbox does not answer", why="it has exited")
    return message, descriptors
