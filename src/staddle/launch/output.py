"""Output that stays bounded however much is printed."""

from __future__ import annotations

#: Bytes that a command may print to a stream that has no reader. One that prints more has no end.
FLOOD = 1 << 30


class OutputFlood(Exception):
    """A sink raises this when a command has printed more than FLOOD. It ends the command (`output_limit`)."""

    why = "it printed more than 1 GiB, most of which was discarded (limits.output)"


class Tail:
    """Keeps the last `limit` bytes of a stream, and counts what went before.

    For an agent's tools: what a failing command said last is what matters. Nothing is
    dropped up to exactly `limit` bytes; None keeps all.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        if self._limit is None:
            self._kept += data
        elif len(data) >= self._limit:
            self._kept[:] = data[len(data) - self._limit :]
        else:
            self._kept += data
            if len(self._kept) > 2 * self._limit:  # cut rarely: a cut moves the whole tail
                del self._kept[: -self._limit]

    @property
    def dropped(self) -> int:
        """The number of bytes at the beginning that were not kept."""
        return 0 if self._limit is None else max(0, self.total - self._limit)

    def value(self) -> bytes:
        """The kept bytes."""
        return bytes(self._kept[max(0, len(self._kept) - (self.total - self.dropped)) :])


class HeadTail:
    """Keeps the first and the last bytes of a stream within `limit`, and counts the rest.

    Half of the limit is for the head, half for the tail, so that both the first error and
    the last line survive. Nothing is dropped up to exactly `limit` bytes; None keeps all.
    """

    #: Whether it passes the stream on, and keeps nothing.
    is_relay = False

    def __init__(self, limit: int | None) -> None:
        self._head_size = None if limit is None else (limit + 1) // 2
        self._head = bytearray()
        self._tail = Tail(0 if limit is None else limit // 2)
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
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
        """The number of bytes in the middle that were not kept."""
        return self._tail.dropped

    @property
    def cut(self) -> int:
        """Offset of the head's end in the kept bytes, if something was dropped after it."""
        return len(self._head) if self.dropped else 0

    def value(self) -> bytes:
        """The kept bytes: the head, then the tail."""
        return bytes(self._head) + self._tail.value() if self._tail.total else bytes(self._head)
