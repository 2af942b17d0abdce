"""Background work of the host program: a daemon thread for each kind, started when it is first needed."""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Worker:
    """Calls `work` in a thread of its own, whenever `wake` was called and whenever `work` asked for it.

    `work` returns the seconds until it is to be called again, or None: not before the next `wake`. If it
    raises, its thread ends, and the next `wake` starts another one.

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
            self._start()
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
            except BaseException:
                self._is_running = False
                raise
            finally:
                self._starting.release()

    def _loop(self, bell: _thread.LockType) -> None:
        try:
            while True:
                patience = self._work()
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
