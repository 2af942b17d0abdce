"""Directories that go away without anybody waiting for it.

A layer of ten thousand files takes a tenth of a second to delete, and the kernel leaves a
directory in it that its owner cannot open. So what is to go is renamed into a grave first,
which is instant, and a thread empties it. The interpreter waits for that thread when it ends;
if it is killed instead, the next start finds the grave and does the rest.
"""

from __future__ import annotations

import os
import threading

from ..helper.scratch import remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GRAVE = "gone"


class _Worker:
    """A thread that lives as long as there is something to delete."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None

    def add(self, job: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="staddle-removal")
                try:
                    self._thread.start()
                    return
                except RuntimeError:  # the interpreter is ending, and starts no threads any more
                    self._thread = None
            else:
                return
        self._work()

    def wait(self) -> None:
        while thread := self._thread:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                job = self._waiting.pop()
            job()


_workers: list[_Worker] = []


def _worker() -> _Worker:
    """This process's own: a fork has the list, but not the thread."""
    if not _workers or _workers[-1].pid != os.getpid():
        _workers[:] = [_Worker()]
    return _workers[-1]


def bury(path: str, home: str) -> None:
    """Let the directory `path` vanish at once, and be deleted soon. `home` is on the same file system."""
    grave = f"{home}/{GRAVE}"
    for _ in range(100):
        try:
            os.mkdir(grave, 0o700)
        except FileExistsError:
            pass
        place = f"{grave}/{os.urandom(8).hex()}"
        try:
            os.rename(path, place)
        except FileNotFoundError:
            if not os.path.lexists(path):
                return  # somebody else has buried it
            continue  # the grave was tidied away that moment
        later(place)
        return


def later(path: str) -> None:
    """Delete the directory `path`, which is in a grave, in the background."""

    def job() -> None:
        remove((os.fsencode(path),))
        _tidy(os.path.dirname(path))

    in_background(job)


def in_background(job: Callable[[], object]) -> None:
    """Do a `job` that never raises, some time soon."""
    _worker().add(job)


def wait() -> None:
    """Until everything that was buried by this process is deleted."""
    _worker().wait()


def _tidy(grave: str) -> None:
    """An empty grave goes, and an empty home with it."""
    try:
        os.rmdir(grave)
        os.rmdir(os.path.dirname(grave))
    except OSError:
        pass  # not empty
