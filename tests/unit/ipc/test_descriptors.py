"""Messages with descriptors: what a socket that its other holder made blocking does, and no room for them."""

from __future__ import annotations

import _socket
import os
import signal

import pytest

from staddle.ipc.wire import receive, receive_last, send
from tests.support.in_a_child import python


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


def test_descriptors_that_find_no_room_are_told_as_that() -> None:
    said = python(
        """
import _socket, resource
from staddle.ipc.wire import receive, receive_last, send

ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
send(theirs, b"message", (0, 1, 2, 0, 1, 2))
open_files = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 1, open_files + 1))
try:
    receive(ours, 100)
except OSError as error:
    print(errno.errorcode[error.errno], len(os.listdir("/proc/self/fd")) == open_files)
"""
    )
    assert said == "EMFILE True"


def test_more_descriptors_than_may_come_are_refused() -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    send(theirs, b"message", (0, 1, 2))
    with pytest.raises(OSError, match="longer than it may be"):
        receive(ours, 100, 2)
    ours.close()
    theirs.close()


def test_what_it_said_before_it_ended_comes_after_the_error() -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    send(theirs, b"the last words")
    send(ours, b"never heard")
    theirs.close()
    message, _, unheard = receive_last(ours, 100)
    assert message == b"the last words"
    assert isinstance(unheard, ConnectionResetError)
    assert receive_last(ours, 100)[0] == b""
    ours.close()


def test_an_error_of_a_signals_handler_is_not_that_of_the_socket() -> None:
    def ring(number: int, frame: object) -> None:
        raise ConnectionResetError

    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ConnectionResetError):
            receive_last(ours, 100)  # it would wait for ten seconds
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ours.close()
    theirs.close()
