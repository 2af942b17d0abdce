"""Maintenance of idle shells: shortly after a command, off its path, by one thread for all shells."""

from __future__ import annotations

import _thread
import time

from ..background import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class IdleShell(Protocol):
        """A shell that can be maintained while no command runs in it."""

        def maintain(self) -> None: ...


#: Seconds after a command until its shell counts as idle.
QUIET = 0.005
#: Maintenance holds the shell's lock. It waits ten times as long as it last took, so it costs a caller at
#: most a tenth of the time.
_SHARE = 10


class IdleMaintenance:
    """The shells that are to be maintained, each with the time from which on. Thread-safe."""

    def __init__(self) -> None:
        self._due: dict[IdleShell, float] = {}
        self._lock = _thread.allocate_lock()
        self._worker = Worker(self._maintain, self._forget_all)

    def schedule(self, shell: IdleShell, cost: float) -> None:
        """Maintain `shell` when it has been idle for a moment; longer, if that last took `cost` seconds."""
        when = time.monotonic() + max(QUIET, _SHARE * cost)
        with self._lock:
            is_new = shell not in self._due
            self._due[shell] = when
        if is_new:  # else the worker comes round to it anyway
            self._worker.wake()

    def forget(self, shell: IdleShell) -> None:
        """Drop `shell`, which is closed."""
        with self._lock:
            self._due.pop(shell, None)

    def _maintain(self) -> float | None:
        # Sleeping, not waiting to be woken: each command of a busy shell would cost a change of threads.
        time.sleep(QUIET)
        with self._lock:
            now = time.monotonic()
            due = [shell for shell, when in self._due.items() if when <= now]
            for shell in due:
                del self._due[shell]
        for shell in due:
            try:
                shell.maintain()
            except Exception:  # noqa: S110 - the next command of this shell raises it again
                pass
        return 0.0 if self._due else None

    def _forget_all(self) -> None:
        self._due = {}
        self._lock = _thread.allocate_lock()


IDLE_MAINTENANCE = IdleMaintenance()
