"""Background work of the host program: a daemon thread for each kind, started when it is first needed.

A `Worker` is the thread of one kind of work. `do_later` is for all work that no caller waits for and that is
done once: deleting layers, merging them, making things in advance.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time

from .errors import ThreadUnavailable, is_full, thread_unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

#: Delay before the first of some jobs, so that it does not compete with the caller that queued it.
_STANDS_BACK = 0.01
#: A thread that makes one short system call after the other hardly ever lets another one have the
#: interpreter: so it sleeps for a moment after so many.
_AT_A_TIME, _RESTS = 16, 0.0003
#: With more jobs left than this, the thread takes no rests, and who adds more gives way to it for so long.
_MANY, _GIVES_WAY = 256, 0.005


#: Seconds until work that could open no file is tried again.
_NO_ROOM = 0.1


class Worker:
    """Calls `work` in a thread of its own, whenever `wake` was called and whenever `work` asked for it.

    `work` returns the seconds until it is to be called again, or None: not before the next `wake`. If it
    raises, its thread ends, and the next `wake` starts another one; but if no file can be opened, it is
    called again after a moment: limits are held by some.

    A fork of the program has none of its threads: there the first `wake` starts one, and `forget` is called
    in it first of all, to let go of what belongs to the parent.
    """

    def __init__(self, work: Callable[[], float | None], forget: Callable[[], object]) -> None:
        self._work, self._forget = work, forget
        self._is_running = False
        self._starting = _thread.allocate_lock()
        #: Locked while nothing has to be done but what `work` knows of.
        self._bell = _thread.allocate_lock()
        _workers.append(self)

    def wake(self) -> None:
        """Have `work` called soon. From any thread, and from a signal's handler."""
        if not self._is_running:
            from .interrupts import uninterrupted

            uninterrupted(self._start)
        elif self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:
                pass  # another thread was faster

    def _start(self) -> None:
        # Without waiting: a thread that is being started calls `work` after this.
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
        """In a fork of the program, which has this object and no thread of it."""
        self._is_running = False
        self._starting = _thread.allocate_lock()  # a thread that had it is not here
        self._forget()


_workers: list[Worker] = []


def _after_fork() -> None:
    for worker in _workers:
        worker.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class JobQueue:
    """Jobs that no caller waits for, done one after the other, the oldest first, in one thread.

    The interpreter waits for them when it ends. Holds no lock: a signal's handler may add one at any time.
    """

    def __init__(self) -> None:
        self._jobs: list[Callable[[], object]] = []
        #: Locked, one for each caller of `wait`; released when no job is left.
        self._waiters: list[_thread.LockType] = []
        self._is_busy = self._is_registered = False
        self._steps = 0
        self._worker = Worker(self._work, self._forget)

    def add(self, job: Callable[[], object]) -> None:
        """Have it done soon."""
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.wait)
        self._jobs.append(job)
        self._wake()

    def rest(self) -> None:
        """Sleep for a moment between steps of a job, so that other threads run, unless one waits for it."""
        self._steps += 1
        if self._steps % _AT_A_TIME == 0 and not self._waiters and len(self._jobs) <= _MANY:
            time.sleep(_RESTS)

    def let_catch_up(self) -> None:
        """Sleep for a moment if many jobs are left: for callers who add one in each step of theirs."""
        if len(self._jobs) > _MANY:
            time.sleep(_GIVES_WAY)

    def wait(self) -> None:
        """Wait until all are done that were added before."""
        done = _thread.allocate_lock()
        done.acquire()
        self._waiters.append(done)  # before the look: the thread clears its mark first, and then looks here
        if self._jobs or self._is_busy:
            self._wake()
            done.acquire()
        elif done in self._waiters:
            try:
                self._waiters.remove(done)
            except ValueError:
                pass  # it was released that moment

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
            if self._jobs:  # added at this moment, perhaps by one of these
                self._waiters += waiters
                self._wake()
            else:
                for waiter in waiters:
                    waiter.release()

    def _forget(self) -> None:
        """In a fork: the jobs are its parent's."""
        self._jobs.clear()
        self._waiters.clear()
        self._is_busy = False


def _do(job: Callable[[], object]) -> None:
    try:
        job()
    except ThreadUnavailable:
        return  # a job that needs another thread, and there is no room for one
    except Exception:
        # A bug of ours: reported as any thread's is, and the next job is done.
        import threading

        report = (*sys.exc_info(), threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(report))


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread for `work`; ThreadUnavailable if there is no room for one."""
    import threading

    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise thread_unavailable() from error
    return thread


_jobs = JobQueue()


def do_later(job: Callable[[], object]) -> None:
    """Do a `job` that never raises, when no caller waits."""
    _jobs.add(job)


def rest() -> None:
    """To be called between small steps of such a job."""
    _jobs.rest()


def let_catch_up() -> None:
    """Sleep for a moment if many jobs are left: for callers who add one in each step of theirs."""
    _jobs.let_catch_up()


def wait_for_jobs() -> None:
    """Wait until all jobs are done that were added before."""
    _jobs.wait()
