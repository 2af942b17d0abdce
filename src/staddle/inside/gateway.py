"""The network gateway of a single command: started by the launcher, before there is a sandbox.

It is a child of the launcher in the host's network, and ends with it. The sandbox's first process
makes the sockets inside and sends them to it. Loaded only when the policy names something to reach.
"""

from __future__ import annotations

import _socket
import os
import select

from ..ipc.status import CONFINEMENT, NotStarted
from ..network.host.spawn import end, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.network_spec import NetworkRow

#: Milliseconds for a gateway to be there.
_PATIENCE = 20_000


class CommandGateway:
    """A started gateway: it gets sockets on `socket`, and reports on `ready` that it has them.

    `copies` (-1: there is none) leads to the host program, which gives them to another one if it is killed.
    """

    def __init__(self, ends: tuple[int, ...]) -> None:
        """Start it. `ends` are those of its socket pair, its own and ours, and that of `copies`.

        NotStarted when that fails.
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

    @classmethod
    def elsewhere(cls, socket: int, ready: int, copies: int = -1) -> CommandGateway:
        """A gateway that another process has started, by its descriptors."""
        made = cls.__new__(cls)
        made.pid, made.socket, made.ready, made.copies = 0, socket, ready, copies
        return made

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that `elsewhere` takes."""
        return (self.socket, self.ready, *(() if self.copies < 0 else (self.copies,)))

    def end(self) -> None:
        """Shut its socket down, and wait for it: it is a child of this process."""
        socket = _socket.socket(fileno=os.dup(self.socket))
        try:
            socket.shutdown(_socket.SHUT_WR)  # what it has told by then can still be read
        except OSError:
            pass  # it has ended already
        socket.close()
        end(self.pid)

    # In the sandbox's first process.

    def give_sockets(self, network: tuple[NetworkRow, ...]) -> None:
        """Make the network of our namespace and send its sockets. Needs CAP_NET_ADMIN over it."""
        from ..ipc.network_spec import decoded
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
        """Return once it is confined and has the sockets: nothing is exec'd before."""
        poll = select.poll()
        poll.register(self.ready, select.POLLIN)
        if not poll.poll(_PATIENCE):
            raise NotStarted(CONFINEMENT, "the network gateway did not start in time")
        if os.read(self.ready, 1) != b"!":
            raise NotStarted(CONFINEMENT, "the network gateway could not be started: it exited at once")
        os.close(self.ready)
