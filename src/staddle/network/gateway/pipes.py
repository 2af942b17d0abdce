"""Pipes that flows borrow, through which the kernel passes pages from one socket to another (splice).

A flow has one for as long as bytes are in it: what its reader does not take waits there, and is
not copied. Only an empty pipe comes back, so bytes of one connection never meet those of another.
"""

from __future__ import annotations

import fcntl
import os

#: Bytes that a pipe holds, how many it has to hold at least, and how many pipes there are at most.
SIZE, LEAST, MOST = 1024 * 1024, 64 * 1024, 16
_SET_SIZE, _GET_SIZE = 1031, 1032  # F_SETPIPE_SZ, F_GETPIPE_SZ
_FLAGS = 1 | 2  # move, do not block


class Pipe:
    """One pipe, and how many bytes are in it."""

    __slots__ = ("_reading", "_writing", "left")

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.left = 0
        try:
            fcntl.fcntl(self._writing, _SET_SIZE, SIZE)
        except OSError:
            # The user has many pipes already, and this one stays small: perhaps too small to be of use.
            if fcntl.fcntl(self._writing, _GET_SIZE) < LEAST:
                self.close()
                raise

    def fill(self, source: int) -> int:
        """Take what the socket has, as much as fits; 0 at its end. Raises as `recv` does."""
        count = os.splice(source, self._writing, SIZE, flags=_FLAGS)
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
    """All pipes of a gateway: made when they are needed, never more than MOST."""

    def __init__(self) -> None:
        self._free: list[Pipe] = []
        self._lent = 0

    def take(self) -> Pipe | None:
        """An empty one; None when there is none to be had, and bytes have to be copied."""
        if self._lent >= MOST:
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
