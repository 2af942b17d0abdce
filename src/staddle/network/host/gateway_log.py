"""The reports of one command's gateway, for the process that started the command: each refusal once.

Its questions are answered by `on_connect` (see `approval_calls`); the answers go back over the same socket.
"""

from __future__ import annotations

import _socket
import _thread
import select
import time

from ...background import start_thread
from ...events import Event
from ...ipc.gateway_messages import Attempt, ConnectQuestion, encode_decision
from .gateway_process import receive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .approval_calls import ApprovalCalls

#: Destinations that are kept. A command that tries more is told of with their number.
MOST = 64
#: Messages read at a time, and seconds for a gateway to end after its command.
_TURNS, _PATIENCE = 256, 2.0


class GatewayLog:
    """The host side's end of a gateway's socket. It reads hostile bytes: bounded, and checked."""

    def __init__(self, socket: _socket.socket, who: str = "") -> None:
        """`who` is the command that the gateway is for."""
        self._socket, self._who = socket, who
        self._lock = _thread.allocate_lock()  # answers come from other threads
        self._events: dict[tuple[str, str, int], Event] = {}
        self._more = 0
        self._child = 0
        self._approvals: ApprovalCalls | None = None
        self._copies: _socket.socket | None = None

    def keep_copies(self) -> int:
        """The end of a socket by which the launcher sends copies of the gateway's sockets."""
        pair = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        self._copies, theirs = pair
        return theirs.detach()

    def take_copies(self) -> _socket.socket | None:
        """The other end, to be read when they are needed."""
        copies, self._copies = self._copies, None
        return copies

    def fileno(self) -> int:
        """Becomes readable when there is something to read; -1 once it is finished."""
        return self._socket.fileno()

    def decide_with(self, approvals: ApprovalCalls) -> None:
        """Have what the gateway asks answered. Nothing is asked before it is read."""
        self._approvals = approvals

    def read(self) -> bool:
        """Read the messages that are there, without waiting. False once no more can come."""
        reports, more = receive(self._socket, _TURNS)
        for report in reports:
            if isinstance(report, Attempt):
                self._note(report)
            elif isinstance(report, ConnectQuestion) and self._approvals is not None:
                self._approvals.ask(report, self._answer, self._add)
        return more

    def attend(self) -> None:
        """Read whatever comes, in a thread of its own, until the gateway ends: for who does not read."""
        start_thread(self._attend, "staddle-network-log")

    def events(self) -> tuple[Event, ...]:
        """Every destination that was refused, and whatever the gateway has to say of itself."""
        with self._lock:
            found = tuple(self._events.values())
        if not self._more:
            return found
        return (*found, Event("note", "the network", f"{self._more} more refusals are not shown"))

    def started_here(self, pid: int) -> None:
        """The gateway is a child of this process, who has to wait for it."""
        self._child = pid

    def take_socket(self) -> _socket.socket:
        """The socket, for another reader: this one reads nothing any more."""
        return _socket.socket(fileno=self._socket.detach())

    def finish(self) -> None:
        """The command has ended, or was never started: hear the rest, and see the gateway end."""
        if self._socket.fileno() < 0:
            return
        if self._approvals is not None:
            self._approvals.close()
        try:
            self._socket.shutdown(_socket.SHUT_WR)  # it still may say its last words
        except OSError:
            pass  # it has ended already
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
        """Close the socket without waiting for the gateway, which goes on."""
        with self._lock:
            self._socket.close()
            if self._copies is not None:
                self._copies.close()

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
                pass  # it has ended: nothing goes out any more

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
