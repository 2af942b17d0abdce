"""The reports of one command's gateway, for the process that started the command. Lists each refusal once.

`on_connect` answers its questions (see `approval_calls`); the answers go back over the same socket.
"""

from __future__ import annotations

import _socket
import _thread
import select
import time

from ...background import start_thread
from ...events import Event
from ...ipc.gateway_messages import Attempt, ConnectQuestion, encode_decision
from ...ipc.wire import send
from .gateway_process import receive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...egress_request import EgressRequest
    from .approval_calls import ApprovalCalls
    from .inspector_process import InspectorProcess

#: Number of stored destinations. Further ones are only counted.
MOST = 64
#: Messages read at a time, and seconds for a gateway to exit after its command.
_TURNS, _PATIENCE = 256, 2.0


class GatewayLog:
    """The host's end of a gateway's socket. It reads untrusted bytes, so all input is bounded and checked."""

    def __init__(self, socket: _socket.socket, who: str = "") -> None:
        """Read from `socket`. `who` is the command that the gateway serves."""
        self._socket, self._who = socket, who
        self._lock = _thread.allocate_lock()  # other threads send answers
        self._events: dict[tuple[str, str, int], Event] = {}
        self._more = 0
        self._child = 0
        self._approvals: ApprovalCalls | None = None
        self._copies: _socket.socket | None = None
        self._inspector: InspectorProcess | None = None

    def keep_copies(self) -> int:
        """Return the end of a socket over which the launcher sends copies of the gateway's sockets."""
        pair = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        self._copies, theirs = pair
        return theirs.detach()

    def take_copies(self) -> _socket.socket | None:
        """Return the other end, from which the copies can be read."""
        copies, self._copies = self._copies, None
        return copies

    def inspect_with(self, inspector: InspectorProcess) -> None:
        """Connect the gateway to the HTTP inspector, which this log closes in the end."""
        self._inspector = inspector
        message, descriptors = inspector.for_gateway()
        send(self._socket, message, descriptors)

    def fileno(self) -> int:
        """Return the descriptor, readable when there is something to read; -1 after `finish`."""
        return self._socket.fileno()

    def decide_with(self, approvals: ApprovalCalls) -> None:
        """Answer the gateway's questions with `approvals`. Call it before the first read."""
        self._approvals = approvals

    def read(self) -> bool:
        """Read the pending messages without waiting. False once no more can come."""
        reports, more = receive(self._socket, _TURNS)
        for report in reports:
            if isinstance(report, Attempt):
                self._note(report)
            elif isinstance(report, ConnectQuestion) and self._approvals is not None:
                self._approvals.ask(report, self._answer, self._add)
        return more

    def attend(self) -> None:
        """Read in a separate thread until the gateway exits, for callers that do not read themselves."""
        start_thread(self._attend, "staddle-network-log")

    def requests(self) -> list[EgressRequest]:
        """Return the last HTTP requests to inspected hosts."""
        return [] if self._inspector is None else self._inspector.requests()

    def events(self) -> tuple[Event, ...]:
        """Return all refused destinations and requests, and notes from the gateway about itself."""
        for event in () if self._inspector is None else self._inspector.events(everything=True):
            if event.kind == "refused" or event.what == "HTTP requests":
                self._add(event)
        with self._lock:
            found = tuple(self._events.values())
        if not self._more:
            return found
        return (*found, Event("note", "the network", f"{self._more} more refusals are not shown"))

    def started_here(self, pid: int) -> None:
        """Record that the gateway is a child of this process, which must wait for it."""
        self._child = pid

    def take_socket(self) -> _socket.socket:
        """Give the socket to another reader. This object reads no more."""
        return _socket.socket(fileno=self._socket.detach())

    def finish(self) -> None:
        """Read the last messages and wait for the gateway to exit. Call it when the command has ended."""
        if self._socket.fileno() < 0:
            return
        if self._approvals is not None:
            self._approvals.close()
        try:
            self._socket.shutdown(_socket.SHUT_WR)  # it can still send its last messages
        except OSError:
            pass  # it has exited already
        until = time.monotonic() + _PATIENCE
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while self.read():
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                break
        self.close()
        if self._child:
            from .spawn import end

            end(self._child)
            self._child = 0

    def close(self) -> None:
        """Close the socket without waiting for the gateway, which keeps running."""
        with self._lock:
            self._socket.close()
            if self._copies is not None:
                self._copies.close()
        if self._inspector is not None:
            self._inspector.flush()
            self._inspector.close()

    def _attend(self) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while self.read():
            poll.poll()
        self.finish()

    def _answer(self, question: ConnectQuestion, allowed: bool | None) -> None:
        with self._lock:
            try:
                self._socket.send(encode_decision(question.identity, allowed), _socket.MSG_DONTWAIT)
            except OSError:
                pass  # it has exited: no connection is possible any more

    def _note(self, attempt: Attempt) -> None:
        from .gateway_process import event

        if attempt.outcome not in ("refused", "note"):
            return
        said = event(attempt)
        if not said.what:
            said = said.replace(what="the network", rule=attempt.why)
        self._add(said, (attempt.protocol, attempt.host or attempt.why, attempt.port))

    def _add(self, event: Event, key: tuple[str, str, int] | None = None) -> None:
        key = key or (event.kind, event.what, 0)
        with self._lock:
            if key in self._events:
                return
            if len(self._events) >= MOST:
                self._more += 1
                return
            self._events[key] = event.replace(who=self._who) if event.kind == "refused" else event

    def __del__(self) -> None:
        self._socket.close()
