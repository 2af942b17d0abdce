"""A gateway that is not there yet is waited for only when somebody has tried something."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from staddle.network.host.gateway_process import UnreadSockets


@pytest.fixture
def unheard() -> Iterator[UnreadSockets]:
    made = UnreadSockets()
    yield made
    made.close()


def test_it_is_quiet_until_something_waits(unheard: UnreadSockets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names, socket.socket() as stock:
        listener = socket.create_server(("127.0.0.1", 0))
        names.bind(("127.0.0.1", 0))
        unheard.add([names.fileno(), listener.fileno(), stock.fileno()])
        assert unheard.is_quiet()
        with socket.create_connection(listener.getsockname()):
            assert not unheard.is_quiet()
            accepted, _ = listener.accept()
            accepted.close()
            assert unheard.is_quiet()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.sendto(b"?", names.getsockname())
            assert not unheard.is_quiet()
        listener.close()


def test_once_it_was_heard_nothing_is_held(unheard: UnreadSockets) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with socket.socket() as one:
        unheard.add([one.fileno()])
        assert unheard.close()
        assert not unheard.close()
        assert not unheard.is_quiet()
        unheard.add([one.fileno()])
    assert {*os.listdir("/proc/self/fd")} <= {*before}
