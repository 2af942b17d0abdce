"""Messages with descriptors: what a socket that its other holder made blocking does, and no room for them."""

from __future__ import annotations

import _socket
import os

import pytest

from staddle.ipc.descriptors import receive, send


def _fill(socket: _socket.socket) -> None:
    for _ in range(100_000):
        send(socket, b"x" * 1000)


def test_a_socket_that_was_made_blocking_by_another_holder_does_not_block() -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    os.set_blocking(ours.fileno(), True)
    with pytest.raises(BlockingIOError):
        receive(ours, 100)
    with pytest.raises(BlockingIOError):
        _fill(ours)
    ours.settimeout(0.01)
    os.set_blocking(ours.fileno(), True)
    with pytest.raises(TimeoutError):
        receive(ours, 100)
    ours.close()
    theirs.close()
