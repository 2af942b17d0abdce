"""The host program's end of the socket to a gateway, and the sockets that the gateway has not read yet."""

from __future__ import annotations

import _socket
import os
import select

from ...ipc.gateway_messages import LONGEST, decode_report
from ...ipc.wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...ipc.gateway_messages import Attempt, ConnectQuestion, Flushed, NeedSockets

    Report = Attempt | ConnectQuestion | NeedSockets | Flushed


def receive(socket: _socket.socket, most: int) -> tuple[list[Report], bool]:
    """The messages that are there, at most so many, without waiting; False once no more can come.

    The gateway reads hostile bytes: what is no message is skipped.
    """
    found: list[Report] = []
    for _ in range(most):
        try:
            data = socket.recv(LONGEST, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return found, True
        except OSError:
            return found, False
        if not data:
            return found, False
        try:
            found.append(decode_report(data))
        except Malformed:
            continue
    return found, True


class UnreadSockets:
    """Copies of the sockets of a gateway that has not sent anything yet.

    A gateway takes a moment to start. A caller that asks meanwhile what was refused need not wait for
    it when nothing was tried: all attempts wait in these sockets, and the gateway sends a first message
    before it takes anything out of them.
    """

    def __init__(self) -> None:
        self._poll: select.poll | None = select.poll()
        self._descriptors: list[int] = []

    def add(self, descriptors: Iterable[int]) -> None:
        """The gateway is given these."""
        if self._poll is not None:
            for descriptor in descriptors:
                self._descriptors.append(os.dup(descriptor))
                self._poll.register(self._descriptors[-1], select.POLLIN)

    def is_quiet(self) -> bool:
        """Whether no attempt waits for the gateway. Call it before `receive`."""
        return self._poll is not None and not any(event & select.POLLIN for _, event in self._poll.poll(0))

    def close(self) -> bool:
        """Close the copies, so that the sockets end with the gateway. True the first time."""
        first, self._poll = self._poll is not None, None
        while self._descriptors:
            os.close(self._descriptors.pop())
        return first
