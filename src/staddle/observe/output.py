"""Buffers that bound the captured output of a command."""

from __future__ import annotations

#: Maximum bytes that a command may print to a stream without a reader. A command that prints more never ends.
FLOOD = 1 << 30
#: Pieces of this size are kept as they are; smaller ones are collected.
_LARGE = 16 << 10


class OutputFlood(Exception):
    """Raised by a sink when a command has printed more than FLOOD. It ends the command (`output_limit`)."""

    why = "it printed more than 1 GiB, most of which was discarded (limits.output)"


class Tail:
    """Keeps the last `limit` bytes of a stream, and counts the bytes before them.

    For an agent's tools, because the last output of a failing command matters most. Up to exactly `limit`
    bytes nothing is dropped; None keeps everything.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._parts: list[bytes | bytearray] = []
        self._size = self.total = 0

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        parts, size = self._parts, len(data)
        self.total += size
        self._size += size
        if size >= _LARGE:
            parts.append(data)  # not copied
        else:
            if not parts or not isinstance(parts[-1], bytearray) or len(parts[-1]) >= _LARGE:
                parts.append(bytearray())
            parts[-1] += data
        if self._limit is not None:
            while parts and self._size - len(parts[0]) >= self._limit:
                self._size -= len(parts.pop(0))

    @property
    def dropped(self) -> int:
        """The number of dropped bytes at the beginning."""
        return 0 if self._limit is None else max(0, self.total - self._limit)

    def value(self) -> bytes:
        """Return the kept bytes."""
        return b"".join(self._parts)[self._size - (self.total - self.dropped) :]


class HeadTail:
    """Keeps the first and the last bytes of a stream within `limit`, and counts the rest.

    Half of the limit is for the head, half for the tail, so that both the first error and the last line
    survive. Up to exactly `limit` bytes nothing is dropped; None keeps everything.
    """

    #: Whether it relays the stream, and keeps nothing.
    is_relay = False

    def __init__(self, limit: int | None) -> None:
        self._head_size = None if limit is None else (limit + 1) // 2
        self._head = bytearray()
        self._tail = Tail(0 if limit is None else limit // 2)
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self.total += len(data)
        if self._head_size is None:
            self._head += data
            return
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.feed(data)

    @property
    def dropped(self) -> int:
        """The number of dropped bytes in the middle."""
        return self._tail.dropped

    @property
    def cut(self) -> int:
        """Offset of the head's end in the kept bytes, or 0 if nothing was dropped."""
        return len(self._head) if self.dropped else 0

    def value(self) -> bytes:
        """Return the kept bytes: the head, then the tail."""
        return bytes(self._head) + self._tail.value() if self._tail.total else bytes(self._head)
