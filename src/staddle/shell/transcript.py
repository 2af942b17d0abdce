"""Output of a process in the background, in the order it came, for its followers."""

from __future__ import annotations

import threading
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    StreamName = Literal["stdout", "stderr"]


class Transcript:
    """The last `limit` bytes of both streams, by their offset among all bytes that came. Thread-safe."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._pieces: deque[tuple[int, StreamName, bytes]] = deque()
        self._kept = 0
        self._news = threading.Condition()
        self.end = 0  # how many bytes came
        self.closed = False  # nothing more comes

    def feed(self, stream: StreamName, data: bytes) -> None:
        """Take the next bytes."""
        with self._news:
            self._pieces.append((self.end, stream, data))
            self.end += len(data)
            self._kept += len(data)
            while self._limit is not None and self._kept > self._limit and len(self._pieces) > 1:
                self._kept -= len(self._pieces.popleft()[2])
            self._news.notify_all()

    def close(self) -> None:
        """Mark the end of the output."""
        with self._news:
            self.closed = True
            self._news.notify_all()

    def since(self, offset: int) -> tuple[list[tuple[StreamName, bytes]], int]:
        """(what came from `offset` on, how many bytes of that are not kept any more)."""
        with self._news:
            pieces = list(self._pieces)
        first = pieces[0][0] if pieces else self.end
        lost = max(0, first - offset)
        found = [
            (stream, data[max(0, offset - start) :])
            for start, stream, data in pieces
            if start + len(data) > offset
        ]
        return found, lost

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Wait for something after `offset`, or the end of it all; whether either is there."""
        with self._news:
            return self._news.wait_for(lambda: self.end > offset or self.closed, timeout)
