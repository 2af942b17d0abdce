"""One background thread for each kind of work: started late, woken, and begun anew in a fork."""

from __future__ import annotations

import errno
import os
import signal
import threading
from itertools import count

import pytest

from staddle.background import JobQueue, Worker, repeat
from staddle.errors import ThreadUnavailable
from staddle.interrupts import owned
from tests.support.threads import at_once

PATIENCE = 10.0


def nothing_of(_: object) -> None:
    """Undo nothing."""


def nothing() -> None:
    """Nothing belongs to the parent."""


def test_nothing_is_started_before_it_is_woken() -> None:
    called = threading.Event()
    worker = Worker(called.set, nothing)
    assert not called.wait(0.05)
    worker.wake()
    assert called.wait(PATIENCE)


def test_each_wake_has_the_work_done_once_more() -> None:
    calls = threading.Semaphore(0)
    worker = Worker(calls.release, nothing)
    for _ in range(3):
        worker.wake()
        assert calls.acquire(timeout=PATIENCE)


def test_the_work_says_when_it_is_to_be_done_again() -> None:
    calls, times = threading.Semaphore(0), iter((0.0, 0.01, None))

    def work() -> float | None:
        calls.release()
        return next(times)

    Worker(work, nothing).wake()
    assert all(calls.acquire(timeout=PATIENCE) for _ in range(3))
    assert not calls.acquire(timeout=0.05)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_fails_is_done_when_it_is_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, failed = threading.Semaphore(0), threading.Event()
    monkeypatch.setattr("sys.unraisablehook", lambda _: failed.set())

    def work() -> None:
        calls.release()
        raise OSError

    worker = Worker(work, nothing)
    for _ in range(2):
        worker.wake()
        assert calls.acquire(timeout=PATIENCE)
        assert failed.wait(PATIENCE)
        failed.clear()


def test_work_that_can_open_no_file_is_tried_again_by_itself() -> None:
    done, errors = threading.Event(), iter((errno.EMFILE, errno.ENFILE))

    def work() -> None:
        for error in errors:
            raise OSError(error, os.strerror(error))
        done.set()

    Worker(work, nothing).wake()
    assert done.wait(PATIENCE)


def test_a_fork_forgets_what_is_its_parents_and_has_a_thread_of_its_own() -> None:
    mine: list[str] = ["the parent's"]
    seen = threading.Event()
    worker = Worker(seen.set, mine.clear)
    worker.wake()
    assert seen.wait(PATIENCE)
    child = os.fork()
    if not child:
        seen.clear()
        worker.wake()
        os._exit(0 if seen.wait(PATIENCE) and not mine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mine == ["the parent's"]


def test_jobs_are_done_and_waited_for() -> None:
    queue, done = JobQueue(), list[int]()
    for number in range(100):
        queue.add(lambda number=number: done.append(number))  # type: ignore[misc]
    queue.wait()
    assert sorted(done) == list(range(100))
    queue.wait()  # for nothing


def test_the_oldest_job_is_done_first() -> None:
    queue, held, done = JobQueue(), threading.Event(), list[int]()
    queue.add(lambda: held.wait(PATIENCE))
    for number in range(20):
        queue.add(lambda number=number: done.append(number))  # type: ignore[misc]
    held.set()
    queue.wait()
    assert done == list(range(20))


def test_who_adds_more_than_can_be_done_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, begun, held, slept = JobQueue(), threading.Event(), threading.Event(), list[float]()
    queue.add(begun.set)
    queue.add(lambda: held.wait(PATIENCE))
    assert begun.wait(PATIENCE)  # its thread has stood back already
    queue.let_catch_up()
    for _ in range(1000):
        queue.add(nothing)
    monkeypatch.setattr("staddle.background.time.sleep", slept.append)
    queue.let_catch_up()
    assert len(slept) == 1
    for _ in range(100):
        queue.rest()
    assert len(slept) == 1  # its thread takes no rests meanwhile
    held.set()
    queue.wait()
    queue.let_catch_up()
    assert len(slept) == 1


def test_many_wait_for_their_own_jobs() -> None:
    queue = JobQueue()

    def one() -> None:
        for _ in range(50):
            done = threading.Event()
            queue.add(done.set)
            queue.wait()
            assert done.is_set()

    at_once(*[one] * 8)


def test_a_job_that_fails_is_reported_and_the_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, done, reported = JobQueue(), list[int](), list[object]()
    monkeypatch.setattr(threading, "excepthook", lambda report: reported.append(report.exc_type))

    def fails() -> None:
        raise OSError

    queue.add(lambda: done.append(1))
    queue.add(fails)
    queue.wait()
    assert (done, reported) == ([1], [OSError])


def test_a_fork_leaves_the_jobs_to_its_parent_and_has_its_own() -> None:
    queue, held, done = JobQueue(), threading.Event(), list[str]()
    queue.add(held.wait)
    queue.add(lambda: done.append("parent"))
    child = os.fork()
    if child == 0:
        queue.add(lambda: done.append("child"))
        queue.wait()
        os._exit(done[-1:] != ["child"])
    held.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.wait()
    assert done == ["parent"]


def test_repeat_makes_several_calls_at_the_same_time() -> None:
    together = threading.Barrier(4)
    results = repeat(lambda: together.wait(PATIENCE), 4, undo=nothing_of)
    assert sorted(results) == [0, 1, 2, 3]
    numbers = count()
    assert sorted(repeat(lambda: next(numbers), 100, undo=nothing_of)) == list(range(100))


def test_if_one_call_fails_repeat_begins_no_other_and_undoes_all_results() -> None:
    numbers, undone = count(), list[int]()

    def work() -> int:
        if (number := next(numbers)) == 20:
            raise IndexError(number)
        return number

    with pytest.raises(IndexError):
        repeat(work, 1000, undo=undone.append)
    assert len(undone) == next(numbers) - 1 < 100
    assert set(range(20)) <= set(undone)


def test_a_handler_that_raises_in_repeat_undoes_what_the_threads_have_made() -> None:
    undone, came = list[int](), threading.Event()

    def work() -> int:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
            came.set()
        return came.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        owned(lambda: repeat(work, 4, undo=undone.append))
    assert undone == [True] * 4


def test_without_threads_the_caller_makes_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise ThreadUnavailable("no thread", why="there is no room", fix="end one")

    monkeypatch.setattr("staddle.background.start_thread", none)
    assert repeat(threading.get_ident, 3, undo=nothing_of) == [threading.get_ident()] * 3
