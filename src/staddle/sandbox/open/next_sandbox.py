"""Open the next sandbox for the same directory in advance.

A program that has opened two sandboxes with one plan for one directory will probably open a third. That one
is opened while no caller waits, and nothing runs in it. It is used only while the directory is the same one
in the same state, and only if the plan hides nothing in the workspace: a file to hide may have appeared
since. A sandbox that nobody takes is soon ended.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

from ..._value import Value
from ...background import Worker, do_later
from ...errors import StaddleError
from ...forkserver.client import hides_nothing
from ...linux import open_files
from ...linux.process import has_ended
from ..workspace.frozen import BaseFreezer
from ..workspace.overlay import OverlayWorkspace
from .decide import decide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .decide import Decision
    from .handle import SandboxHandle
    from .settings import SandboxSettings

    #: Opens a sandbox as decided, with a new workspace.
    Open = Callable[[Decision], SandboxHandle]

#: Seconds for which a sandbox waits for a caller.
_OLDEST = 10.0
#: The least number of free descriptors while a sandbox waits.
_FREE = 256


class NextSandbox(Value):
    """A waiting sandbox, with the state of its directory when it was opened."""

    handle: SandboxHandle
    directory: str | None
    state: tuple[int, ...]
    since: float

    def end(self) -> None:
        """End the sandbox, which was not used."""
        self.handle.agent.close()
        self.handle.shell.close()


class NextSandboxes:
    """Holds at most one waiting sandbox, of the kind opened last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: NextSandbox | None = None
        self._last: tuple[object, ...] = ()
        self._count = 0
        self._is_over = False
        self._expiry = Worker(self._expire, self.forsake)

    def take(self, settings: SandboxSettings) -> SandboxHandle | None:
        """Take the waiting sandbox if it equals a new one with these settings; otherwise end it."""
        if self._waiting is None:
            return None
        with self._lock:
            found, self._waiting = self._waiting, None
        if found is None:
            return None
        taken = None
        try:
            taken = _as_asked(found, settings)
        finally:
            if taken is None:
                do_later(found.end)
        return taken

    def opened(self, settings: SandboxSettings, handle: SandboxHandle, make: Open) -> None:
        """Record a sandbox with new layers; after two of a kind, open the next in the background."""
        self._count += 1
        kind = settings.workspace, handle.decided.plan
        is_usual, self._last = self._last == kind, kind
        if is_usual and settings.on_connect is None and _is_simple(handle):
            number = self._count
            do_later(lambda: self._make(settings.workspace, handle.decided, make, number))

    def _make(self, directory: str | None, decided: Decision, make: Open, number: int) -> None:
        if self._waiting is not None or self._is_over or number != self._count:
            return  # a caller that opens one after the other must not wait for this
        if open_files.count() + _FREE > open_files.limit():
            return
        try:
            state = _state(directory)
            made = NextSandbox(make(decided), directory, state, time.monotonic())
        except (OSError, StaddleError):
            return  # the next caller gets the error
        with self._lock:
            left_over, self._waiting = self._waiting, made
        self._expiry.wake()
        if left_over is not None:
            left_over.end()

    def _expire(self) -> float | None:
        with self._lock:
            found = self._waiting
            if found is None:
                return None
            age = time.monotonic() - found.since
            if age < _OLDEST:
                return _OLDEST - age
            self._waiting = None
        found.end()
        return None

    def close(self) -> None:
        """End the waiting sandbox."""
        with self._lock:
            found, self._waiting = self._waiting, None
        if found is not None:
            found.end()

    def end(self) -> None:
        """Stop for good: the program ends."""
        self._is_over = True
        self.close()

    def forsake(self) -> None:
        """Drop the waiting sandbox in a forked child: it belongs to the parent."""
        found, self._waiting, self._last = self._waiting, None, ()
        self._lock = threading.Lock()
        if found is not None:
            found.handle.agent.forsake()
            found.handle.shell.close()


def _as_asked(found: NextSandbox, settings: SandboxSettings) -> SandboxHandle | None:
    handle, workspace = found.handle, found.handle.workspace
    if (
        not isinstance(workspace, OverlayWorkspace)
        or settings.on_connect is not None
        or settings.workspace != found.directory
        or _state(settings.workspace) != found.state
        or not handle.agent.alive
        or has_ended(handle.shell.host_pid)  # killed, as when memory is short
    ):
        return None
    decided = decide(settings, "overlay", workspace.stand_in)
    if not _fits(decided, handle.decided):
        return None
    workspace.freezer = BaseFreezer(settings.policy, settings.env, settings.asks)
    workspace.begin_now()
    if handle.limits is not None:
        handle.limits.begin_now()
    return handle.replace(decided=decided)


def _state(directory: str | None) -> tuple[int, ...]:
    """Return the directory's identity, and the attributes that a layer above it has copied."""
    if directory is None:
        return ()
    found = os.stat(directory)
    return found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns


def _fits(decided: Decision, before: Decision) -> bool:
    return (
        decided.backend.name == before.backend.name
        and decided.plan == before.plan
        and (decided.bash, decided.is_filtered) == (before.bash, before.is_filtered)
        and decided.environment == before.environment
    )


def _is_simple(handle: SandboxHandle) -> bool:
    """Whether such a sandbox can be opened without a caller, and hides nothing in its workspace."""
    decided, workspace = handle.decided, handle.workspace
    return (
        isinstance(workspace, OverlayWorkspace)
        and not workspace.stack.store.is_persistent
        and not workspace.stack.store.small
        and not workspace.has_system
        and not decided.is_filtered
        and decided.plan.identity.uid != 0
        and decided.plan.world != "writable"
        and hides_nothing(decided.plan, decided.bash)
    )


NEXT = NextSandboxes()
atexit.register(NEXT.end)
os.register_at_fork(after_in_child=NEXT.forsake)
