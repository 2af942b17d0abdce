"""What the gateway of one command tells, for whoever started the command: each refusal once."""

from __future__ import annotations

import _socket
import select
import time

from ..events import Event
from ..helper.wire import Malformed
from .orders import LONGEST, decode_attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .orders import Attempt

#: Destinations that are kept. A command that tries more is told of with their number.
MOST = 64
#: Messages read at a time, and seconds for a gateway to end after its command.
_TURNS, _PATIENCE = 256, 2.0


class Told:
    """The host side's end of a gateway's line. It reads hostile bytes: bounded, and checked."""

    def __init__(self, line: _socket.socket) -> None:
        self._line = line
        self._events: dict[tuple[str, str, int], Event] = {}
        self._more = 0
        self._child = 0

    def fileno(self) -> int:
        """Becomes readable when there is something to read; -1 once it is finished."""
        return self._line.fileno()

    def read(self) -> bool:
        """Read what is there, without waiting. False once nobody will tell anything any more."""
        for _ in range(_TURNS):
            try:
                data = self._line.recv(LONGEST, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            try:
                self._note(decode_attempt(data))
            except Malformed:
                continue
        return True

    def events(self) -> tuple[Event, ...]:
        """Every destination that was refused, and whatever the gateway has to say of itself."""
        found = tuple(self._events.values())
        if not self._more:
            return found
        return (*found, Event("note", "the network", f"{self._more} more refusals are not shown"))

    def started_here(self, pid: int) -> None:
        """The gateway is a child of this process, who has to wait for it."""
        self._child = pid

    def finish(self) -> None:
        """The command has ended, or was never started: hear the rest, and see the gateway end."""
        if self._line.fileno() < 0:
            return
        try:
            self._line.shutdown(_socket.SHUT_WR)  # it still may say its last words
        except OSError:
            pass  # it has ended already
        until = time.monotonic() + _PATIENCE
        poll = select.poll()
        poll.register(self._line.fileno(), select.POLLIN)
        while self.read():
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                break
        self.close()
        if self._child:
            from .spawning import end

            end(self._child)
            self._child = 0

    def close(self) -> None:
        """Nobody will ask what was told. The gateway goes on."""
        self._line.close()

    def _note(self, attempt: Attempt) -> None:
        from .starting import event

        if attempt.outcome not in ("refused", "note"):
            return
        key = (attempt.protocol, attempt.host or attempt.why, attempt.port)
        if key in self._events:
            return
        if len(self._events) >= MOST:
            self._more += 1
            return
        said = event(attempt)
        self._events[key] = said if said.what else said.replace(what="the network", rule=attempt.why)

    def __del__(self) -> None:
        self._line.close()
