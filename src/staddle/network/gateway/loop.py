"""One thread, one epoll: who waits for which descriptor, and a sweep of the clock.

Descriptors are watched edge-triggered, for everything, once: no call is made when a side
becomes slow or fast again. A handler must go on until the kernel says EAGAIN, or put
itself in line with `soon`, so that none can keep the others waiting.
"""

from __future__ import annotations

import select
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EVERYTHING = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
#: Level-triggered: for listeners, of which we take a few at a time.
INPUT = select.EPOLLIN
READABLE = select.EPOLLIN
#: The other side will send no more, or something is wrong: read to the end.
ENDING = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_SWEEP = 0.5
_AT_ONCE = 128


class Loop:
    """Runs until `stop`. `now` is the time of the last wake-up."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watching: dict[int, Callable[[int], None]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._sweepers: list[Callable[[float], bool]] = []
        self._stopped = False
        self.now = time.monotonic()

    def watch(self, fd: int, handler: Callable[[int], None], events: int = EVERYTHING) -> None:
        """Call `handler` with the events of `fd`, until `forget`."""
        self._epoll.register(fd, events)
        self._watching[fd] = handler

    def hand(self, fd: int, handler: Callable[[int], None]) -> None:
        """Give a watched descriptor to another handler."""
        self._watching[fd] = handler

    def forget(self, fd: int) -> None:
        """Stop watching `fd`. To be called before it is closed."""
        if self._watching.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def drop(self, fd: int) -> None:
        """As `forget`, for a descriptor that is closed next and has no copy: the kernel forgets by itself."""
        self._watching.pop(fd, None)

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work` after everybody else had a turn."""
        self._soon.append(work)

    def sweep(self, look: Callable[[float], bool]) -> None:
        """Call `look` with the time, twice a second while it or another says that it has to wait."""
        self._sweepers.append(look)

    def stop(self) -> None:
        """Return from `run`."""
        self._stopped = True

    def run(self) -> None:
        """Serve until stopped."""
        swept = waiting = 0.0
        while not self._stopped:
            timeout = 0.0 if self._soon else _SWEEP if waiting else -1.0
            events = self._epoll.poll(timeout, _AT_ONCE)
            self.now = now = time.monotonic()
            for fd, event in events:
                handler = self._watching.get(fd)
                if handler is not None:  # not forgotten by one that was told before
                    handler(event)
            for _ in range(len(self._soon)):
                self._soon.popleft()()
            if now - swept >= _SWEEP:
                swept = now
                # All of them, not `any`: each has to look.
                waiting = float(sum([look(now) for look in self._sweepers]))
            elif events:
                waiting = 1.0  # a sweeper may have begun to wait
