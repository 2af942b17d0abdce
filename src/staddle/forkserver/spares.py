"""The spares of a fork server: sandboxes that wait to be taken."""

from __future__ import annotations

import select

from ..inside.agent import own_namespaces
from ..ipc.descriptors import close_all, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Sequence

    from ..ipc.forkserver_messages import ForkServerConfig


class Spare:
    """One that waits: the socket to it, and its home layer.

    `cgroup_fds` are for another one if it is not taken.
    """

    __slots__ = ("cgroup_fds", "layer", "socket")

    def __init__(self, socket: _socket.socket, layer: bytes, cgroup_fds: Sequence[int] = ()) -> None:
        self.socket, self.layer, self.cgroup_fds = socket, layer, tuple(cgroup_fds)

    @property
    def has_failed(self) -> bool:
        """Whether it could not be made: a spare that waits sends nothing."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of it: it has been handed over."""
        self.socket.close()
        close_all(self.cgroup_fds)


class Spares:
    """All of them. `give_back` is called with the cgroup descriptors of one that was not taken."""

    def __init__(self, config: ForkServerConfig, give_back: Callable[[tuple[int, ...]], object]) -> None:
        self._config, self._give_back = config, give_back
        self._waiting: list[Spare] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def layers(self) -> list[bytes]:
        """Names of the home layers that were made for them."""
        return [spare.layer for spare in self._waiting]

    def add(self, spare: Spare, *, first: bool = False) -> None:
        """Add one; at the front with `first`, if it was taken before and not used."""
        self._waiting.insert(0 if first else len(self._waiting), spare)

    def take(self) -> Spare | None:
        """Remove and return one that waits; None if there is none."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if not spare.has_failed:
                return spare
            self.discard(spare)  # something went wrong, and that may be over
        return None

    def discard(self, spare: Spare) -> None:
        """End one that will not be taken, and remove its home layer."""
        spare.socket.close()
        own_namespaces.take_back_layer(self._config, spare.layer)
        if spare.cgroup_fds:
            self._give_back(spare.cgroup_fds)


def tell(socket: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message to a spare. One that could not be made has left its reason on its socket."""
    try:
        send(socket, message, descriptors)
    except BrokenPipeError:
        pass  # the host program reads the reason on its socket
