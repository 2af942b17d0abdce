"""`on_connect` is called a few at a time, for what may be asked about, and only True is a yes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from staddle import Event, Network
from staddle.ipc.gateway_messages import ConnectQuestion
from staddle.network.host.approval_calls import ApprovalCalls
from tests.support.waiting import until

NETWORK = Network.allow("api.example.com:443", "!bad.example.com")


class Heard:
    """What was answered, and what was noted."""

    def __init__(self, on_connect: Callable[[Event], object], seconds: int = 30) -> None:
        self.answers: dict[str, bool] = {}
        self.notes: list[Event] = []
        self.deciding = ApprovalCalls(on_connect, NETWORK, seconds)

    def ask(self, host: str, port: int = 443) -> None:
        self.deciding.ask(ConnectQuestion(1, host, port), self._answer, self.notes.append)

    def answer(self, host: str, port: int = 443) -> bool:
        self.ask(host, port)
        assert until(lambda: host in self.answers)
        return self.answers[host]

    def _answer(self, question: ConnectQuestion, allowed: bool | None) -> None:
        self.answers[question.host] = allowed


@pytest.mark.parametrize(
    ("said", "allowed"),
    [(True, True), (False, False), (None, None), (1, False), ("yes", False), ([], False)],
)
def test_only_true_is_a_yes(said: object, allowed: bool | None) -> None:
    assert Heard(lambda _: said).answer("a.example.com") is allowed


def test_the_question_says_what_why_and_what_would_allow_it() -> None:
    asked: list[Event] = []
    heard = Heard(asked.append)
    kinds = {
        "[2606:2800:220:1::1]": "a public address",
        "8.8.8.8": "a public address",
        "10.0.0.1": "a private address",
        "127.0.0.1": "a loopback address",
        "[::1]": "a loopback address",
        "169.254.1.1": "a link-local address",
        "169.254.169.254": "the metadata service of cloud machines",
    }
    for host in ("a.example.com", *kinds):
        heard.answer(host)
    assert asked == [
        Event("question", "a.example.com:443", "no entry allows it", "a.example.com:443"),
        *(
            Event("question", f"{host}:443", f"no entry allows it; it is {kind}", f"{host}:443")
            for host, kind in kinds.items()
        ),
    ]


@pytest.mark.parametrize("host", ["bad.example.com", "not a name", "a..b", "x" * 300])
def test_what_an_entry_refuses_or_nobody_can_mean_is_not_asked_about(host: str) -> None:
    asked: list[Event] = []
    assert not Heard(lambda event: asked.append(event) or True).answer(host)
    assert asked == []


def test_whatever_it_raises_is_a_no_and_is_noted() -> None:
    for error in (ValueError("x" * 1000), SystemExit(1), KeyboardInterrupt()):

        def fails(_: Event, error: BaseException = error) -> bool:
            raise error

        heard = Heard(fails)
        assert heard.answer("a.example.com") is False
        (note,) = heard.notes
        assert (note.kind, note.what) == ("note", "a.example.com:443")
        assert type(error).__name__ in note.rule
        assert len(note.rule) < 400


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_nobody_awaits_is_a_no() -> None:
    async def later(_: Event) -> bool:
        return True

    heard = Heard(later)
    assert heard.answer("a.example.com") is False
    assert "awaited" in heard.notes[0].rule


def test_a_few_at_a_time_and_the_others_wait_their_turn() -> None:
    go_on, now, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    def thinks(_: Event) -> bool:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        go_on.wait(30)
        with lock:
            now[0] -= 1
        return True

    heard = Heard(thinks)
    for number in range(20):
        heard.ask(f"host{number}.example.com")
    assert until(lambda: now[0] == 8)
    go_on.set()
    assert until(lambda: len(heard.answers) == 20)
    assert most[0] == 8
    assert all(heard.answers.values())


def test_who_has_waited_too_long_is_not_asked_about() -> None:
    asked: list[Event] = []
    heard = Heard(lambda event: asked.append(event) or True, seconds=0)
    heard.ask("a.example.com")
    heard.deciding.close()
    heard.ask("b.example.com")
    assert until(lambda: heard.deciding._running == 0)
    assert (asked, heard.answers) == ([], {})
