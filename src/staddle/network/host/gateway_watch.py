"""Notice at once when a gateway was killed. One thread waits for all gateways of this program.

GATEWAY_WATCH.add(gateway.fileno(), call)       calls `call` in that thread when the gateway's socket closes
GATEWAY_WATCH.remove(gateway.fileno())          before it is closed
"""

from __future__ import annotations

import select
import threading

from ...background import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class GatewayWatch:
    """The watched sockets with their callbacks. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, Callable[[], object]] = {}
        self._epoll: select.epoll | None = None
        self._worker = Worker(self._wait, self._forget)

    def add(self, socket: int, call: Callable[[], object]) -> None:
        """Call `call` when the other end of `socket` closes. It must not raise."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
            self._calls[socket] = call
            self._epoll.register(socket, select.EPOLLONESHOT)  # EPOLLHUP is always reported
        try:
            self._worker.wake()
        except RuntimeError:
            pass  # no thread can be started: the end of the next command notices it

    def remove(self, socket: int) -> None:
        """Stop watching `socket`."""
        with self._lock:
            if self._calls.pop(socket, None) is not None and self._epoll is not None:
                self._epoll.unregister(socket)

    def _wait(self) -> float | None:
        epoll = self._epoll
        if epoll is None:
            return None
        for socket, _ in epoll.poll():
            with self._lock:
                call = self._calls.get(socket)
            if call is not None:
                call()
        return 0.0

    def _forget(self) -> None:
        """Reset in a forked child: the gateways belong to its parent."""
        self._lock = threading.Lock()
        self._calls = {}
        epoll, self._epoll = self._epoll, None
        if epoll is not None:
            epoll.close()


GATEWAY_WATCH = GatewayWatch()
