"""An event loop: one thread, one epoll, and periodic calls for timeouts.

Descriptors are registered once, edge-triggered and for all events, so changes between slow and fast need no
system call. A handler must continue until the kernel returns EAGAIN, or queue itself with `soon`, so that it
does not delay the others.
"""

from __future__ import annotations

import select
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EVERYTHING = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
#: Level-triggered, for listeners: a handler accepts only a few connections at a time.
INPUT = select.EPOLLIN
READABLE = select.EPOLLIN
#: The other side sends no more, or an error occurred: read to the end.
ENDING = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_SWEEP = 0.5
#: Seconds without an event after which the loop is idle.
_PAUSE = 0.002
_AT_ONCE = 128


class Loop:
    """Runs until `stop`. `now` is the time of the last wake-up."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watching: dict[int, Callable[[int], None]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._idle: set[Callable[[], None]] = set()
        self._sweepers: list[Callable[[float], bool]] = []
        self._stopped = False
        self.now = time.monotonic()

    def watch(self, fd: int, handler: Callable[[int], None], events: int = EVERYTHING) -> None:
        """Call `handler` with the events of `fd` until `forget`."""
        self._epoll.register(fd, events)
        self._watching[fd] = handler

    def hand(self, fd: int, handler: Callable[[int], None]) -> None:
        """Give a watched descriptor to another handler."""
        self._watching[fd] = handler

    def forget(self, fd: int) -> None:
        """Stop watching `fd`. Call it before `fd` is closed."""
        if self._watching.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def drop(self, fd: int) -> None:
        """Like `forget`, for a descriptor without copies that is closed next: closing it unregisters it."""
        self._watching.pop(fd, None)

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work` after the other handlers had a turn."""
        self._soon.append(work)

    def idle(self, work: Callable[[], None]) -> None:
        """Call `work` once, after two milliseconds without an event. A loop that is never idle does not."""
        self._idle.add(work)

    def sweep(self, look: Callable[[float], bool]) -> None:
        """Call `look` with the time, twice a second while any of these functions returns True."""
        self._sweepers.append(look)

    def stop(self) -> None:
        """Let `run` return."""
        self._stopped = True

    def run(self) -> None:
        """Dispatch events until `stop` is called."""
        swept = waiting = 0.0
        while not self._stopped:
            timeout = 0.0 if self._soon else _PAUSE if self._idle else _SWEEP if waiting else -1.0
            events = self._epoll.poll(timeout, _AT_ONCE)
            self.now = now = time.monotonic()
            for fd, event in events:
                handler = self._watching.get(fd)
                if handler is not None:  # another handler may have forgotten it
                    handler(event)
            if not events and timeout == _PAUSE:
                works, self._idle = self._idle, set()
                for work in works:
                    work()
            for _ in range(len(self._soon)):
                self._soon.popleft()()
            if now - swept >= _SWEEP:
                swept = now
                # A list, not `any`: every function must be called.
                waiting = float(sum([look(now) for look in self._sweepers]))
            elif events:
                waiting = 1.0  # a handler may have started a timeout
