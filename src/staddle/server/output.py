"""Output of a command or a terminal: the last bytes, each with its offset from the beginning."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right

#: The streams, by the number that a frame begins with. DROPPED has a count of bytes in place of the bytes.
DROPPED, STDOUT, STDERR = 0, 1, 2
#: The media type of frames.
FRAMES = "application/vnd.staddle.frames"
#: The most bytes of a piece, and the memory that a piece takes beside its bytes.
_PIECE, _OVERHEAD = 64 << 10, 200
#: Larger pieces are not copied into one another.
_SMALL = 4096
#: Seconds that a held command waits for a reader that does not come back.
PATIENCE = 60.0


class OutputLog:
    """The newest `most` bytes of an output. Thread-safe.

    A reader asks for the bytes from an offset on, so a lost connection loses and repeats nothing. What a
    reader asks for too late is gone, and the reply says so. With `hold`, `add` waits instead while more than
    `most` bytes are unread, for at most PATIENCE seconds after the last request of the reader.
    """

    def __init__(self, most: int, *, hold: bool = False) -> None:
        self.most, self.hold = most, hold
        self.start = self.end = 0
        self.closed = False
        self._starts: list[int] = []
        self._pieces: list[tuple[int, bytes | bytearray]] = []
        self._size = 0
        self._read = 0  # the reader of a held output has all before this
        self._asked = time.monotonic()
        self._lock = threading.Lock()
        self._condition: threading.Condition | None = None  # made by the first that waits

    @property
    def _changed(self) -> threading.Condition:
        """Notified after every change. Its lock is ours, and has to be held."""
        if self._condition is None:
            self._condition = threading.Condition(self._lock)
        return self._condition

    def _notify(self) -> None:
        if self._condition is not None:
            self._condition.notify_all()

    def add(self, stream: int, data: bytes) -> None:
        """Add bytes at the end."""
        with self._lock:
            while self.hold and self._size >= self.most and not self.closed:
                left = self._asked + PATIENCE - time.monotonic()
                if left <= 0:
                    self.hold = False  # nobody reads: the newest bytes are kept from now on
                    break
                self._changed.wait(left)
            last = self._pieces[-1] if self._pieces else (0, b"")
            if last[0] == stream and isinstance(last[1], bytearray) and len(last[1]) < _PIECE:
                last[1].extend(data)
            else:
                self._starts.append(self.end)
                self._pieces.append((stream, data if len(data) >= _SMALL else bytearray(data)))
                self._size += _OVERHEAD
            self._size += len(data)
            self.end += len(data)
            self._forget()
            self._notify()

    def skip(self, count: int) -> None:
        """Count bytes that were lost before they arrived here."""
        with self._lock:
            self._starts, self._pieces, self._size = [], [], 0
            self.end += count
            self.start = self.end

    def _forget(self) -> None:
        """Make room: drop the oldest pieces; of a held output only those that were read."""
        count = 0
        while count < len(self._pieces):
            data = self._pieces[count][1]
            is_read = self.hold and self._starts[count] + len(data) <= self._read
            is_last = count == len(self._pieces) - 1
            if self._size < self.most or (not is_read and (self.hold or is_last)):
                break
            self._size -= len(data) + _OVERHEAD
            count += 1
        if count:
            del self._starts[:count], self._pieces[:count]
            self.start = self._starts[0] if self._starts else self.end

    def close(self) -> None:
        """No more bytes will come."""
        with self._lock:
            self.closed = True
            self._notify()

    @property
    def size(self) -> int:
        """Bytes of memory that it takes."""
        return self._size

    def wait(self, offset: int, seconds: float) -> bool:
        """Wait for bytes after `offset`, or for the end. Returns whether there are bytes."""
        with self._lock:
            if self.end <= offset and not self.closed:
                self._changed.wait_for(lambda: self.end > offset or self.closed, seconds)
            return self.end > offset

    def wait_closed(self, seconds: float) -> None:
        """Wait for the end."""
        with self._lock:
            if not self.closed:
                self._changed.wait_for(lambda: self.closed, seconds)

    def taken(self, offset: int) -> None:
        """The reader of a held output has all bytes before `offset`."""
        with self._lock:
            self._asked = time.monotonic()
            if offset > self._read:
                self._read = min(offset, self.end)
                self._forget()
                self._notify()

    def read(self, offset: int, limit: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the offset of the first byte (`offset`, or later), and pieces of at most `limit`."""
        with self._lock:
            begin = max(offset, self.start)
            found: list[tuple[int, bytes]] = []
            at = max(bisect_right(self._starts, begin) - 1, 0)
            position = begin
            for start, (stream, data) in zip(self._starts[at:], self._pieces[at:], strict=True):
                if limit <= 0:
                    break
                if position == start and len(data) <= limit and isinstance(data, bytes):
                    part = data  # not copied
                else:
                    part = bytes(memoryview(data)[position - start : position - start + limit])
                if part:
                    found.append((stream, part))
                    limit -= len(part)
                    position += len(part)
            return begin, found


def frames(begin: int, offset: int, pieces: list[tuple[int, bytes]]) -> list[bytes]:
    """Return the parts of frames: a byte for the stream, three zeros, four bytes of length, the data."""
    found = (
        []
        if begin <= offset
        else [bytes((DROPPED, 0, 0, 0, 0, 0, 0, 8)) + (begin - offset).to_bytes(8, "big")]
    )
    for stream, data in pieces:
        found += (stream.to_bytes(4, "little"), len(data).to_bytes(4, "big"), data)
    return found
