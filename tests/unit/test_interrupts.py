"""Work that is done to its end, whatever a signal's handler raises meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from staddle.interrupts import uninterrupted, with_all


class Rung(Exception):
    """What the handler of an alarm raises."""


@pytest.fixture(autouse=True)
def _bell() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Rung

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def slowly(done: list[str], steps: int = 20) -> str:
    for _ in range(steps):
        time.sleep(0.005)
    done.append("done")
    return "result"


def test_it_returns_what_the_work_returns() -> None:
    done: list[str] = []
    assert uninterrupted(lambda: slowly(done, 0)) == "result"
    assert done == ["done"]


def test_what_the_work_raises_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


def test_what_a_handler_raises_comes_out_when_the_work_is_done() -> None:
    done: list[str] = []
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.01)  # again and again
    with pytest.raises(Rung):
        uninterrupted(lambda: slowly(done))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert done == ["done"]


def test_at_any_moment_it_is_done_once_or_not_begun() -> None:
    for number in range(200):
        done: list[str] = []
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (number + 1))
            uninterrupted(lambda: slowly(done, 0))  # noqa: B023 - it is over before the next round
            time.sleep(0.001)
        except Rung:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(done) <= 1


def test_another_thread_does_it_itself() -> None:
    who: list[int] = []
    thread = threading.Thread(target=lambda: uninterrupted(lambda: who.append(threading.get_ident())))
    thread.start()
    thread.join()
    assert who == [thread.ident]


def test_every_handler_is_called_once_and_is_there_again() -> None:
    heard: list[str] = []

    def usual(number: int, frame: object) -> None:
        heard.append("usual")

    before = signal.signal(signal.SIGUSR1, usual)
    rings = signal.getsignal(signal.SIGALRM)
    try:

        def work() -> None:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGALRM)
            assert heard == []

        with pytest.raises(Rung):
            uninterrupted(work)
        assert heard == ["usual"]
        assert signal.getsignal(signal.SIGUSR1) is usual
        assert signal.getsignal(signal.SIGALRM) is rings
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_locks_are_held_and_let_go_of() -> None:
    locks = [threading.Lock(), threading.Lock()]
    assert with_all(locks, lambda: [lock.locked() for lock in locks]) == [True, True]
    with pytest.raises(ZeroDivisionError):
        with_all(locks, lambda: 1 // 0)
    assert not any(lock.locked() for lock in locks)
