"""Bytes from one socket to the other, as fast as they come and no faster than they go.

A flow is one direction. It reads into a buffer that all flows share and sends at once; only
what the other side does not take is kept, and then nothing more is read. So memory is bounded
by what is kept, and a slow reader slows down its own writer through the kernel, as if there
were no relay in between. The end of one direction is passed on by itself, and a reset is a reset.

A flow that has a lot to move borrows a pipe, through which the kernel passes pages from one socket to
the other (splice): its bytes are not copied at all. It has the pipe for as long as bytes are in it. Only
an empty pipe comes back, so bytes of one connection never meet those of another.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import struct

#: Bytes moved in one go, how often in one turn, and how many before others have theirs.
CHUNK, TURNS, TURN = 256 * 1024, 8, 1024 * 1024
#: From this many bytes in one go on, a pipe is worth it; and down to how many it stays so.
LARGE, STILL_LARGE = 64 * 1024, 16 * 1024
#: When all flows together keep more than this, each keeps no more than a page.
MOST_KEPT, PAGE = 16 * 1024 * 1024, 4096

#: Bytes that a pipe holds, how many it has to hold at least, and how many pipes there are at most.
PIPE_SIZE, LEAST_PIPE_SIZE, MOST_PIPES = 1024 * 1024, 64 * 1024, 16
_SET_SIZE, _GET_SIZE = 1031, 1032  # F_SETPIPE_SZ, F_GETPIPE_SZ
_FLAGS = 1 | 2  # move, do not block
_NO_LINGER = struct.pack("ii", 1, 0)

#: What `Flow.move` says: wait for the kernel; there is more to do now; the direction has ended.
WAIT, AGAIN, ENDED = 0, 1, 2


class Pipe:
    """One pipe, and how many bytes are in it."""

    __slots__ = ("_reading", "_writing", "left")

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.left = 0
        try:
            fcntl.fcntl(self._writing, _SET_SIZE, PIPE_SIZE)
        except OSError:
            # The user has many pipes already, and this one stays small: perhaps too small to be of use.
            if fcntl.fcntl(self._writing, _GET_SIZE) < LEAST_PIPE_SIZE:
                self.close()
                raise

    def fill(self, source: int) -> int:
        """Take what the socket has, as much as fits; 0 at its end. Raises as `recv` does."""
        count = os.splice(source, self._writing, PIPE_SIZE, flags=_FLAGS)
        self.left += count
        return count

    def pour(self, sink: int) -> int:
        """Send what is in it, as far as the socket takes it. Raises as `send` does, but for a full one."""
        before = self.left
        try:
            while self.left:
                self.left -= os.splice(self._reading, sink, self.left, flags=_FLAGS)
        except BlockingIOError:
            pass
        return before - self.left

    def close(self) -> None:
        """Done with it, whatever is in it."""
        os.close(self._reading)
        os.close(self._writing)


class Pipes:
    """All pipes of a gateway: made when they are needed, never more than MOST_PIPES."""

    def __init__(self) -> None:
        self._free: list[Pipe] = []
        self._lent = 0

    def take(self) -> Pipe | None:
        """An empty one; None when there is none to be had, and bytes have to be copied."""
        if self._lent >= MOST_PIPES:
            return None
        try:
            pipe = self._free.pop() if self._free else Pipe()
        except OSError:
            return None  # no descriptors left, or no memory for pipes
        self._lent += 1
        return pipe

    def give_back(self, pipe: Pipe) -> None:
        """No longer needed. One that is not empty is closed."""
        self._lent -= 1
        if pipe.left:
            pipe.close()
        else:
            self._free.append(pipe)

    def close(self) -> None:
        """Done with all that are free."""
        for pipe in self._free:
            pipe.close()
        self._free.clear()


class Budget:
    """State that all flows share: the buffer, the pipes, and the bytes that are kept and were moved."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(CHUNK))
        self.pipes = Pipes()
        self.kept = 0
        self.moved = 0
        self.most_bytes = 0

    def is_tight(self) -> bool:
        """Whether so much is kept that no flow may keep much more."""
        return self.kept >= MOST_KEPT

    def room(self) -> memoryview:
        """Buffer for the next bytes."""
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
