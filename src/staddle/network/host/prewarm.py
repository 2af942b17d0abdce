"""Prewarm a gateway that waits for its policy.

An interpreter takes longer to start than a sandbox. Once a sandbox of this program has had a gateway,
the next one finds one that is there already: it is confined, and knows nothing yet. It ends
when no gateway was needed for some seconds.
"""

from __future__ import annotations

import _socket
import os
import select
import threading
import time

from ...background import Worker
from .spawn import end, spawn

#: Seconds between taking one and making the next: the processor is for the caller's first command.
_QUIET = 0.03
#: Seconds for which one is kept when no gateway is in use.
_KEPT = 3.0


class PrewarmedGateways:
    """The gateways of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may take one as well
        self._changed_at = 0.0
        self._waiting: tuple[_socket.socket, int] | None = None
        self._where: object = None  # it was made, or is wanted
        self._in_use = 0
        self._is_wanted = False
        self._worker = Worker(self._work, self._forget)

    def take(self) -> tuple[_socket.socket, int]:
        """A gateway that was told nothing yet: our end of its socket, and its pid. `release` follows."""
        here = _surroundings()
        with self._lock:
            found, self._waiting = self._waiting, None
            is_alike, self._where = here == self._where, here
            self._in_use += 1
            self._is_wanted = True
            self._change()
        if found is not None:
            if is_alike and not _has_ended(found[0]):
                return found
            _end(*found)
        try:
            return _new()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """One that was taken has ended."""
        with self._lock:
            self._in_use = max(0, self._in_use - 1)  # in a fork, one that its parent has taken
            self._change()

    def _change(self) -> None:
        self._changed_at = time.monotonic()
        try:
            self._worker.wake()
        except RuntimeError:
            pass  # no thread can be started: none is made ahead

    def _forget(self) -> None:
        """In a fork of the program: the waiting gateway is its parent's."""
        self._lock = threading.RLock()  # a thread that had it is not here
        waiting, self._waiting = self._waiting, None
        self._in_use, self._is_wanted = 0, False
        if waiting is not None:
            waiting[0].close()

    def _work(self) -> float | None:
        """Have one wait as long as they are needed."""
        with self._lock:
            patience = _QUIET if self._is_wanted else _KEPT
            left = self._changed_at + patience - time.monotonic()
            if left > 0:
                return left
            if self._is_wanted:
                self._is_wanted = False
                self._changed_at = time.monotonic()
                try:
                    if self._where == _surroundings():  # of this thread
                        self._waiting = _new()
                except OSError:
                    pass  # `take` raises it to its caller
                return _KEPT
            if self._in_use:
                return None  # until one is released
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            _end(*waiting)
        return None


def _new() -> tuple[_socket.socket, int]:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    try:
        return ours, spawn(theirs.fileno())
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


def _surroundings() -> object:
    """Properties that a gateway inherits from its starter: network and ids must be the same to use it."""
    network = os.stat("/proc/thread-self/ns/net")
    return network.st_dev, network.st_ino, os.geteuid(), os.getegid()


def _has_ended(socket: _socket.socket) -> bool:
    """Whether one that has nothing to say yet says something: that it has ended."""
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _end(socket: _socket.socket, pid: int) -> None:
    socket.close()
    end(pid)


GATEWAYS = PrewarmedGateways()
