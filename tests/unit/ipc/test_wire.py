"""Records between our processes: exact, or refused."""

from __future__ import annotations

import _socket
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.ipc.wire import (
    CONFINEMENT,
    EXEC,
    Malformed,
    NotStarted,
    check,
    decode,
    encode,
    not_started,
    receive,
    receive_last,
    send,
    sentence,
    written,
)
from tests.support.in_a_child import python

VALUE = st.binary(max_size=20) | st.integers(-(2**63), 2**63 - 1)
FIELD = VALUE | st.lists(VALUE | st.tuples(VALUE, VALUE), max_size=3).map(tuple)


@given(st.lists(FIELD, max_size=5).map(tuple))
def test_fields_arrive_as_they_were_sent(fields: tuple[object, ...]) -> None:
    assert decode(b"it\n", encode(b"it\n", fields), len(fields)) == fields


def test_another_record_is_refused() -> None:
    data = encode(b"it\n", (1, b"x"))
    for magic, count in ((b"that\n", 2), (b"it\n", 3)):
        with pytest.raises(Malformed):
            decode(magic, data, count)


@pytest.mark.parametrize(
    ("value", "shape", "fits"),
    [
        (b"", bytes, True),
        (True, int, True),
        ("", bytes, False),
        ((1, 2), [int], True),
        ([1], [int], False),
        ((b"a", 1), (bytes, int), True),
        ((b"a",), (bytes, int), False),
        (((b"a", 1),), [(bytes, int)], True),
    ],
)
def test_a_field_has_its_shape_or_is_refused(value: object, shape: object, fits: bool) -> None:
    class Record:
        field = value

    if fits:
        check(Record, {"field": shape})
    else:
        with pytest.raises(Malformed, match="field"):
            check(Record, {"field": shape})


# Messages with descriptors.


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


# What the helper says about a command that did not start.


def test_silence_means_that_the_command_was_started() -> None:
    assert sentence(b"") is None


@pytest.mark.parametrize(
    "why", ["no such file", "'/a b' cannot be granted: Permission denied", "ü \N{SNOWMAN}"]
)
def test_a_sentence_arrives_as_it_was_said(why: str) -> None:
    assert sentence(written(CONFINEMENT, why)) == why


def test_names_that_are_not_text_do_not_stop_the_sentence() -> None:
    assert sentence(written(CONFINEMENT, "\udcff does not exist")) == "\\udcff does not exist"


def test_it_fits_into_one_write() -> None:
    assert len(written(CONFINEMENT, "x" * 100_000)) <= 4096


@pytest.mark.parametrize("noise", [b"x", b"3", b"3 ", b"\xff\xfe", b"no number here"])
def test_anything_else_is_a_failure_too(noise: bytes) -> None:
    assert sentence(noise)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NotStarted(EXEC, "as it is"), "as it is"),
        (OSError(1, "mount: Operation not permitted"), "mount: Operation not permitted"),
        (PermissionError(13, "Permission denied", "/a"), "Permission denied: '/a'"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_every_error_is_a_reason(error: BaseException, why: str) -> None:
    assert str(not_started(error)) == why
    assert not_started(error).code == (EXEC if isinstance(error, NotStarted) else CONFINEMENT)
