"""A sandbox's network on the host's side: its gateway, its events, and connections and ports into it."""

from __future__ import annotations

import _socket
import errno
import os
import select
import threading
import time
from collections import deque

from ...background import Worker, start_thread
from ...errors import LaunchFailed, StaddleError
from ...events import Event
from ...interrupts import uninterruptible
from ...ipc.gateway_messages import MOST_DESCRIPTORS
from ...ipc.wire import receive
from ...network.host import forward, gateway_process
from ...policy.network import Network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...egress_request import EgressRequest
    from ...ipc.agent_client import AgentClient
    from ...ipc.gateway_messages import ConnectQuestion
    from ...network.host.approval_calls import ApprovalCalls, OnConnect
    from ...network.host.inspector_process import InspectorProcess
    from ...policy.plan import Plan

_LONGEST = 1 << 16
#: Event text for each state of the gateway.
_STATES = {
    "ended": "it was killed: nothing goes out of this sandbox any more; reset() or fork() start another one",
    "replaced": "it was killed, and another one was started: connections of that moment are cut",
    "silent": "it does not answer: it is stopped, or has too much to do",
    "usual": "it answers again",
}
#: The number of events kept until `events` is called.
_KEPT = 1000
#: Milliseconds between two checks by the gateway's thread whether the sandbox is open.
_POLL = 500
#: A gateway is restarted at most this many times in this many seconds: else it is useless.
_MOST_RESTARTS, _RESTARTS_WITHIN = 5, 60.0


class SocketCopies:
    """Duplicates of the sockets that a launcher gave its gateway, for a replacement.

    They are queued in a socket of ours until they are needed.
    """

    def __init__(self, socket: _socket.socket) -> None:
        socket.setblocking(False)
        self._socket = socket
        self._all: list[tuple[bytes, list[int]]] = []

    def give(self, gateway: gateway_process.GatewayProcess) -> None:
        """Pass them to a gateway. Raises LaunchFailed if it has ended, OSError if there are none."""
        try:
            while (found := receive(self._socket, _LONGEST, most=MOST_DESCRIPTORS))[0]:
                self._all.append(found)
        except BlockingIOError:
            pass  # the launcher keeps it open
        if not self._all:
            raise OSError(errno.ENOENT, "there is no copy of its sockets")
        for message, descriptors in self._all:
            gateway.pass_on(message, descriptors)

    def close(self) -> None:
        """Close them."""
        self._socket.close()
        for _, descriptors in self._all:
            for fd in descriptors:
                os.close(fd)
        self._all.clear()


class GatewayWatch:
    """Notices at once when a gateway was killed. One thread waits for all gateways of this program.

    GATEWAY_WATCH.add(gateway.fileno(), call)       calls `call` in that thread when the socket closes
    GATEWAY_WATCH.remove(gateway.fileno())          before it is closed
    """

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


class SandboxNetwork:
    """Network of one sandbox on the host's side. Thread-safe.

    `on_connect` decides, in separate threads, about destinations that the plan's network leaves open.
    """

    def __init__(
        self,
        plan: Plan,
        on_connect: OnConnect | None = None,
        *,
        gateway_socket: _socket.socket | None = None,
        copies: _socket.socket | None = None,
        filtered: bool = False,
        inspector: InspectorProcess | None = None,
    ) -> None:
        """Prepare the network. If it is `filtered`, the gateway starts at once, because that takes a moment.

        `gateway_socket` connects to a gateway that the launcher starts and gives its sockets to; on `copies`
        the launcher sends duplicates. The network closes the HTTP `inspector` in the end.
        """
        self._lock = threading.Lock()
        self._deciding = _deciding(plan, on_connect)
        self._gateway: gateway_process.GatewayProcess | None = None
        #: Socket on which the agent passes sockets of the sandbox's network.
        self._handoff: _socket.socket | None = None
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._unclaimed = 0  # number of events at the end without an author
        self._refused: dict[tuple[str, str], Event] = {}
        self._attending: threading.Thread | None = None
        self._closed = False
        self._state = "usual"  # of the gateway
        self._restarts: deque[float] = deque(maxlen=_MOST_RESTARTS)
        self._has_failed = False  # to start another one
        #: Network and approval seconds of the gateway, for its replacement.
        self._settings = plan.network, plan.asks
        self._plan, self.inspector = plan, inspector
        self._exposed: list[forward.ExposedPort] = []
        #: Called with every event, while the lock is held.
        self.on_event: Callable[[Event], None] | None = None
        self._given = gateway_socket is not None
        self._copies = None if copies is None else SocketCopies(copies)
        if gateway_socket is not None:
            gateway = self._watch(gateway_process.GatewayProcess(gateway_socket, 0))
            if inspector is not None:
                gateway.tell(*inspector.for_gateway())
        elif filtered:
            self._watch(self._started())
        if self._deciding is not None:
            self._attend()

    @uninterruptible
    def attach(self, agent: AgentClient) -> None:
        """Give the gateway the sockets to serve; before that nothing goes out."""
        if self._gateway is not None and not self._given:
            with self._lock:
                self._attached(agent, self._gateway)

    @uninterruptible
    def connect(self, agent: AgentClient, port: int) -> int:
        """Return the descriptor of a connection to `port` of the sandbox's 127.0.0.1."""
        with self._lock:
            return forward.connect(self._attached(agent, self._gateway).fileno(), port)

    @uninterruptible
    def expose(self, agent: AgentClient, port: int, host_port: int) -> int:
        """Forward a port of our 127.0.0.1 to `port` inside until the sandbox is closed."""
        with self._lock:
            for known in self._exposed:
                if host_port and (known.port, known.host_port) == (port, host_port):
                    return host_port  # an interrupted caller asks again
            gateway = self._gateway
            if gateway is None:
                self._settings = Network.deny(), 0
                gateway = self._watch(self._started())
            handoff = self._attached(agent, gateway)
            exposed = forward.ExposedPort(port, host_port)
            try:
                exposed.serve(gateway, handoff.fileno())
            except BaseException:
                exposed.close()
                raise
            self._exposed.append(exposed)
            self._attend()
            return exposed.host_port

    @uninterruptible
    def change(self, network: Network, asks: int) -> None:
        """Apply another policy; its rules are in force when this returns."""
        with self._lock:
            if self._gateway is None:
                return
            # First: a restarted gateway must not apply the old rules.
            self._settings = network, asks
            try:
                if self.inspector is not None:
                    self.inspector.change(network)
                self._gateway.change(network, self._bounds())
            except LaunchFailed:
                pass  # it was killed; the next one starts with them
            self._collect(everything=True)

    def events(self) -> tuple[Event, ...]:
        """Return the events since the last call: allowed, refused, failed."""
        with self._lock:
            self._collect(everything=True)
            found = tuple(self._events)
            self._events.clear()
            self._unclaimed = 0
            return found

    def settle(self) -> None:
        """Wait until `on_connect` has answered about all attempts so far."""
        with self._lock:
            self._collect(everything=True)
        if self._deciding is not None:
            self._deciding.wait()

    def requests(self) -> list[EgressRequest]:
        """Return the last HTTP requests to inspected hosts."""
        return [] if self.inspector is None else self.inspector.requests()

    @property
    def alive(self) -> bool:
        """Whether its gateway runs, if it has one; a killed one is restarted."""
        with self._lock:
            gateway = self._gateway
            if gateway is not None and gateway.ended():
                self._collect()
                gateway = self._gateway
            return gateway is None or not gateway.ended()

    @property
    def has_gateway(self) -> bool:
        """Whether the sandbox has a gateway."""
        return self._gateway is not None

    def refused(self, who: Callable[[], str]) -> tuple[Event, ...]:
        """Return the destinations refused since the last call, each once; `events` also lists them.

        Events without an author are attributed to `who()`, the command that has just ended.
        """
        if self._gateway is None:
            return ()
        with self._lock:
            self._collect(everything=True)
            if self._unclaimed:
                self._claim(who())
            found = tuple(self._refused.values())
            self._refused.clear()
            return found

    def close(self) -> None:
        """Close the gateway: no traffic passes any more, and `on_connect` is not called again."""
        if self._deciding is not None:
            self._deciding.close()
        with self._lock:
            self._closed = True
            gateway, self._gateway = self._gateway, None
            handoff, self._handoff = self._handoff, None
            exposed, self._exposed = self._exposed, []
        for port in exposed:
            port.close()
        if gateway is not None:
            GATEWAY_WATCH.remove(gateway.fileno())
            gateway.close()
        if handoff is not None:
            handoff.close()
        if self._copies is not None:
            self._copies.close()
        if self.inspector is not None:
            self.inspector.close()

    def _bounds(self) -> gateway_process.GatewayBounds:
        """Return the bounds of a gateway for the current settings."""
        network, asks = self._settings
        return gateway_process.GatewayBounds(
            asks=asks, inspected=gateway_process.inspected(self._plan, network)
        )

    def _started(self) -> gateway_process.GatewayProcess:
        """Start a gateway, and connect it to the inspector."""
        gateway = gateway_process.start(self._settings[0], self._bounds())
        if self.inspector is not None:
            try:
                gateway.tell(*self.inspector.for_gateway())
            except BaseException:
                gateway.close()
                raise
        return gateway

    def _attached(self, agent: AgentClient, gateway: gateway_process.GatewayProcess | None) -> _socket.socket:
        if self._handoff is None:
            self._handoff = _socket.socket(fileno=agent.network())
            self._handoff.setblocking(False)
            while True:
                try:
                    message, descriptors = receive(self._handoff, _LONGEST)
                except BlockingIOError:
                    break  # all messages arrive before the socket itself
                if not message:
                    break
                try:
                    if gateway is not None:
                        gateway.pass_on(message, descriptors)
                finally:
                    for fd in descriptors:
                        os.close(fd)
            self._handoff.setblocking(True)
        return self._handoff

    # ------------------------------------------------------------ end of the gateway

    def _watch(self, gateway: gateway_process.GatewayProcess) -> gateway_process.GatewayProcess:
        """Make `gateway` serve this sandbox, and watch for its end."""
        self._gateway = gateway
        GATEWAY_WATCH.add(gateway.fileno(), self._notice_end)
        return gateway

    def _notice_end(self) -> None:
        """Handle the possible end of the gateway. Runs in the thread of `GATEWAY_WATCH`."""
        with self._lock:
            self._collect()

    def _restart(self, ended: gateway_process.GatewayProcess) -> bool:
        """Replace the ended gateway, with the same sockets and ports. Returns whether it did."""
        while (started := self._another()) is None:
            if self._has_failed:
                self._tell("ended")
                return False
        GATEWAY_WATCH.remove(ended.fileno())
        ended.close()
        self._watch(started)
        self._tell("replaced")
        self._state = "usual"
        if self._deciding is not None or self._exposed:
            self._attend()
        return True

    def _another(self) -> gateway_process.GatewayProcess | None:
        """Start a replacement gateway. Returns None if it was killed as well, or none may be started."""
        now = time.monotonic()
        is_often = len(self._restarts) == _MOST_RESTARTS and now - self._restarts[0] < _RESTARTS_WITHIN
        self._has_failed = self._closed or is_often or (self._given and not self._copies)
        if self._has_failed:
            return None
        self._restarts.append(now)
        started: gateway_process.GatewayProcess | None = None
        try:
            started = self._started()
            if self._copies is not None:
                self._copies.give(started)
            elif self._handoff is not None:
                forward.listen_again(started, self._handoff.fileno())
            if self._handoff is not None:
                for port in self._exposed:
                    port.serve(started, self._handoff.fileno())
            return started
        except (StaddleError, OSError) as error:
            self._has_failed = not isinstance(error, LaunchFailed)  # the sandbox does not answer
            if started is not None:
                started.close()
            return None

    # ------------------------------------------------------------ messages of the gateway

    def _collect(self, everything: bool = False) -> None:
        """Read the gateway's messages. A thread that reads another's answer passes it on."""
        gateway = self._gateway
        if gateway is None:
            return
        for attempt in gateway.all_attempts() if everything else gateway.attempts():
            self._keep(gateway_process.event(attempt))
        if self.inspector is not None:
            for event in self.inspector.events(everything=everything):
                self._keep(event)
        self._tell_state(gateway)
        for question in gateway.questions():
            if self._deciding is not None:
                self._deciding.ask(question, self._answer, self._note)

    def _tell_state(self, gateway: gateway_process.GatewayProcess) -> None:
        """Add an event when the gateway has ended, stops answering, or answers again."""
        if gateway.ended():
            self._restart(gateway)
        else:
            self._tell("silent" if gateway.is_silent else "usual")

    def _tell(self, state: str) -> None:
        """Add an event if the gateway's state has changed."""
        if state != self._state:
            self._state = state
            event = Event("note", "the network gateway", _STATES[state])
            self._keep(event)
            self._refused[event.what, event.rule] = event

    def _claim(self, who: str) -> None:
        claimed = [self._events.pop() for _ in range(min(self._unclaimed, len(self._events)))]
        self._events += [event.replace(who=who) for event in reversed(claimed)]
        self._refused = {what: event.replace(who=event.who or who) for what, event in self._refused.items()}
        self._unclaimed = 0

    def _keep(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)
        self._events.append(event)
        self._unclaimed += 1
        if event.kind == "refused" and len(self._refused) < _KEPT:
            self._refused.setdefault((event.what, event.rule), event)

    def _answer(self, question: ConnectQuestion, allowed: bool | None) -> None:
        with self._lock:
            if self._gateway is not None:
                try:
                    self._gateway.decide(question, allowed)
                except LaunchFailed:
                    pass  # it has ended: nothing goes out any more

    def _note(self, event: Event) -> None:
        with self._lock:
            self._keep(event)

    def _attend(self) -> None:
        """Start a thread that serves the gateway's requests until it or the sandbox ends."""
        if self._attending is None:
            self._attending = start_thread(self._feed, "staddle-network")

    def _feed(self) -> None:
        """Give the gateway the decisions that it requests, and sockets that lead inside."""
        while True:
            with self._lock:
                gateway = self._gateway
                if self._closed or gateway is None or gateway.ended():
                    self._attending = None  # a new gateway gets a new thread
                    return
                poll = select.poll()
                poll.register(gateway.fileno(), select.POLLIN)
            if not poll.poll(_POLL):
                continue
            with self._lock:
                if self._closed:
                    return
                self._collect()
                if self._handoff is None or self._gateway is not gateway:
                    continue
                try:
                    forward.feed(gateway, self._handoff.fileno())
                except (OSError, StaddleError):
                    continue  # the gateway or the sandbox has ended


def _deciding(plan: Plan, on_connect: OnConnect | None) -> ApprovalCalls | None:
    if on_connect is None:
        return None
    from ...network.host.approval_calls import ApprovalCalls

    return ApprovalCalls(on_connect, plan.network, plan.asks)
