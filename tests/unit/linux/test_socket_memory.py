"""The memory that waits in sockets, as the kernel tells it without a capability."""

from __future__ import annotations

import socket

import pytest

from staddle.linux import netlink
from staddle.linux.netlink import socket_memory


def test_what_is_sent_by_unix_sockets_and_not_read_counts() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        sent = one.send(bytes(100_000))
        assert socket_memory() >= sent


def test_what_is_sent_by_tcp_and_not_read_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, other = socket.create_connection(server.getsockname()), server.accept()[0]
        with one, other:
            one.setblocking(False)
            sent = one.send(bytes(100_000))
            assert socket_memory() >= sent


def test_what_the_kernel_does_not_tell_counts_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(netlink._socket, "socket", refuse)
    assert socket_memory() == 0
