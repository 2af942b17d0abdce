"""Maintain idle shells shortly after a command, and release descriptors of the least recently used.

One thread for all shells does the maintenance, off the commands' path. An idle shell needs two descriptors
and its sandbox one; a shell in use needs nine more. With hundreds of sandboxes a host program would run out
of them, so the least recently used shells release theirs, and request them again when they are used.
"""

from __future__ import annotations

import _thread
import time

from ..background import Worker
from ..errors import is_full
from ..ipc.opened_shell import lost
from ..linux import open_files
from ..linux.file_room import FILE_ROOM, OTHERS, too_many

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class IdleShell(Protocol):
        """A shell that can be maintained while it runs no command."""

        @property
        def idle_from(self) -> float: ...
        def maintain(self) -> None: ...

    class ParkableShell(Protocol):
        """A shell that can release descriptors while it runs no command."""

        def park(self) -> bool: ...


#: Seconds after a command until its shell counts as idle.
QUIET = 0.005
#: The most seconds until the next check, which doubles while all shells are in use.
_LONGEST_INTERVAL = 4 * QUIET
#: Maintenance holds the shell's lock. It waits for this multiple of its last duration, so it costs a caller
#: at most a tenth of the time.
_SHARE = 10


def idle_from(used: float, cost: float) -> float:
    """Return when a shell that was `used` then becomes idle; `cost` is the last maintenance's duration."""
    return used + max(QUIET, _SHARE * cost)


class IdleMaintenance:
    """Shells to be maintained when they become idle. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[IdleShell, None] = {}
        self._lock = _thread.allocate_lock()
        self._interval = QUIET
        self._worker = Worker(self._maintain, self._forget_all)

    def schedule(self, shell: IdleShell) -> None:
        """Maintain `shell`, which was used just now, when it is idle.

        The worker skips a shell that a command holds. So call this again after a command has released it.
        """
        if shell in self._waiting:  # the usual case, on every command's path: the worker will get to it
            return
        with self._lock:
            self._waiting[shell] = None
        self._worker.wake()

    def forget(self, shell: IdleShell) -> None:
        """Drop `shell`, which is closed."""
        with self._lock:
            self._waiting.pop(shell, None)

    def _maintain(self) -> float | None:
        # Sleeping instead of waiting: waking the thread would cost each command a context switch.
        time.sleep(self._interval)
        now = time.monotonic()
        with self._lock:
            idle = [shell for shell in self._waiting if shell.idle_from <= now]
            for shell in idle:  # before `maintain`: a command that holds the shell now schedules it again
                del self._waiting[shell]
        self._interval = QUIET if idle else min(2 * self._interval, _LONGEST_INTERVAL)
        for shell in idle:
            try:
                shell.maintain()
            except Exception:  # noqa: S110 - the next command of this shell raises it again
                pass
        return 0.0 if self._waiting else None

    def _forget_all(self) -> None:
        self._waiting = {}
        self._lock = _thread.allocate_lock()


IDLE_MAINTENANCE = IdleMaintenance()


#: Additional descriptors of a shell in use.
EACH = 9


def room(limit: int) -> int:
    """Return how many shells may keep their files open under this limit of open files."""
    return max(2, (limit - OTHERS) * 3 // 8 // EACH)


class OpenShellLru:
    """Shells of this process with open files, least recently used first."""

    def __init__(self) -> None:
        self._shells: dict[ParkableShell, None] = {}
        self._turn = _thread.allocate_lock()
        self._room = 0
        self.latest: ParkableShell | None = None

    def use(self, shell: ParkableShell) -> None:
        """Record the use of `shell`; other shells may have to release their files."""
        if self.latest is shell:
            return
        crowd = []
        with self._turn:
            self.latest = shell
            self._shells.pop(shell, None)
            self._shells[shell] = None
            if len(self._shells) > self._room:
                self._room = room(open_files.limit())
                crowd = [other for other in self._shells if other is not shell]
                crowd = crowd[: max(0, len(self._shells) - self._room)]
                for other in crowd:
                    del self._shells[other]
        for other in crowd:
            if not other.park():  # busy: it counts as used
                with self._turn:
                    self._shells.setdefault(other)

    def are_in_use(self) -> bool:
        """Whether shells have open files. After `park_all`, these are busy."""
        return bool(self._shells)

    def park_all(self) -> bool:
        """Release the files of all idle shells. Returns whether there were any."""
        with self._turn:
            shells, self._shells = self._shells, {}
            self.latest = None
        busy = {shell: None for shell in shells if not shell.park()}
        with self._turn:
            self._shells = {**busy, **self._shells}
        return len(shells) > len(busy)

    def forget(self, shell: ParkableShell) -> None:
        """Drop `shell`, which is closed."""
        with self._turn:
            self._shells.pop(shell, None)
            if self.latest is shell:
                self.latest = None


OPEN_SHELLS = OpenShellLru()


#: The most descriptors open while a program starts or a shell is used again.
TO_START, TO_USE = 16, 12
#: The same while a sandbox opens, with room for some shells in use, including its own.
TO_OPEN = 40 + 8 * TO_USE


def lost_or_full(error: Exception) -> Exception:
    """Return the error for a sandbox whose socket failed with `error`."""
    return too_many() if is_full(error) else lost(str(error))


FILE_ROOM.givers.append(OPEN_SHELLS.park_all)
FILE_ROOM.are_in_use = OPEN_SHELLS.are_in_use
