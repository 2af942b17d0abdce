"""The next sandbox for the same directory, opened before it is asked for.

A program that has opened two sandboxes of one plan for one directory will open a third, so one is opened in
advance while no caller waits. Nothing has run in it. It is used only while the directory is the same one in
the same state, and only where nothing in the workspace is hidden: a file that is to be hidden may have come
since. One that fits nobody is ended soon.
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

#: How long one waits for a caller, in seconds.
_OLDEST = 10.0
#: Open files that others can have, at least, while one waits.
_FREE = 256


class NextSandbox(Value):
    """A sandbox that waits, for a directory in the state that it had when this was opened."""

    handle: SandboxHandle
    directory: str | None
    state: tuple[int, ...]
    since: float

    def end(self) -> None:
        """End a sandbox that is not wanted."""
        self.handle.agent.close()
        self.handle.shell.close()


class NextSandboxes:
    """At most one that waits, of the kind that was opened last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: NextSandbox | None = None
        self._last: tuple[object, ...] = ()
        self._count = 0
        self._is_over = False
        self._expiry = Worker(self._expire, self.forsake)

    def take(self, settings: SandboxSettings) -> SandboxHandle | None:
        """Take the one that waits, if it is as a new one with these settings would be; else it is ended."""
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
        """Note a sandbox that was opened with new layers; have the next one made after two of a kind."""
        self._count += 1
        kind = settings.workspace, handle.decided.plan
        is_usual, self._last = self._last == kind, kind
        if is_usual and settings.on_connect is None and _is_simple(handle):
            number = self._count
            do_later(lambda: self._make(settings.workspace, handle.decided, make, number))

    def _make(self, directory: str | None, decided: Decision, make: Open, number: int) -> None:
        if self._waiting is not None or self._is_over or number != self._count:
            return  # who opens them one after the other is not to wait for this
        if open_files.count() + _FREE > open_files.limit():
            return
        try:
            state = _state(directory)
            made = NextSandbox(make(decided), directory, state, time.monotonic())
        except (OSError, StaddleError):
            return  # the caller that needs one gets the error
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
        """End the one that waits."""
        with self._lock:
            found, self._waiting = self._waiting, None
        if found is not None:
            found.end()

    def end(self) -> None:
        """The program ends: there is no next sandbox."""
        self._is_over = True
        self.close()

    def forsake(self) -> None:
        """In a fork of the program: the one that waits is the parent's."""
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
        or has_ended(handle.shell.host_pid)  # killed, as when memory is needed
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
    """The identity of the directory, and what a layer above it has taken over from it."""
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
    """Whether one like this can be made without a caller, and nothing in its workspace is hidden."""
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
