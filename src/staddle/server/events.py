"""The events of a server: what happens in its sandboxes, in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

#: Events that are kept.
KEPT_EVENTS = 10_000


class EventLog:
    """The newest events of a server, each with a number. Thread-safe."""

    def __init__(self, most: int = KEPT_EVENTS) -> None:
        #: Number, time, kind, sandbox and facts of each: every command adds two, and few are ever read.
        self._kept: deque[tuple[int, float, str, str, dict[str, Any]]] = deque(maxlen=most)
        self.last = self._waiting = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: Events that threads hold back.
        self._held: dict[int, list[tuple[float, str, str, dict[str, Any]]]] = {}

    def add(self, kind: str, sandbox: str, **facts: Any) -> None:
        """Add an event."""
        event = (time.time(), kind, sandbox, facts)
        held = self._held.get(threading.get_ident())
        if held is None:
            self._add([event])
        else:
            held.append(event)

    def _add(self, events: list[tuple[float, str, str, dict[str, Any]]]) -> None:
        with self._lock:
            for event in events:
                self.last = last = self.last + 1
                self._kept.append((last, *event))
            if self._waiting:
                self._changed.notify_all()

    def hold_back(self) -> None:
        """Keep the events of this thread until it calls `catch_up`."""
        self._held[threading.get_ident()] = []

    def catch_up(self) -> None:
        """Add the events that this thread has held back. A second call does nothing."""
        held = self._held.pop(threading.get_ident(), None)
        if held:
            self._add(held)

    def after(self, number: int, seconds: float, sandbox: str = "", limit: int = 1000) -> dict[str, Any]:
        """Return the events after `number`; wait for one. `missed` are those that are not kept any more."""
        until = time.monotonic() + seconds
        with self._lock:
            while True:
                found = [
                    each for each in self._kept if each[0] > number and (not sandbox or each[3] == sandbox)
                ][:limit]
                left = until - time.monotonic()
                if found or left <= 0:
                    break
                self._waiting += 1
                try:
                    self._changed.wait(left)
                finally:
                    self._waiting -= 1
            first = self._kept[0][0] if self._kept else self.last + 1
            last = found[-1][0] if len(found) == limit else self.last
        events = [
            {"number": each, "at": at, "kind": kind, "sandbox": where, **facts}
            for each, at, kind, where, facts in found
        ]
        return {"events": events, "last": last, "missed": max(0, first - number - 1)}
