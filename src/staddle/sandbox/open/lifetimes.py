"""Close sandboxes after `limits.max_lifetime`, or after `limits.idle` without a command.

One thread serves all sandboxes with such a limit; the first one starts it.
"""

from __future__ import annotations

import time
from weakref import ref

from ...background import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
    from weakref import ReferenceType

    from ...policy.limits import Limits

    class TimedSandbox(Protocol):
        """Part of a sandbox that its timer uses."""

        @property
        def _last_asked(self) -> float: ...
        @property
        def _is_open(self) -> bool: ...
        @property
        def _in_use(self) -> bool: ...
        def _end(self, why: str) -> None: ...


#: The most seconds between two checks of a sandbox in use.
_OFTEN = 1.0


class _Life:
    """One sandbox, and the last time it was seen in use."""

    def __init__(self, sandbox: TimedSandbox, limits: Limits) -> None:
        self.sandbox: ReferenceType[TimedSandbox] = ref(sandbox)
        self.limits = limits
        self.began = time.monotonic()
        self.used = self.began

    def due(self, sandbox: TimedSandbox, now: float) -> tuple[float, str]:
        """Return when it ends or is checked again, and the limit that ends it if that is now."""
        limits = self.limits
        whole = float("inf") if limits.max_lifetime is None else self.began + limits.max_lifetime
        if whole <= now:
            return now, "max_lifetime"
        if limits.idle is None:
            return whole, ""
        if sandbox._in_use:
            self.used = now
            return min(whole, now + min(limits.idle, _OFTEN)), ""
        idle = max(self.used, sandbox._last_asked) + limits.idle
        return (now, "idle") if idle <= now else (min(whole, idle), "")


class Lifetimes:
    """All sandboxes of this process with a time limit."""

    def __init__(self) -> None:
        self._lives: list[_Life] = []  # no lock: only append and remove
        self._worker = Worker(self._end_due, self._lives.clear)

    def watch(self, sandbox: TimedSandbox, limits: Limits) -> None:
        """Close `sandbox` according to `limits`."""
        self._lives.append(_Life(sandbox, limits))
        self._worker.wake()

    def set_end(self, sandbox: TimedSandbox, limits: Limits) -> None:
        """Replace the limits of `sandbox`."""
        for life in [life for life in self._lives if life.sandbox() is sandbox]:
            self._lives.remove(life)
        if limits.max_lifetime is not None or limits.idle is not None:
            self.watch(sandbox, limits)

    def extend(self, sandbox: TimedSandbox, seconds: float) -> float | None:
        """Extend its lifetime. Returns the seconds left, or None if it has no limit."""
        for life in [life for life in self._lives if life.sandbox() is sandbox]:
            if life.limits.max_lifetime is not None:
                longer = life.limits.max_lifetime + seconds
                life.limits = life.limits.replace(max_lifetime=longer)
                self._worker.wake()
                return life.began + longer - time.monotonic()
        return None

    def _end_due(self) -> float | None:
        """End sandboxes whose time is up. Returns the seconds until the next one."""
        over, wait = self._look()
        if not over:
            return wait
        while over:
            sandbox, limit = over.pop()
            sandbox._end(f"its time was up (limits.{limit})")
            del sandbox
        return 0.0

    def _look(self) -> tuple[list[tuple[TimedSandbox, str]], float | None]:
        """Return the sandboxes whose time is up, and the seconds until the next one."""
        now = time.monotonic()
        over: list[tuple[TimedSandbox, str]] = []
        soonest = float("inf")
        for life in list(self._lives):
            sandbox = life.sandbox()
            if sandbox is None or not sandbox._is_open:
                self._lives.remove(life)
                continue
            when, limit = life.due(sandbox, now)
            if limit:
                self._lives.remove(life)
                over.append((sandbox, limit))
            soonest = min(soonest, when)
        return over, None if soonest == float("inf") else max(0.0, soonest - now)


LIFETIMES = Lifetimes()
