"""Relay bytes between two sockets, with backpressure.

A flow is one direction. It reads into a buffer that all flows share and sends at once. It keeps only bytes
that the other side does not accept, and then stops reading. So memory is bounded, and a slow reader slows
down its own writer through the kernel, as without a relay. The end of one direction is passed on alone, and a
reset is passed on as a reset.

A flow with much data borrows a pipe, through which the kernel moves pages between the sockets (splice)
without copying bytes. It has the pipe for as long as bytes are in it. Only empty pipes are reused, so bytes
of two connections never mix.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import struct

#: Bytes per read, reads per turn, and bytes per turn before other flows get theirs.
CHUNK, TURNS, TURN = 256 * 1024, 8, 1024 * 1024
#: A flow uses a pipe after a read of LARGE bytes, and while its reads have at least STILL_LARGE.
LARGE, STILL_LARGE = 64 * 1024, 16 * 1024
#: If all flows together keep more than MOST_KEPT bytes, each reads at most a page.
MOST_KEPT, PAGE = 16 * 1024 * 1024, 4096

#: Wanted capacity of a pipe, its minimum capacity, and the maximum number of pipes.
PIPE_SIZE, LEAST_PIPE_SIZE, MOST_PIPES = 1024 * 1024, 64 * 1024, 16
_SET_SIZE, _GET_SIZE = 1031, 1032  # F_SETPIPE_SZ, F_GETPIPE_SZ
_FLAGS = 1 | 2  # SPLICE_F_MOVE, SPLICE_F_NONBLOCK
_NO_LINGER = struct.pack("ii", 1, 0)

#: Results of `Flow.move`: wait for the kernel; there is more to do now; the direction has ended.
WAIT, AGAIN, ENDED = 0, 1, 2


class Pipe:
    """One pipe and the number of bytes in it."""

    __slots__ = ("_reading", "_writing", "left")

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.left = 0
        try:
            fcntl.fcntl(self._writing, _SET_SIZE, PIPE_SIZE)
        except OSError:
            # The user has many pipes, so the kernel refuses to enlarge this one. It may be too small for use.
            if fcntl.fcntl(self._writing, _GET_SIZE) < LEAST_PIPE_SIZE:
                self.close()
                raise

    def fill(self, source: int) -> int:
        """Move bytes from the socket into the pipe. Returns 0 at the end. Raises as `recv` does."""
        count = os.splice(source, self._writing, PIPE_SIZE, flags=_FLAGS)
        self.left += count
        return count

    def pour(self, sink: int) -> int:
        """Move bytes from the pipe to the socket. Raises as `send` does, except if the socket is full."""
        before = self.left
        try:
            while self.left:
                self.left -= os.splice(self._reading, sink, self.left, flags=_FLAGS)
        except BlockingIOError:
            pass
        return before - self.left

    def close(self) -> None:
        """Close the pipe and discard its bytes."""
        os.close(self._reading)
        os.close(self._writing)


class Pipes:
    """The pipes of a gateway. Creates them on demand, at most MOST_PIPES."""

    def __init__(self) -> None:
        self._free: list[Pipe] = []
        self._lent = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe, or None if none is available and bytes have to be copied."""
        if self._lent >= MOST_PIPES:
            return None
        try:
            pipe = self._free.pop() if self._free else Pipe()
        except OSError:
            return None  # no descriptors left, or no memory for pipes
        self._lent += 1
        return pipe

    def give_back(self, pipe: Pipe) -> None:
        """Return a pipe. It is closed if it is not empty."""
        self._lent -= 1
        if pipe.left:
            pipe.close()
        else:
            self._free.append(pipe)

    def close(self) -> None:
        """Close all free pipes."""
        for pipe in self._free:
            pipe.close()
        self._free.clear()


class Budget:
    """State that all flows share: the buffer, the pipes, and the numbers of kept and moved bytes."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(CHUNK))
        self.pipes = Pipes()
        self.kept = 0
        self.moved = 0
        self.most_bytes = 0

    def is_tight(self) -> bool:
        """Whether flows keep so many bytes that none may keep much more."""
        return self.kept >= MOST_KEPT

    def room(self) -> memoryview:
        """Return the buffer for the next read."""
        return self.buffer[:PAGE] if self.is_tight() else self.buffer

    def exhausted(self) -> bool:
        """Whether the byte limit is reached."""
        return bool(self.most_bytes) and self.moved >= self.most_bytes

    def close(self) -> None:
        """Close the pipes."""
        self.pipes.close()


class Flow:
    """One direction, from `source` to `sink`. Both are non-blocking; `move` raises the errors of either."""

    __slots__ = ("_budget", "_kept", "_large", "_pipe", "_sink", "_source", "finished", "source_ended")

    def __init__(self, source: _socket.socket, sink: _socket.socket, budget: Budget) -> None:
        self._source, self._sink, self._budget = source, sink, budget
        self._kept: memoryview | None = None
        self._pipe: Pipe | None = None
        self._large = False
        self.source_ended = False
        self.finished = False

    def put(self, data: bytes) -> None:
        """Send `data` before anything that is read."""
        if data:
            self._keep(memoryview(data))

    def is_blocked(self) -> bool:
        """Whether the flow keeps bytes that the sink did not accept."""
        return self._kept is not None or self._pipe is not None

    def move(self, to_the_end: bool) -> int:
        """Move bytes as far as possible. `to_the_end`: the source has ended, so read on after short reads."""
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
                return WAIT  # nothing left; the kernel reports new data
        return AGAIN

    def close(self) -> None:
        """Discard kept bytes and return the pipe."""
        self._keep(None)
        if self._pipe is not None:
            self._budget.kept -= self._pipe.left
            self._return_pipe()

    def _fill(self, pipe: Pipe) -> bool:
        """Fill the pipe and empty it; False if a side would block."""
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
        """Send the kept bytes; True if the sink accepted all of them."""
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
