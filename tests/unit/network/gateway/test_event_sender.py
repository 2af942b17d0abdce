"""What the gateway tells is bounded, counted and never waited for."""

from __future__ import annotations

import _socket
from collections.abc import Iterator

import pytest

from staddle.ipc.gateway_messages import Attempt, decode_attempt, decode_flush
from staddle.network.gateway.host_channel import EventSender
from staddle.network.gateway.loop import Loop


class Host:
    """The other end of the line."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.loop.now = 100.0
        self._line, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        self.theirs = theirs
        self.events = EventSender(self.loop, theirs)

    def told(self) -> list[Attempt]:
        found = []
        while True:
            try:
                found.append(decode_attempt(self._line.recv(65536, _socket.MSG_DONTWAIT)))
            except BlockingIOError:
                return found

    def later(self, seconds: float = 1.0) -> None:
        self.loop.now += seconds
        self.events._sweep(self.loop.now)

    def close(self) -> None:
        self._line.close()
        self.theirs.close()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


def refused(name: str) -> Attempt:
    return Attempt("refused", "tcp", name, 443, "no entry allows it", f"{name}:443")


def test_an_attempt_is_told_at_once(host: Host) -> None:
    host.events.tell(refused("a.com"))
    assert host.told() == [refused("a.com")]


def test_repetitions_in_one_second_are_one_message_with_a_count(host: Host) -> None:
    for _ in range(500):
        host.events.tell(refused("a.com"))
    assert len(host.told()) == 1
    host.later()
    assert [(a.host, a.count) for a in host.told()] == [("a.com", 499)]
    host.events.tell(refused("a.com"))
    assert len(host.told()) == 1


def test_noise_is_counted_and_the_count_is_told(host: Host) -> None:
    for n in range(5000):
        host.events.tell(refused(f"x{n}.com"))
    first = host.told()
    assert 0 < len(first) <= 200
    host.later()
    rest = host.told()
    notes = [a for a in rest if a.outcome == "note"]
    assert len(notes) == 1
    assert len([a for a in first + rest if a.outcome == "refused"]) + notes[0].count == 5000


def test_a_turn_tells_what_was_repeated_and_begins_anew(host: Host) -> None:
    for _ in range(3):
        host.events.tell(refused("a.com"))
    host.events.send_flush(7)
    first, again, turn = (host._line.recv(65536) for _ in range(3))
    assert (decode_attempt(first).count, decode_attempt(again).count, decode_flush(turn)) == (1, 2, 7)
    assert decode_attempt(again).allow == decode_attempt(first).allow
    host.events.tell(refused("a.com"))
    assert [a.count for a in host.told()] == [1]  # who asks next has its own


@pytest.mark.slow
def test_a_host_that_does_not_read_is_not_waited_for(host: Host) -> None:
    for n in range(100_000):
        if n % 150 == 0:
            host.later()
        host.events.tell(refused(f"x{n}.com"))
    assert len(host.events._waiting) <= 256
    told = 0
    for _ in range(50):
        told += len(host.told())
        host.later()
    assert 256 <= told < 5000
    host.events.tell(refused("still.com"))
    assert any(a.host == "still.com" for a in host.told())


def test_a_line_that_is_gone_is_nobodys_problem(host: Host) -> None:
    host._line.close()
    for n in range(1000):
        host.events.tell(refused(f"x{n}.com"))
    host.later()
