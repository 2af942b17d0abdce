"""What a sandbox reaches, and how it is reached: its gateway, connections and ports into it."""

from __future__ import annotations

import _socket
import os
import threading

from ..network import forward, starting
from ..network.arrangement import needs_gateway
from ..policy.network import Network
from ..zygote.descriptors import receive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events import Event
    from .link import AgentLink

_LONGEST = 1 << 16
#: Events that are kept until somebody asks.
_KEPT = 1000


class Reach:
    """The network of one sandbox on this side. Thread-safe."""

    def __init__(self, network: Network) -> None:
        """Starts the gateway at once, if the policy needs one: it takes a moment to be there."""
        self._lock = threading.Lock()
        self._network = network
        self._gateway = starting.start(network) if needs_gateway(network) else None
        self._line: _socket.socket | None = None
        self._events: list[Event] = []
        self._refused: list[Event] = []
        self._exposing: threading.Thread | None = None
        self._closed = False

    def attach(self, link: AgentLink) -> None:
        """Give the gateway the sockets that it is to serve; nothing goes out before."""
        if self._gateway is not None:
            with self._lock:
                self._attached(link, self._gateway)

    def connect(self, link: AgentLink, port: int) -> int:
        """The descriptor of a connection to a server inside, at `port` of its 127.0.0.1."""
        with self._lock:
            return forward.connect(self._attached(link, self._gateway).fileno(), port)

    def expose(self, link: AgentLink, port: int, host_port: int) -> int:
        """A port of our 127.0.0.1 that leads to `port` inside, until the sandbox is closed."""
        with self._lock:
            if self._gateway is None:
                self._gateway = starting.start(Network.deny())
            line = self._attached(link, self._gateway)
            found = forward.exposed(self._gateway, line.fileno(), port, host_port)
            if self._exposing is None:
                self._exposing = threading.Thread(target=self._feed, name="staddle-expose", daemon=True)
                self._exposing.start()
            return found

    def events(self) -> tuple[Event, ...]:
        """What was tried since the last call: allowed, refused, failed."""
        with self._lock:
            self._collect()
            found, self._events = tuple(self._events), []
            return found

    def refused(self) -> tuple[Event, ...]:
        """What was refused since this was last asked; `events` tells it, too."""
        if self._gateway is None:
            return ()
        with self._lock:
            self._collect()
            found, self._refused = tuple(self._refused), []
            return found

    def close(self) -> None:
        """Nothing goes out or in any more."""
        with self._lock:
            self._closed = True
            gateway, self._gateway = self._gateway, None
            line, self._line = self._line, None
        if gateway is not None:
            gateway.close()
        if line is not None:
            line.close()

    def _attached(self, link: AgentLink, gateway: starting.GatewayProcess | None) -> _socket.socket:
        if self._line is None:
            self._line = _socket.socket(fileno=link.network())
            self._line.setblocking(False)
            while True:
                try:
                    message, descriptors = receive(self._line, _LONGEST)
                except BlockingIOError:
                    break  # all of it came before the line itself
                if not message:
                    break
                try:
                    if gateway is not None:
                        gateway.pass_on(message, descriptors)
                finally:
                    for fd in descriptors:
                        os.close(fd)
            self._line.setblocking(True)
        return self._line

    def _collect(self) -> None:
        if self._gateway is not None:
            fresh = [starting.event(attempt) for attempt in self._gateway.attempts()]
            self._events = (self._events + fresh)[-_KEPT:]
            self._refused = (self._refused + [event for event in fresh if event.kind == "refused"])[-_KEPT:]

    def _feed(self) -> None:
        """Whenever the gateway runs out of sockets that lead inside, give it more."""
        import select

        while True:
            with self._lock:
                gateway, line = self._gateway, self._line
                if self._closed or gateway is None or line is None or gateway.ended():
                    return
            poll = select.poll()
            poll.register(gateway.fileno(), select.POLLIN)
            if not poll.poll(500):
                continue
            with self._lock:
                if self._closed:
                    return
                self._collect()
                try:
                    forward.feed(gateway, line.fileno())
                except (OSError, forward.ForwardFailed):
                    return
