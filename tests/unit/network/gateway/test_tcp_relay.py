"""A flow moves every byte once, in order, keeps little, and passes ends and resets on."""

from __future__ import annotations

import _socket
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.network.gateway import tcp_relay
from staddle.network.gateway.tcp_relay import AGAIN, ENDED, WAIT, Budget, Flow


class Line:
    """A writer, the flow, and a reader, over TCP on loopback."""

    def __init__(self, budget: Budget) -> None:
        self.writer, source = pair()
        sink, self.reader = pair()
        self.ends = (source, sink)
        self.flow = Flow(source, sink, budget)

    def close(self) -> None:
        self.flow.close()
        for each in (self.writer, self.reader, *self.ends):
            each.close()


def pair() -> tuple[_socket.socket, _socket.socket]:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    first = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    first.connect(listener.getsockname())
    second = _socket.socket(fileno=listener._accept()[0])  # type: ignore[attr-defined]
    listener.close()
    for each in (first, second):
        each.setblocking(False)
    return first, second


@pytest.fixture
def budget() -> Iterator[Budget]:
    made = Budget()
    yield made
    made.close()


@pytest.fixture
def line(budget: Budget) -> Iterator[Line]:
    made = Line(budget)
    yield made
    made.close()


def take(reader: _socket.socket) -> bytes:
    parts = b""
    while True:
        try:
            data = reader.recv(1 << 20)
        except BlockingIOError:
            return parts
        if not data:
            return parts
        parts += data


def through(line: Line, data: bytes) -> bytes:
    """Everything that arrives of `data`, however often each side has to wait."""
    sent, got = 0, b""
    for _ in range(200_000):
        if sent < len(data):
            try:
                sent += line.writer.send(data[sent:])
            except BlockingIOError:
                pass
            if sent == len(data):
                line.writer.shutdown(_socket.SHUT_WR)
        state = line.flow.move(to_the_end=True)
        got += take(line.reader)
        if state == ENDED:
            return got + take(line.reader)
    raise AssertionError("it did not come to an end")


def test_every_byte_arrives_in_order_and_then_the_end(line: Line, budget: Budget) -> None:
    data = os.urandom(1 << 16) * 64  # enough for the pipe
    assert through(line, data) == data
    assert budget.moved == len(data)
    assert budget.kept == 0


def test_a_reader_that_does_not_read_stops_the_flow_with_little_kept(line: Line, budget: Budget) -> None:
    chunk = bytes(1 << 16)
    for _ in range(2000):
        try:
            line.writer.send(chunk)
        except BlockingIOError:
            if line.flow.move(to_the_end=False) == WAIT and budget.kept:
                break
        line.flow.move(to_the_end=False)
    assert 0 < budget.kept <= tcp_relay.PIPE_SIZE
    kept = budget.kept
    for _ in range(10):
        assert line.flow.move(to_the_end=True) == WAIT
    assert budget.kept == kept


def test_bytes_that_wait_in_a_pipe_arrive_in_order(line: Line, budget: Budget) -> None:
    data = os.urandom(1 << 16) * 256
    sent, got, waited = 0, b"", 0
    for turn in range(20_000):
        try:
            sent += line.writer.send(data[sent : sent + (1 << 20)])
        except BlockingIOError:
            pass
        line.flow.move(to_the_end=False)
        waited = max(waited, budget.kept)
        if turn % 7 == 0 and line.flow.is_blocked():
            got += take(line.reader)
        if sent == len(data) and not line.flow.is_blocked():
            got += take(line.reader)
            if len(got) == len(data):
                break
    assert got == data
    assert 0 < waited <= tcp_relay.MOST_KEPT
    assert budget.kept == 0


def test_a_pipe_is_borrowed_only_while_bytes_are_in_it(line: Line, budget: Budget) -> None:
    others = [budget.pipes.take() for _ in range(tcp_relay.MOST_PIPES - 1)]
    for turn in range(400):
        try:
            line.writer.send(bytes(1 << 20))
        except BlockingIOError:
            pass
        line.flow.move(to_the_end=False)
        left = budget.pipes.take()
        assert (left is None) <= line.flow.is_blocked()
        if left is not None:
            assert left.left == 0
            budget.pipes.give_back(left)
        if turn % 3 == 0:
            take(line.reader)
    for other in filter(None, others):
        budget.pipes.give_back(other)


def test_without_a_pipe_bytes_are_copied(line: Line, budget: Budget) -> None:
    others = [budget.pipes.take() for _ in range(tcp_relay.MOST_PIPES)]
    data = os.urandom(1 << 16) * 64
    assert through(line, data) == data
    for other in filter(None, others):
        budget.pipes.give_back(other)


def test_where_pipes_are_tiny_bytes_are_copied(
    line: Line, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_relay, "PIPE_SIZE", (1 << 31) + 1)  # more than the kernel can count
    monkeypatch.setattr(tcp_relay, "LEAST_PIPE_SIZE", 1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    assert budget.pipes.take() is None
    data = os.urandom(1 << 16) * 64
    assert through(line, data) == data
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_pipe_with_bytes_for_a_reader_that_is_gone_is_nobodys_again(line: Line, budget: Budget) -> None:
    line.reader.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone = False
    for turn in range(400):
        try:
            line.writer.send(bytes(1 << 20))
        except BlockingIOError:
            pass
        try:
            line.flow.move(to_the_end=False)
        except OSError:
            gone = True
        if turn == 20:
            line.reader.close()
        elif turn < 20:
            take(line.reader)
    assert gone
    line.flow.close()
    assert budget.kept == 0
    free = [budget.pipes.take() for _ in range(tcp_relay.MOST_PIPES)]
    assert [pipe.left for pipe in free if pipe] == [0] * tcp_relay.MOST_PIPES
    for pipe in filter(None, free):
        budget.pipes.give_back(pipe)


def test_a_flow_takes_turns(line: Line) -> None:
    states = set()
    for _ in range(300):
        try:
            line.writer.send(bytes(1 << 20))
        except BlockingIOError:
            pass
        states.add(line.flow.move(to_the_end=True))
        take(line.reader)
    assert states <= {WAIT, AGAIN}


def test_what_was_held_back_goes_first(line: Line) -> None:
    line.flow.put(b"first ")
    line.writer.send(b"second")
    line.flow.move(to_the_end=True)
    assert take(line.reader) == b"first second"


def test_a_reset_is_raised(line: Line) -> None:
    tcp_relay.reset(line.writer)
    with pytest.raises(ConnectionResetError):
        line.flow.move(to_the_end=True)


def test_when_much_is_kept_nobody_keeps_more_than_a_page(line: Line, budget: Budget) -> None:
    budget.kept += tcp_relay.MOST_KEPT
    before = budget.kept
    for _ in range(3000):
        try:
            line.writer.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        line.flow.move(to_the_end=False)
        if budget.kept > before:
            break
    assert before < budget.kept <= before + tcp_relay.PAGE


def test_a_budget_of_bytes_ends_the_flow(line: Line, budget: Budget) -> None:
    budget.most_bytes = 5
    line.writer.send(b"123456")
    line.flow.move(to_the_end=False)
    with pytest.raises(OverflowError):
        line.flow.move(to_the_end=False)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=5000), max_size=20), st.integers(1, 70_000))
def test_no_split_changes_the_bytes(parts: list[bytes], tail: int) -> None:
    budget = Budget()
    line = Line(budget)
    try:
        assert through(line, b"".join(parts) + bytes(tail)) == b"".join(parts) + bytes(tail)
    finally:
        line.close()
        budget.close()
