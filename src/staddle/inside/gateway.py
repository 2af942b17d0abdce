"""The network gateway of a single command, which the launcher starts before the sandbox exists.

It is a child of the launcher in the host's network, and ends with it. The sandbox's first process makes the
sockets inside and sends them to the gateway. This module is loaded only if the policy allows network access.
"""

from __future__ import annotations

import _socket
import os
import select

from ..ipc.wire import CONFINEMENT, NotStarted
from ..network.host.spawn import end, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.namespace_spec import NetworkRow

#: Milliseconds for a gateway to start.
_PATIENCE = 20_000


class CommandGateway:
    """A started gateway: it receives sockets on `socket`, and reports on `ready` that it has them.

    `copies` (-1: there is none) leads to the host program. If the gateway is killed, the host program gives
    the sockets to a new one.
    """

    def __init__(self, ends: tuple[int, ...]) -> None:
        """Start it. `ends` are the gateway's and our end of its socket pair, and `copies` if there is one.

        NotStarted if that fails.
        """
        self.pid = 0
        theirs, self.socket, *copies = ends
        self.copies = copies[0] if copies else -1
        self.ready, send = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = spawn(theirs, send)
        except OSError as error:
            os.close(self.ready)
            why = f"the network gateway could not be started: {error.strerror}"
            raise NotStarted(CONFINEMENT, why) from None
        finally:
            os.close(send)

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that lead to the gateway, and to the host program."""
        return (self.socket, self.ready, *(() if self.copies < 0 else (self.copies,)))

    def end(self) -> None:
        """Shut down its socket, and wait for the gateway, which is a child of this process."""
        socket = _socket.socket(fileno=os.dup(self.socket))
        try:
            socket.shutdown(_socket.SHUT_WR)  # its earlier reports can still be read
        except OSError:
            pass  # it has ended already
        socket.close()
        end(self.pid)

    # The sandbox's first process calls these.

    def give_sockets(self, network: tuple[NetworkRow, ...]) -> None:
        """Set up the network of our namespace and send its sockets. Needs CAP_NET_ADMIN over it."""
        from ..ipc.namespace_spec import decoded
        from ..network.namespace import setup, socket_handoff

        ready = setup.prepare(decoded(network))
        try:
            socket_handoff.hand_over(self.socket, ready, copies=self.copies)
        except (BrokenPipeError, ConnectionError):
            raise NotStarted(CONFINEMENT, "the network gateway has exited") from None
        os.close(self.socket)
        if self.copies >= 0:
            os.close(self.copies)

    def await_ready(self) -> None:
        """Wait until the gateway is confined and has the sockets; nothing is exec'd before."""
        poll = select.poll()
        poll.register(self.ready, select.POLLIN)
        if not poll.poll(_PATIENCE):
            raise NotStarted(CONFINEMENT, "the network gateway did not start in time")
        if os.read(self.ready, 1) != b"!":
            raise NotStarted(CONFINEMENT, "the network gateway could not be started: it exited at once")
        os.close(self.ready)
