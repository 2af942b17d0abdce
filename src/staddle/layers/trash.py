"""Delete directories in the background.

A layer of ten thousand files takes a tenth of a second to delete, and the kernel leaves a
directory in it that its owner cannot open. So what is to go is renamed into a trash first,
which is instant, and a thread empties it. The interpreter waits for that when it ends; if it
is killed instead, the next start finds the trash and does the rest.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

from ..files.remove_tree import remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TRASH = "gone"
#: Seconds that the thread waits for more to do: starting it takes as long as half a restore.
_LINGERS = 30.0
#: Delay before the thread starts, so that it does not compete with the caller that queued the work.
_STANDS_BACK = 0.01
#: A thread that makes one short system call after the other hardly ever lets another one have the
#: interpreter: so it sleeps for a moment after so many.
_AT_A_TIME, _RESTS = 16, 0.0003


class _TrashThread:
    """A thread that lives as long as there is something to delete, and a while longer."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.RLock()  # held itself: a signal can come into the `with` of a Condition
        self._bell = threading.Condition(self._lock)
        self._waiting: list[Callable[[], object]] = []
        self._busy = self._is_there = False
        self._hurries = self._done = 0
        atexit.register(self.wait)

    def add(self, job: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.append(job)
            if self._is_there:
                self._bell.notify_all()
                return
        self._start()

    def _start(self) -> None:
        try:
            # It does not keep the interpreter from ending: `wait` does, at the end.
            threading.Thread(target=self._work, name="staddle-removal", daemon=True).start()
        except RuntimeError:  # the interpreter is ending, and starts no threads any more
            self._work(lingers=0)

    def wait(self) -> None:
        if self.pid == os.getpid():
            if self._waiting and not self._is_there:
                self._start()  # the thread that was about to has been interrupted
            with self._lock:
                self._hurries += 1
                self._bell.wait_for(lambda: not self._waiting and not self._busy)
                self._hurries -= 1

    def rest(self) -> None:
        """Sleep for a moment between steps, so that other threads run, unless they wait for this one."""
        self._done += 1
        if self._done % _AT_A_TIME == 0 and not self._hurries:
            time.sleep(_RESTS)

    def _work(self, lingers: float = _LINGERS) -> None:
        with self._lock:
            if self._is_there:
                return  # two were started at once
            self._is_there = True
        while True:
            with self._lock:
                self._busy = False
                self._bell.notify_all()
                if not self._waiting and not self._bell.wait_for(lambda: bool(self._waiting), lingers):
                    self._is_there = False
                    return
                self._busy = True
            if not self._hurries:
                time.sleep(_STANDS_BACK)
            while self._waiting:
                job = self._waiting.pop()
                try:
                    job()
                except Exception:
                    # A bug of ours: reported as any thread's is, so that `wait` does not wait for ever.
                    report = (*sys.exc_info(), threading.current_thread())
                    threading.excepthook(threading.ExceptHookArgs(report))


_workers: list[_TrashThread] = []


def _worker() -> _TrashThread:
    """This process's own: a fork has the list, but not the thread."""
    if not _workers or _workers[-1].pid != os.getpid():
        _workers[:] = [_TrashThread()]
    return _workers[-1]


def move(path: str, home: str) -> None:
    """Let the directory `path` vanish at once, and be deleted soon. `home` is on the same file system."""
    trash = f"{home}/{TRASH}"
    for _ in range(100):
        try:
            os.mkdir(trash, 0o700)
        except FileExistsError:
            pass
        place = f"{trash}/{os.urandom(8).hex()}"
        try:
            os.rename(path, place)
        except FileNotFoundError:
            if not os.path.lexists(path):
                return  # another process has moved it
            continue  # the trash was tidied away that moment
        delete_later(place)
        return


def delete_later(path: str) -> None:
    """Delete the directory `path`, which is in a trash, in the background."""

    def job() -> None:
        remove((os.fsencode(path),), rest)
        _tidy(os.path.dirname(path))

    in_background(job)


def in_background(job: Callable[[], object]) -> None:
    """Do a `job` that never raises, some time soon."""
    _worker().add(job)


def rest() -> None:
    """To be called between small steps of such a job."""
    _worker().rest()


def wait() -> None:
    """Wait until everything that this process has moved to the trash is deleted."""
    _worker().wait()


def _tidy(trash: str) -> None:
    """An empty trash goes, and an empty home with it."""
    try:
        os.rmdir(trash)
        os.rmdir(os.path.dirname(trash))
    except OSError:
        pass  # not empty
