"""Queue of reports and questions from sandboxes' threads to the UI. Loads no textual.

feed = EventFeed()
Sandbox(".", audit=feed.record, on_connect=feed.on_connect)
feed.wake = loop.call_soon_threadsafe, ...     # called when there is something to take
feed.take()                                    # lines for the log
feed.questions()                               # connections that wait for an answer
"""

from __future__ import annotations

import threading
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from staddle import Event

#: Records that wait to be taken. More are dropped, the oldest first.
_WAITING = 5000
#: Seconds for which a connection waits for the user's answer.
PATIENCE = 60.0


class ConnectionQuestion:
    """A connection inside that waits for an answer."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.until = time.monotonic() + PATIENCE
        self.allowed = False
        self.decided = threading.Event()

    def answer(self, allowed: bool) -> None:
        """Decide. The first answer counts."""
        if not self.decided.is_set():
            self.allowed = allowed
            self.decided.set()


class EventFeed:
    """Records and questions of all sandboxes of one UI. Thread-safe."""

    def __init__(self, *, asks: bool = True) -> None:
        self.asks = asks
        #: What may be connected to in this session: `host:port`, or a host for every port.
        self.allowed: set[str] = set()
        #: What is not asked about again.
        self.refused: set[str] = set()
        self.wake: Callable[[], object] | None = None
        self._records: deque[dict[str, Any]] = deque(maxlen=_WAITING)
        self._questions: list[ConnectionQuestion] = []
        self._lock = threading.Lock()
        self._closed = False

    def record(self, record: dict[str, Any]) -> None:
        """Take a line of an audit log."""
        self._records.append(record)
        self._tell()

    def take(self) -> list[dict[str, Any]]:
        """Return the records since the last call."""
        found = []
        while self._records:
            found.append(self._records.popleft())
        return found

    def on_connect(self, event: Event) -> bool | None:
        """Wait for the user's answer about a connection; no answer is a no.

        A no is None, which nobody remembers but us: the user may change their mind.
        """
        if self.permits(event.what):
            return True
        if not self.asks or self._closed or event.what in self.refused:
            return None
        question = ConnectionQuestion(event)
        with self._lock:
            self._questions.append(question)
        self._tell()
        question.decided.wait(max(0.0, question.until - time.monotonic()))
        with self._lock:
            self._questions.remove(question)
        self._tell()
        return True if question.allowed else None

    def permits(self, what: str) -> bool:
        """Whether the user has allowed this destination for the session."""
        return what in self.allowed or what.rpartition(":")[0] in self.allowed

    def questions(self) -> list[ConnectionQuestion]:
        """The connections that wait, the oldest first."""
        with self._lock:
            return [question for question in self._questions if not question.decided.is_set()]

    def close(self) -> None:
        """Refuse what waits, and everything from now on."""
        self._closed = True
        self.wake = None
        for question in self.questions():
            question.answer(False)

    def _tell(self) -> None:
        wake = self.wake
        if wake is not None:
            try:
                wake()
            except RuntimeError:
                pass  # the UI has ended meanwhile
