"""Idle shells: they are maintained shortly after a command, and those used longest ago give descriptors back.

Maintenance is off the command's path, by one thread for all shells. A shell at rest needs two descriptors and
its sandbox one; in use it needs nine more. A host program with hundreds of sandboxes would run out of them:
the ones that were used longest ago give theirs back, and ask for them again when they are used.
"""

from __future__ import annotations

import _thread
import resource
import time

from ..background import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class IdleShell(Protocol):
        """A shell that can be maintained while no command runs in it."""

        def maintain(self) -> None: ...

    class ParkableShell(Protocol):
        """A shell that can give descriptors back while no command runs in it."""

        def park(self) -> bool: ...


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


#: Descriptors that a shell in use has more than one at rest.
EACH = 9
#: Descriptors for the rest of the host program, at least.
_OTHERS = 64


def room(limit: int) -> int:
    """Return how many shells may keep their files open under this limit of open files."""
    return max(2, (limit - _OTHERS) * 3 // 8 // EACH)


class OpenShellLru:
    """The shells of this process that have their files open, the one used longest ago first."""

    def __init__(self) -> None:
        self._shells: dict[ParkableShell, None] = {}
        self._turn = _thread.allocate_lock()
        self._room = 0
        self.latest: ParkableShell | None = None

    def use(self, shell: ParkableShell) -> None:
        """`shell` is about to be used; another one may have to give back its files."""
        if self.latest is shell:
            return
        crowd = []
        with self._turn:
            self.latest = shell
            self._shells.pop(shell, None)
            self._shells[shell] = None
            if len(self._shells) > self._room:
                self._room = room(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
                crowd = [other for other in self._shells if other is not shell]
                crowd = crowd[: max(0, len(self._shells) - self._room)]
                for other in crowd:
                    del self._shells[other]
        for other in crowd:
            if not other.park():  # it is busy: it counts as used
                with self._turn:
                    self._shells.setdefault(other)

    def forget(self, shell: ParkableShell) -> None:
        """`shell` is closed."""
        with self._turn:
            self._shells.pop(shell, None)
            if self.latest is shell:
                self.latest = None


OPEN_SHELLS = OpenShellLru()
