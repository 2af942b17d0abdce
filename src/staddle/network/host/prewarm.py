"""Prewarm a gateway that waits for its policy.

An interpreter takes longer to start than a sandbox. After the first gateway, the program keeps another one
ready. It is confined and has no settings yet. It exits if no gateway was needed for some seconds.
"""

from __future__ import annotations

import _socket
import os
import select
import threading
import time

from ...background import Worker
from .spawn import end, spawn

#: Seconds between taking a gateway and starting the next: the caller's first command needs the processor.
_QUIET = 0.03
#: The same after the first gateway: most programs need no other one.
_FIRST_QUIET = 1.0
#: Seconds for which a gateway is kept when none is in use.
_KEPT = 3.0


class PrewarmedGateways:
    """The gateways of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may also take one
        self._changed_at = 0.0
        self._waiting: tuple[_socket.socket, int] | None = None
        self._where: object = None  # surroundings for which it was made, or is wanted
        self._in_use = self._taken = 0
        self._is_wanted = False
        #: Whether another one is started when one is taken.
        self.goes_on = True
        self._worker = Worker(self._work, self._forget)

    def take(self) -> tuple[_socket.socket, int]:
        """Return a gateway without settings: our end of its socket and its pid. Call `release` afterwards."""
        here = _surroundings()
        with self._lock:
            found, self._waiting = self._waiting, None
            is_alike, self._where = here == self._where, here
            self._in_use += 1
            self._taken += 1
            self._is_wanted = self.goes_on
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
        """Count down: a gateway that was taken has exited."""
        with self._lock:
            self._in_use = max(0, self._in_use - 1)  # a forked child may release its parent's
            self._change()

    def _change(self) -> None:
        self._changed_at = time.monotonic()
        try:
            self._worker.wake()
        except RuntimeError:
            pass  # no thread can be started: none is prewarmed

    def _forget(self) -> None:
        """Reset in a forked child: the waiting gateway belongs to its parent."""
        self._lock = threading.RLock()  # a thread of the parent may have held it
        waiting, self._waiting = self._waiting, None
        self._in_use, self._is_wanted = 0, False
        if waiting is not None:
            waiting[0].close()

    def _work(self) -> float | None:
        """Keep one gateway ready for as long as gateways are needed."""
        with self._lock:
            wanted_after = _FIRST_QUIET if self._taken == 1 else _QUIET
            patience = wanted_after if self._is_wanted else _KEPT
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
    """Properties that a gateway inherits from its starter. Reuse needs the same network and ids."""
    network = os.stat("/proc/thread-self/ns/net")
    return network.st_dev, network.st_ino, os.geteuid(), os.getegid()


def _has_ended(socket: _socket.socket) -> bool:
    """Whether an unused gateway's socket is readable: it has exited, because it sends nothing yet."""
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _end(socket: _socket.socket, pid: int) -> None:
    socket.close()
    end(pid)


GATEWAYS = PrewarmedGateways()
