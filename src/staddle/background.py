"""Background work of the host program: one daemon thread for each kind of work, started on first use.

A `Worker` is the thread of one kind of work. `do_later` is for one-time jobs that no caller waits for:
deleting layers, merging them, preparing resources in advance.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time
from functools import partial

from .errors import ThreadUnavailable, is_full, thread_unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

#: Seconds before the first queued job, so that it does not compete with the caller that queued it.
_STANDS_BACK = 0.01
#: A thread that makes many short system calls rarely releases the interpreter to other threads. So it
#: sleeps `_RESTS` seconds after every `_AT_A_TIME` steps.
_AT_A_TIME, _RESTS = 16, 0.0003
#: With more than `_MANY` queued jobs, the thread stops pausing and producers sleep `_GIVES_WAY` seconds.
_MANY, _GIVES_WAY = 256, 0.005
#: The most threads in which `repeat` makes its calls.
_MOST_THREADS = 8


#: Seconds until a worker is called again that failed because it could open no file.
_NO_ROOM = 0.1


class Worker:
    """Calls `work` in its own thread after each `wake`, and when `work` asked for it.

    `work` returns the seconds until its next call, or None to wait for the next `wake`. If it raises, its
    thread ends, and the next `wake` starts another thread. If it fails because the process can open no more
    files, it is called again after a moment, because some workers enforce limits.

    A forked child has none of these threads. It calls `forget` at once, to drop the parent's state, and its
    first `wake` starts a thread.
    """

    def __init__(self, work: Callable[[], float | None], forget: Callable[[], object]) -> None:
        self._work, self._forget = work, forget
        self._is_running = False
        self._starting = _thread.allocate_lock()
        #: Locked until `wake` releases it; the thread sleeps on it.
        self._bell = _thread.allocate_lock()
        _workers.append(self)

    def wake(self) -> None:
        """Call `work` soon. Any thread and any signal handler may call this."""
        if not self._is_running:
            from .interrupts import uninterrupted

            uninterrupted(self._start)
        elif self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:
                pass  # another thread was faster

    def _start(self) -> None:
        # Without waiting: a thread that is starting calls `work` after this.
        if self._starting.acquire(False):
            try:
                if not self._is_running:
                    bell = self._bell = _thread.allocate_lock()
                    bell.acquire()
                    self._is_running = True
                    _thread.start_new_thread(self._loop, (bell,))
            except RuntimeError as error:
                self._is_running = False
                raise thread_unavailable() from error
            except BaseException:
                self._is_running = False
                raise
            finally:
                self._starting.release()

    def _loop(self, bell: _thread.LockType) -> None:
        try:
            while True:
                try:
                    patience = self._work()
                except OSError as error:
                    if not is_full(error):
                        raise
                    patience = _NO_ROOM
                bell.acquire(True, -1 if patience is None else patience)
        finally:
            self._is_running = False

    def after_fork(self) -> None:
        """Reset this object in a forked child, which has no thread for it."""
        self._is_running = False
        self._starting = _thread.allocate_lock()  # the thread that held the lock does not exist here
        self._forget()


_workers: list[Worker] = []


def _after_fork() -> None:
    for worker in _workers:
        worker.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class JobQueue:
    """Jobs that no caller waits for. One thread runs them, the oldest first.

    The interpreter waits for them before it exits. There is no lock, because a signal handler may add a job
    at any time.
    """

    def __init__(self) -> None:
        self._jobs: list[Callable[[], object]] = []
        #: One locked lock for each caller of `wait`, released when no job is left.
        self._waiters: list[_thread.LockType] = []
        self._is_busy = self._is_registered = False
        self._steps = 0
        self._worker = Worker(self._work, self._forget)

    def add(self, job: Callable[[], object]) -> None:
        """Queue `job`."""
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.wait)
        self._jobs.append(job)
        self._wake()

    def rest(self) -> None:
        """Sleep for a moment between steps of a job, so that other threads run, unless one waits for jobs."""
        self._steps += 1
        if self._steps % _AT_A_TIME == 0 and not self._waiters and len(self._jobs) <= _MANY:
            time.sleep(_RESTS)

    def let_catch_up(self) -> None:
        """Sleep for a moment if many jobs are left. For callers that add a job in each of their steps."""
        if len(self._jobs) > _MANY:
            time.sleep(_GIVES_WAY)

    def wait(self) -> None:
        """Wait until all jobs that were added before are done."""
        done = _thread.allocate_lock()
        done.acquire()
        self._waiters.append(done)  # before the check: the thread clears `_is_busy` first and then looks here
        if self._jobs or self._is_busy:
            self._wake()
            done.acquire()
        elif done in self._waiters:
            try:
                self._waiters.remove(done)
            except ValueError:
                pass  # the thread has released it meanwhile

    def _wake(self) -> None:
        try:
            self._worker.wake()
        except ThreadUnavailable:  # the interpreter is ending, or has no room for a thread
            self._work()

    def _work(self) -> None:
        self._is_busy = True
        try:
            if self._jobs and not self._waiters:
                time.sleep(_STANDS_BACK)
            while self._jobs:
                _do(self._jobs.pop(0))
        finally:
            self._is_busy = False
            waiters = []
            while self._waiters:
                waiters.append(self._waiters.pop())
            if self._jobs:  # added meanwhile, perhaps by one of the waiting callers
                self._waiters += waiters
                self._wake()
            else:
                for waiter in waiters:
                    waiter.release()

    def _forget(self) -> None:
        """Drop the jobs in a forked child: they are the parent's."""
        self._jobs.clear()
        self._waiters.clear()
        self._is_busy = False


def _do(job: Callable[[], object]) -> None:
    try:
        job()
    except ThreadUnavailable:
        return  # the job needs another thread, and no thread can be started
    except Exception:
        # A bug of ours. It is reported like an exception in any thread, and the next job runs.
        import threading

        report = (*sys.exc_info(), threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(report))


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread for `work`; raise ThreadUnavailable if no thread can be started."""
    import threading

    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise thread_unavailable() from error
    return thread


def repeat(work: Callable[[], T], times: int, *, undo: Callable[[T], object]) -> list[T]:
    """Call `work` this many times, in several threads at once, and return the results.

    If a call fails, or the caller is interrupted, no further call begins, and `undo` gets every result.
    Then the first error is raised. If no thread can be started, the caller makes all calls.
    """
    from contextvars import copy_context

    from .interrupts import interruptible, uninterrupted

    results: list[T] = []
    errors: list[BaseException] = []
    turns = iter(range(times))

    def take_turns() -> None:
        while not errors and next(turns, None) is not None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)

    threads: list[threading.Thread] = []
    try:
        for _ in range(min(times, _MOST_THREADS) - 1):
            try:
                threads.append(start_thread(partial(copy_context().run, take_turns), "staddle-repeat"))
            except ThreadUnavailable:
                break
        take_turns()
        for thread in threads:
            interruptible(thread.join)
    except BaseException as error:
        errors.append(error)
    try:
        if errors:
            uninterrupted(lambda: _undo(threads, results, undo))
            raise errors[0]
        return results
    finally:
        errors.clear()  # a traceback in it would keep this frame alive, and every object of the caller's


def _undo(threads: list[threading.Thread], results: list[T], undo: Callable[[T], object]) -> None:
    for thread in threads:
        thread.join()
    for result in results:
        undo(result)


_jobs = JobQueue()


def do_later(job: Callable[[], object]) -> None:
    """Queue `job` for the background thread."""
    _jobs.add(job)


def rest() -> None:
    """Call this between the small steps of a long job, so that other threads run."""
    _jobs.rest()


def let_catch_up() -> None:
    """Sleep for a moment if many jobs are left. For callers that add a job in each of their steps."""
    _jobs.let_catch_up()


def wait_for_jobs() -> None:
    """Wait until all jobs that were added before are done."""
    _jobs.wait()
