"""`Pool`: sandboxes opened in advance, handed out at once, each used once.

    with Pool(4, workspace="project") as pool:
        with pool.sandbox() as sb:
            sb.run("make test")

The next user must not find what the previous one left: a released sandbox is closed, and a fresh one replaces
it.

All sandboxes share one copy of a small workspace below their layers, so that edits on the host do not reach a
sandbox in use. If the host has changed the directory since the copy, acquire() closes the waiting sandboxes
and opens new ones with a new copy.
"""

from __future__ import annotations

import threading
import time

from .. import check
from ..errors import InvalidCall, PoolExhausted, SandboxClosed
from ..policy.limits import LONGEST_TIMEOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Self

    from .sandbox import Sandbox

#: Seconds before prewarming is retried after a failure.
_AFTER_FAILURE = 5.0


class Pool:
    """Holds at most `size` sandboxes, `minimum` of them (default: all) always warm.

    Beyond `minimum`, a sandbox that is warm and unused for `idle` seconds is closed. The other arguments are
    those of Sandbox, but `freeze` defaults to None: a small workspace is frozen. All methods are thread-safe.
    """

    def __init__(
        self, size: int, *, minimum: int | None = None, idle: float | None = 300.0, **options: Any
    ) -> None:
        self._size = check.count("size", size)
        self._minimum = self._size if minimum is None else check.count("minimum", minimum, 0, self._size)
        self._idle = None if idle is None else check.seconds("idle", idle, None, LONGEST_TIMEOUT)
        self._open = _opener(options)
        self._lock = threading.RLock()  # held directly: a signal can arrive within a Condition's `with`
        self._changed = threading.Condition(self._lock)
        self._warm: list[tuple[Sandbox, float]] = []  # newest last, with the time it became warm
        self._taken: set[Sandbox] = set()
        self._leaving: list[Sandbox] = []
        self._opening = 0
        self._busiest = 0  # the most in use at once since the last eviction
        self._not_before = 0.0
        self._closed = False
        self._attendant = threading.Thread(target=self._attend, name="staddle-pool", daemon=True)
        self._attendant.start()

    # For users.

    def acquire(self, timeout: float | None = None) -> Sandbox:
        """Take an unused sandbox. Waits at most `timeout` seconds for one to become free."""
        if timeout is not None:
            check.seconds("timeout", timeout, 0, fix="give a number such as 5, or None")
        until = None if timeout is None else time.monotonic() + timeout
        while (sandbox := self._waited(until, timeout)) is not None:
            try:
                if _is_current(sandbox):
                    sandbox._now().main._shell.wake()
                    return sandbox
            except BaseException:
                self._replace_stale(sandbox)  # the caller does not get it
                raise
            self._replace_stale(sandbox)
        return self._open_here()

    def _waited(self, until: float | None, timeout: float | None) -> Sandbox | None:
        """Take a warm sandbox, or return None if the caller must open one."""
        with self._lock:
            while True:
                self._refuse_closed()
                if self._warm:
                    sandbox, _ = self._warm.pop()
                    if not sandbox.alive:
                        self._leaving.append(sandbox)
                        self._changed.notify_all()
                        continue
                    self._take(sandbox)
                    return sandbox
                if self._all() < self._size:
                    self._opening += 1
                    return None
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise PoolExhausted(
                        f"no sandbox became free in {timeout:g} seconds",
                        why=f"all {self._size} are in use",
                        fix="release them sooner, or make the pool larger",
                    )
                self._changed.wait(left)

    def _replace_stale(self, sandbox: Sandbox) -> None:
        """Close a taken sandbox and the waiting frozen ones: the host has changed their workspace."""
        with self._lock:
            self._taken.discard(sandbox)
            frozen = [one for one, _ in self._warm if not one.alive or one.frozen]
            self._warm = [(one, since) for one, since in self._warm if one not in frozen]
            self._leaving += [sandbox, *frozen]
            self._changed.notify_all()

    def release(self, sandbox: Sandbox) -> None:
        """Return a sandbox to the pool, which closes it; a fresh one replaces it."""
        with self._lock:
            if sandbox not in self._taken:
                if self._closed:
                    return
                raise InvalidCall(
                    "this sandbox is not taken from the pool",
                    why="it is not of this pool, or was released",
                    fix="release each sandbox once, to the pool that it is from",
                )
            self._taken.discard(sandbox)
            self._leaving.append(sandbox)
            self._changed.notify_all()

    def sandbox(self, timeout: float | None = None) -> Borrowed:
        """Return a context manager that acquires a sandbox and releases it at the end of the block."""
        return Borrowed(self, timeout)

    def close(self) -> None:
        """Close all sandboxes of the pool, including those in use. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            leaving = [*self._taken, *(sandbox for sandbox, _ in self._warm)]
            self._taken.clear()
            self._warm.clear()
            self._changed.notify_all()
        for sandbox in leaving:
            sandbox.close()
        self._attendant.join()

    @property
    def warm(self) -> int:
        """Number of sandboxes ready to be taken."""
        return len(self._warm)

    @property
    def in_use(self) -> int:
        """Number of sandboxes that are taken."""
        return len(self._taken)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.warm} warm, {self.in_use} in use"
        return f"<Pool of {self._size}: {state}>"

    # The caller's thread.

    def _all(self) -> int:
        return len(self._warm) + len(self._taken) + self._opening

    def _take(self, sandbox: Sandbox) -> None:
        self._taken.add(sandbox)
        self._busiest = max(self._busiest, len(self._taken))
        if self._may_open():  # else the attendant would only delay the first command
            self._changed.notify_all()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxClosed("the pool is closed", fix="make a new one", why="close() was called")

    def _open_here(self) -> Sandbox:
        """Open a sandbox in the caller's thread because none is warm. Errors go to the caller."""
        try:
            sandbox = self._open()
        except BaseException:
            with self._lock:
                self._opening -= 1
                self._changed.notify_all()
            raise
        with self._lock:
            self._opening -= 1
            if not self._closed:
                self._take(sandbox)
                return sandbox
        sandbox.close()
        self._refuse_closed()
        raise AssertionError("a pool that was closed is open again: this is a bug, please report it")

    # The attendant's thread prewarms sandboxes and closes released ones.

    def _attend(self) -> None:
        while True:
            with self._lock:
                while not (self._leaving or self._closed or self._may_open() or self._stale()):
                    self._changed.wait(self._patience())
                leaving = [*self._leaving, *self._evicted()]
                self._leaving.clear()
                opening = not self._closed and self._may_open()
                if self._closed and not leaving:
                    return
                self._opening += opening
            for sandbox in leaving:
                sandbox.close()
            if opening:
                self._prewarm()

    def _prewarm(self) -> None:
        try:
            sandbox = self._open()
            sandbox._now().main._shell.prewarm()
        except Exception:
            # The next caller retries in its own thread, and gets the error.
            with self._lock:
                self._opening -= 1
                self._not_before = time.monotonic() + _AFTER_FAILURE
                self._changed.notify_all()
            return
        with self._lock:
            self._opening -= 1
            if self._closed:
                self._leaving.append(sandbox)
            else:
                self._warm.append((sandbox, time.monotonic()))
            self._changed.notify_all()

    def _may_open(self) -> bool:
        wanted = max(self._minimum, self._busiest - len(self._taken))
        few = len(self._warm) + self._opening < wanted and self._all() < self._size
        return few and time.monotonic() >= self._not_before

    def _stale(self) -> bool:
        if self._idle is None or len(self._warm) <= self._minimum:
            return False
        return time.monotonic() >= self._warm[0][1] + self._idle

    def _evicted(self) -> list[Sandbox]:
        gone: list[Sandbox] = []
        while self._stale():
            gone.append(self._warm.pop(0)[0])
            self._busiest = len(self._taken) + len(self._warm)
        return gone

    def _patience(self) -> float | None:
        now = time.monotonic()
        moments = [self._not_before] if self._not_before > now else []
        if self._idle is not None and len(self._warm) > self._minimum:
            moments.append(self._warm[0][1] + self._idle)
        return max(0.0, min(moments) - now) if moments else None


class Borrowed:
    """A sandbox of a pool for the duration of a `with` block."""

    def __init__(self, pool: Pool, timeout: float | None) -> None:
        self._pool = pool
        self._timeout = timeout
        self._sandbox: Sandbox | None = None

    def __enter__(self) -> Sandbox:
        self._sandbox = self._pool.acquire(self._timeout)
        return self._sandbox

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._sandbox is not None:
            self._pool.release(self._sandbox)


def _opener(options: dict[str, Any]) -> Callable[[], Sandbox]:
    from .sandbox import Sandbox

    options = {"freeze": None, **options}
    Sandbox.check(**options)  # an invalid policy raises here, not in the attendant

    def opened() -> Sandbox:
        sandbox = Sandbox(**options)
        try:
            sandbox._warm_up()
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    return opened


def _is_current(sandbox: Sandbox) -> bool:
    """Whether its workspace equals the host's. Walks the directory if a copy is below the layers."""
    workspace = sandbox._now().workspace
    return workspace is None or workspace.is_current
