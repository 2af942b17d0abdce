"""Work that is done to its end, whatever a signal's handler raises meanwhile."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from staddle.interrupts import (
    original,
    uninterrupted,
    unmistakable,
    unmistaken,
    unmistaken_method,
    with_all,
)
from tests.support.in_a_child import python


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


# ---------------------------------------------------------------- errors of the caller's handlers


class Late(TimeoutError):
    """An OSError of the caller's."""


@pytest.fixture
def late() -> Iterator[object]:
    def ring(number: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, ring)
    yield ring
    signal.signal(signal.SIGALRM, before)


def swallowed() -> str:
    """What much of our code does: an OSError is taken for one of a call."""
    try:
        signal.raise_signal(signal.SIGALRM)
    except OSError:
        return "taken for ours"
    return "nothing came"


def test_an_error_of_a_handler_is_not_taken_for_one_of_ours(late: object) -> None:
    assert swallowed() == "taken for ours"
    with pytest.raises(Late):
        unmistaken(swallowed)
    assert signal.getsignal(signal.SIGALRM) is late


def test_not_within_another_such_call_either(late: object) -> None:
    def outer() -> str:
        try:
            return unmistaken(swallowed)
        except OSError:
            return "taken for ours"

    with pytest.raises(Late):
        unmistaken(outer)
    assert signal.getsignal(signal.SIGALRM) is late


def test_nor_where_signals_are_deferred(late: object) -> None:
    def outer() -> str:
        try:
            return uninterrupted(swallowed)
        except OSError:
            return "taken for ours"

    with pytest.raises(Late):
        unmistaken(outer)


def test_on_its_way_it_can_be_told_which_it_is(late: object) -> None:
    seen: list[BaseException] = []

    def outer() -> None:
        try:
            swallowed()
        except BaseException as error:
            seen.append(original(error))
            raise

    with pytest.raises(Late) as found:
        unmistaken(outer)
    assert seen == [found.value]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("guard", [unmistaken, uninterrupted])
def test_an_error_keeps_nothing_alive_when_it_is_over(guard: object) -> None:
    class Stream:
        """What the caller has when the error comes."""

    gone: list[weakref.ref[Stream]] = []

    def read() -> None:
        stream = Stream()
        gone.append(weakref.ref(stream))
        swallowed()

    gc.disable()
    try:
        try:
            guard(lambda: guard(read))  # type: ignore[operator]
        except Late:
            pass
        assert gone[0]() is None
    finally:
        gc.enable()


def test_a_handler_that_was_changed_meanwhile_stays(late: object) -> None:
    unmistaken(lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN))
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN


def test_every_public_method_of_a_class() -> None:
    @unmistakable(but=("other",), also=("used",))
    class Thing:
        @property
        def used(self) -> str:
            """What was used."""
            return swallowed()

        def run(self, value: int, *, more: int = 0) -> tuple[int, int, str]:
            return value, more, swallowed()

        def other(self) -> str:
            return swallowed()

        def _own(self) -> str:
            return swallowed()

    def ring(number: int, frame: object) -> None:
        raise Late

    assert Thing.run.__name__ == "run"
    signal.signal(signal.SIGALRM, ring)
    with pytest.raises(Late):
        Thing().run(1, more=2)
    with pytest.raises(Late):
        _ = Thing().used
    assert Thing.used.__doc__ == "What was used."
    assert Thing().other() == Thing()._own() == "taken for ours"
    signal.signal(signal.SIGALRM, lambda *_: None)
    assert Thing().run(1, more=2) == (1, 2, "nothing came")


def test_at_any_moment_the_handler_is_there_again(late: object) -> None:
    for number in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (number + 1))
            unmistaken(lambda: None)
            time.sleep(0.001)
        except Late:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        unmistaken(lambda: None)
        assert signal.getsignal(signal.SIGALRM) is late


class _Rings:
    """A member of a class in the making: a signal comes while it is told its name."""

    number = signal.SIGALRM

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(self.number)


def _make_a_class() -> None:
    class Made:
        member = _Rings()


def test_an_error_in_the_middle_of_making_a_class_comes_out_as_it_was_raised() -> None:
    # As in an import. Python 3.11 makes a RuntimeError of it.
    with pytest.raises(Rung):
        unmistaken(_make_a_class)


def test_so_does_one_of_the_callers_own_kind(late: object) -> None:
    with pytest.raises(Late):
        unmistaken(_make_a_class)


@pytest.mark.parametrize("guard", [unmistaken, lambda work: unmistaken_method(work)()])
def test_so_does_ctrl_c(guard: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Rings, "number", signal.SIGINT)
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt):
            guard(_make_a_class)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_runtime_error_of_the_work_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="mine"):
        unmistaken(lambda: _raise(RuntimeError("mine")))


def _raise(error: Exception) -> None:
    raise error from ValueError("why")


def test_a_thread_that_loads_it_first_is_not_the_main_thread() -> None:
    """A launcher without `threading` has such threads. Only the main thread may set signal handlers."""
    said = python(
        """
        import _thread
        if "threading" in sys.modules:
            sys.exit("something has imported threading")
        def load():
            from staddle import interrupts
            print(interrupts.uninterrupted(lambda: "done"), flush=True)
            finished.release()
        finished = _thread.allocate_lock()
        finished.acquire()
        _thread.start_new_thread(load, ())
        finished.acquire()
        from staddle import interrupts
        print(interrupts.uninterrupted(lambda: "here too"))
        """
    )
    assert said == "done\nhere too"
