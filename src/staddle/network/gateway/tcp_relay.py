"""Bytes from one socket to the other, as fast as they come and no faster than they go.

A flow is one direction. It reads into a buffer that all flows share and sends at once; only
what the other side does not take is kept, and then nothing more is read. So memory is bounded
by what is kept, and a slow reader slows down its own writer through the kernel, as if there
were nobody in between. The end of one direction is passed on by itself, and a reset is a reset.

A flow that has a lot to move borrows a pipe (see `pipes`), and its bytes are not copied at all.
"""

from __future__ import annotations

import _socket
import struct

from .pipes import Pipe, Pipes

#: Bytes moved in one go, how often in one turn, and how many before others have theirs.
CHUNK, TURNS, TURN = 256 * 1024, 8, 1024 * 1024
#: From this many bytes in one go on, a pipe is worth it; and down to how many it stays so.
LARGE, STILL_LARGE = 64 * 1024, 16 * 1024
#: When all flows together keep more than this, each keeps no more than a page.
MOST_KEPT, PAGE = 16 * 1024 * 1024, 4096

_NO_LINGER = struct.pack("ii", 1, 0)

#: What `Flow.move` says: wait for the kernel; there is more to do now; the direction has ended.
WAIT, AGAIN, ENDED = 0, 1, 2


class Budget:
    """What all flows share: the buffer, the pipes, and the count of what is kept and what was moved."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(CHUNK))
        self.pipes = Pipes()
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
        self.pipes.close()


class Flow:
    """From `source` to `sink`. Both are non-blocking; errors of either are raised by `move`."""

    __slots__ = ("_budget", "_kept", "_large", "_pipe", "_sink", "_source", "finished", "source_ended")

    def __init__(self, source: _socket.socket, sink: _socket.socket, budget: Budget) -> None:
        self._source, self._sink, self._budget = source, sink, budget
        self._kept: memoryview | None = None
        self._pipe: Pipe | None = None
        self._large = False
        self.source_ended = False
        self.finished = False

    def put(self, data: bytes) -> None:
        """Send this before anything that is read."""
        if data:
            self._keep(memoryview(data))

    def is_blocked(self) -> bool:
        """Whether something is kept that the sink did not take."""
        return self._kept is not None or self._pipe is not None

    def move(self, to_the_end: bool) -> int:
        """Move what can be moved. `to_the_end`: the source has ended, whatever a short read suggests."""
        if self.finished:
            return ENDED
        sink, budget = self._sink, self._budget
        until = budget.moved + TURN
        for _ in range(TURNS):
            if self.is_blocked() and not self._send_kept():
                return WAIT
            if self.source_ended:
                self.finished = True
                sink.shutdown(_socket.SHUT_WR)
                return ENDED
            if budget.exhausted():
                raise OverflowError("no more bytes may be moved")
            if self._large and not budget.is_tight() and (pipe := budget.pipes.take()) is not None:
                if not self._fill(pipe):
                    return WAIT
                if budget.moved >= until:
                    return AGAIN
                continue
            room = budget.room()
            try:
                count = self._source.recv_into(room)
            except BlockingIOError:
                return WAIT
            if not count:
                self.source_ended = True
                continue
            budget.moved += count
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

    def close(self) -> None:
        """Drop what is kept."""
        self._keep(None)
        if self._pipe is not None:
            self._budget.kept -= self._pipe.left
            self._return_pipe()

    def _fill(self, pipe: Pipe) -> bool:
        """Fill this pipe and empty it; False when one side has to be waited for."""
        self._pipe, budget = pipe, self._budget
        try:
            count = pipe.fill(self._source.fileno())
        except BlockingIOError:
            self._return_pipe()
            return False
        budget.moved += count
        budget.kept += count
        self._large = count >= STILL_LARGE
        self.source_ended = not count
        return self._empty_pipe()

    def _send_kept(self) -> bool:
        """Whether the sink took all that was kept for it."""
        kept = self._kept
        if kept is not None:
            try:
                sent = self._sink.send(kept)
            except BlockingIOError:
                return False
            self._keep(kept[sent:] if sent < len(kept) else None)
        return self._kept is None and self._empty_pipe()

    def _empty_pipe(self) -> bool:
        if self._pipe is None:
            return True
        self._budget.kept -= self._pipe.pour(self._sink.fileno())
        if self._pipe.left:
            return False
        self._return_pipe()
        return True

    def _return_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._budget.pipes.give_back(pipe)

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
