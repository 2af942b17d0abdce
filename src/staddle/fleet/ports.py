"""Connections from the driver to servers in a fleet's sandboxes, and local ports that forward to them."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable

from staddle.errors import FleetError, InvalidCall, SandboxLost, StaddleError

from .channel import Acceptor, ChannelBroken, CommandChannel, relay
from .messages import TUNNEL

#: Most connections to one port at a time.
_MOST = 64


def tunnel(channel: CommandChannel | None, name: str, port: int) -> socket.socket:
    """A connection to `port` inside a sandbox, relayed by its keeper."""
    request = pickle.dumps((TUNNEL, (name, port)), 5)
    try:
        opened = None if channel is None else channel.tunnel(request)
    except ChannelBroken as error:
        raise SandboxLost(
            f"sandbox {name} gave no connection", why=str(error), fix="check sb.alive(), and try again"
        ) from None
    if opened is None:
        raise FleetError(
            f"port {port} of sandbox {name} cannot be reached",
            why="its keeper cannot be reached but through Ray, which carries no connections",
            fix="open the ports between these machines; with RAY_USE_TLS keepers do not listen",
        )
    connection, reply = opened
    kind, value = pickle.loads(reply)  # noqa: S301 - our keeper's, as what Ray brings from it
    if kind == "error":
        connection.close()
        raise value
    return connection


class DriverPort(Acceptor):
    """A port of 127.0.0.1 that relays each connection to a socket from `connect`. Close it after use."""

    def __init__(self, port: int, connect: Callable[[], socket.socket]) -> None:
        try:
            listening = socket.create_server(("127.0.0.1", port), backlog=_MOST)
        except (OSError, OverflowError, TypeError) as error:
            raise InvalidCall(
                f"port {port!r} of this machine cannot be had", why=str(error), fix="name another, or none"
            ) from None

        def serve(peer: socket.socket) -> None:
            try:
                with connect() as inside:
                    relay(peer, inside)
            except (OSError, StaddleError):
                pass  # nothing listens inside: end the peer's connection

        super().__init__(listening, serve, _MOST)
