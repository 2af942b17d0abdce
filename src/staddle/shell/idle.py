"""What is done for a shell shortly after a command, off its caller's path, by one thread for all."""

from __future__ import annotations

import _thread
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class IdleShell(Protocol):
        """A shell that can be looked after while no command runs in it."""

        def tidy(self) -> None: ...


#: So long after a command nobody seems to be about to run another.
QUIET = 0.005
#: A shell that is looked after lets a command wait: that may take a tenth of the time.
_PATIENCE = 10


class Janitor:
    """Looks after shells that have come to rest."""

    def __init__(self) -> None:
        self._waiting: dict[IdleShell, float] = {}
        self._turn = _thread.allocate_lock()
        self._bell = _thread.allocate_lock()
        self._process = 0

    def soon(self, shell: IdleShell, cost: float) -> None:
        """Look after `shell` when it has been quiet for a moment, longer where that `cost` much last time."""
        when = time.monotonic() + max(QUIET, _PATIENCE * cost)
        with self._turn:
            self._waiting[shell] = when
            if self._process != os.getpid():  # the first one, or a forked child, which has no thread of it
                self._bell = _thread.allocate_lock()
                self._bell.acquire()
                _thread.start_new_thread(self._work, ())
                self._process = os.getpid()
            if self._bell.locked():
                self._bell.release()

    def forget(self, shell: IdleShell) -> None:
        """`shell` is closed."""
        with self._turn:
            self._waiting.pop(shell, None)

    def _work(self) -> None:
        while True:
            self._bell.acquire()
            while self._waiting:
                time.sleep(QUIET)
                with self._turn:
                    now = time.monotonic()
                    due = [shell for shell, when in self._waiting.items() if when <= now]
                    for shell in due:
                        del self._waiting[shell]
                for shell in due:
                    try:
                        shell.tidy()
                    except Exception:  # noqa: S110 - whoever uses it next is told
                        pass


JANITOR = Janitor()
