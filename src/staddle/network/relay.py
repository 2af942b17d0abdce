"""Bytes from one socket to the other, as fast as they come and no faster than they go.

A flow is one direction. It reads into a buffer that all flows share and sends at once; only
what the other side does not take is kept, and then nothing more is read. So memory is bounded
by what is kept, and a slow reader slows down its own writer through the kernel, as if there
were nobody in between. The end of one direction is passed on by itself, and a reset is a reset.

A flow that has a lot to move uses a pipe, also shared, through which the kernel passes the
pages themselves (splice). It is empty whenever a flow is done with it: bytes of one
connection never meet those of another.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import struct

#: Bytes moved in one go, and in one turn before others have theirs.
CHUNK, TURNS = 256 * 1024, 8
#: From this many bytes in one go on, the pipe is worth it; and how many it takes at a time.
LARGE, PIPE = 64 * 1024, 1024 * 1024
#: When all flows together keep more than this, each keeps no more than a page.
MOST_KEPT, PAGE = 16 * 1024 * 1024, 4096

_NO_LINGER = struct.pack("ii", 1, 0)

#: What `Flow.move` says: wait for the kernel; there is more to do now; the direction has ended.
WAIT, AGAIN, ENDED = 0, 1, 2
_SPLICE_FLAGS = 1 | 2  # move, do not block
_SET_PIPE_SIZE = 1031


class Budget:
    """What all flows share: the buffer, the pipe, and the count of what is kept and what was moved."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(CHUNK))
        self.pipe_out, self.pipe_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(self.pipe_in, _SET_PIPE_SIZE, PIPE)
        except OSError:
            pass  # the user has many pipes already: this one stays small
        self.kept = 0
        self.moved = 0
        self.most_bytes = 0

    def is_tight(self) -> bool:
        """Whether so much is kept that nobody may keep much more."""
        return self.kept >= MOST_KEPT

    def room(self) -> memoryview:
        """Where to read the next bytes."""
        return self.buffer[:PAGE] if self.is_tight() else self.buffer

    def exhausted(self) -> bool:
        """Whether no more may be moved."""
        return bool(self.most_bytes) and self.moved >= self.most_bytes

    def close(self) -> None:
        """Done with all of it."""
        os.close(self.pipe_out)
        os.close(self.pipe_in)


class Flow:
    """From `source` to `sink`. Both are non-blocking; errors of either are raised by `move`."""

    __slots__ = ("_budget", "_kept", "_large", "_sink", "_source", "finished", "source_ended")

    def __init__(self, source: _socket.socket, sink: _socket.socket, budget: Budget) -> None:
        self._source, self._sink, self._budget = source, sink, budget
        self._kept: memoryview | None = None
        self._large = False
        self.source_ended = False
        self.finished = False

    def put(self, data: bytes) -> None:
        """Send this before anything that is read."""
        if data:
            self._keep(memoryview(data))

    def is_blocked(self) -> bool:
        """Whether something is kept that the sink did not take."""
        return self._kept is not None

    def move(self, to_the_end: bool) -> int:
        """Move what can be moved. `to_the_end`: the source has ended, whatever a short read suggests."""
        if self.finished:
            return ENDED
        sink, budget = self._sink, self._budget
        until = budget.moved + PIPE
        for _ in range(TURNS):
            kept = self._kept
            if kept is not None:
                try:
                    sent = sink.send(kept)
                except BlockingIOError:
                    return WAIT
                self._keep(kept[sent:] if sent < len(kept) else None)
                if self._kept is not None:
                    return WAIT
            if self.source_ended:
                self.finished = True
                sink.shutdown(_socket.SHUT_WR)
                return ENDED
            if budget.exhausted():
                raise OverflowError("no more bytes may be moved")
            pages = self._large and not budget.is_tight()
            room = budget.room()
            try:
                if pages:
                    count = os.splice(self._source.fileno(), budget.pipe_in, PIPE, flags=_SPLICE_FLAGS)
                else:
                    count = self._source.recv_into(room)
            except BlockingIOError:
                return WAIT
            if not count:
                self.source_ended = True
                continue
            budget.moved += count
            if pages:
                if not self._empty_pipe(count):
                    return WAIT
                if budget.moved >= until:
                    return AGAIN
                continue
            self._large = count >= LARGE
            try:
                sent = sink.send(room[:count])
            except BlockingIOError:
                sent = 0
            if sent < count:
                self._keep(memoryview(bytes(room[sent:count])))
                return WAIT
            if count < len(room) and not to_the_end:
                return WAIT  # all there was; the kernel tells us of more
        return AGAIN

    def _empty_pipe(self, left: int) -> bool:
        """Send the `left` bytes that are in the pipe, or keep them. It is empty then, whatever happens."""
        budget, sink = self._budget, self._sink.fileno()
        try:
            while left:
                left -= os.splice(budget.pipe_out, sink, left, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            pass
        finally:
            parts = []
            while left:
                parts.append(os.read(budget.pipe_out, left))
                left -= len(parts[-1])
            if parts:
                self._keep(memoryview(b"".join(parts)))
        return not parts

    def close(self) -> None:
        """Drop what is kept."""
        self._keep(None)

    def _keep(self, data: memoryview | None) -> None:
        before = self._kept
        self._budget.kept += (len(data) if data is not None else 0) - (
            len(before) if before is not None else 0
        )
        self._kept = data


def reset(connection: _socket.socket) -> None:
    """Close so that the other side sees a reset, not an orderly end."""
    try:
        connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _NO_LINGER)
    except OSError:
        pass
    connection.close()
