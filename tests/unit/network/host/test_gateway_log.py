"""What a gateway tells about one command: each refusal once, bounded, whatever comes over the line."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from staddle.ipc.gateway_messages import (
    Attempt,
    ConnectQuestion,
    encode_attempt,
    encode_need_sockets,
    encode_question,
)
from staddle.network.host.gateway_log import MOST, GatewayLog


class Line:
    """The gateway's end, and what is heard at the other."""

    def __init__(self) -> None:
        ours, self.gateway = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.told = GatewayLog(socket.socket(fileno=ours.detach()))

    def tell(self, outcome: str, host: str, port: int = 443, why: str = "no entry allows it") -> None:
        self.gateway.send(encode_attempt(Attempt(outcome, "tcp", host, port, why, host)))  # type: ignore[arg-type]


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.gateway.close()
    made.told.close()


def test_each_destination_is_told_once(line: Line) -> None:
    for host in ("a.com", "b.com", "a.com"):
        line.tell("refused", host)
    line.tell("refused", "a.com", 80)
    assert line.told.read()
    assert [event.what for event in line.told.events()] == ["a.com:443", "b.com:443", "a.com:80"]
    assert {(event.kind, event.rule) for event in line.told.events()} == {("refused", "no entry allows it")}


def test_what_was_allowed_or_failed_by_itself_is_not_told(line: Line) -> None:
    line.tell("allowed", "a.com")
    line.tell("failed", "b.com", why="connection refused")
    assert line.told.read()
    assert line.told.events() == ()


def test_what_the_gateway_says_of_itself_is_told(line: Line) -> None:
    line.gateway.send(encode_attempt(Attempt("note", "", "", 0, "the gateway exited, which is a bug")))
    assert line.told.read()
    (event,) = line.told.events()
    assert (event.kind, event.what, event.rule) == (
        "note",
        "the network",
        "the gateway exited, which is a bug",
    )


def test_more_than_anybody_reads_are_counted(line: Line) -> None:
    for number in range(MOST + 5):
        line.tell("refused", "a.com", number + 1)
        assert line.told.read()
    *shown, rest = line.told.events()
    assert len(shown) == MOST
    assert rest.rule == "5 more refusals are not shown"


@pytest.mark.parametrize(
    "message", [b"\0", b"attempt 1\n", b"attempt 1\nl\xff\xff\xff\xff", encode_need_sockets(3), b"x" * 5000]
)
def test_nonsense_is_passed_over(line: Line, message: bytes) -> None:
    line.gateway.send(message)
    line.tell("refused", "a.com")
    assert line.told.read()
    assert [event.what for event in line.told.events()] == ["a.com:443"]


def test_the_rest_is_heard_when_it_is_finished(line: Line) -> None:
    line.tell("refused", "a.com")
    line.gateway.close()
    line.told.finish()
    line.told.finish()
    assert [event.what for event in line.told.events()] == ["a.com:443"]
    assert line.told.fileno() == -1


def test_reading_ends_with_the_gateway(line: Line) -> None:
    assert line.told.read()
    line.gateway.close()
    assert not line.told.read()


def test_a_question_that_nobody_is_there_for_has_no_answer(line: Line) -> None:
    line.gateway.send(encode_question(ConnectQuestion(1, "a.com", 443)))
    assert line.told.read()
    line.gateway.settimeout(0.05)
    with pytest.raises(TimeoutError):
        line.gateway.recv(4096)
