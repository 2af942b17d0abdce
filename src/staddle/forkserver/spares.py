"""The spares of a fork server: sandboxes that wait to be taken.

One of them may be prewarmed: it has mounted a workspace already. A caller that opens one sandbox after
the other for the same directory takes one that is ready but for its name.
"""

from __future__ import annotations

import select

from ..inside.agent import home_layers
from ..ipc.descriptors import close_all, send
from ..ipc.forkserver_messages import TAKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Sequence

    from ..ipc.forkserver_messages import ForkServerConfig


class Spare:
    """One that waits: the socket to it, its home layer, and the view that it shows already, if any.

    `cgroup_fds` are for another one if it is not taken.
    """

    __slots__ = ("cgroup_fds", "layer", "socket", "view_key")

    def __init__(self, socket: _socket.socket, layer: bytes, cgroup_fds: Sequence[int] = ()) -> None:
        self.socket, self.layer, self.cgroup_fds = socket, layer, tuple(cgroup_fds)
        self.view_key: object = None

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
        self._wish: tuple[object, bytes, list[int]] | None = None  # for the next that has nothing to show

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def layers(self) -> list[bytes]:
        """Names of the home layers that were made for them."""
        return [spare.layer for spare in self._waiting]

    def add(self, spare: Spare, *, first: bool = False) -> None:
        """Add one; at the front with `first`, if it was taken before and not used."""
        self._waiting.insert(0 if first else len(self._waiting), spare)
        self._fulfil()

    def take(self, view_key: object = None) -> Spare | None:
        """Remove and return one that shows this view already; None for one that shows nothing yet."""
        for spare in [spare for spare in self._waiting if spare.view_key == view_key]:
            self._waiting.remove(spare)
            if not spare.has_failed:
                return spare
            self.discard(spare)  # something went wrong, and that may be over
        return None

    def prepare(self, view_key: object, message: bytes, trees: Sequence[int]) -> None:
        """Prewarm one: have it mount `trees`, which are ours from now on, as the request `message` says."""
        self._wish = (view_key, message, list(trees))
        self._fulfil()

    def forget(self) -> None:
        """Discard the prewarmed one: another view is wanted now."""
        if self._wish is not None:
            close_all(self._wish[2])
            self._wish = None
        for spare in [spare for spare in self._waiting if spare.view_key is not None]:
            self._waiting.remove(spare)
            self.discard(spare)

    def _fulfil(self) -> None:
        """Give the wish to a spare that shows nothing yet, if there are both."""
        if self._wish is None or (spare := self.take()) is None:
            return
        (spare.view_key, message, trees), self._wish = self._wish, None
        tell(spare.socket, message)
        tell(spare.socket, TAKEN, trees)
        close_all(trees)
        self._waiting.append(spare)

    def discard(self, spare: Spare) -> None:
        """End one that will not be taken, and remove its home layer."""
        spare.socket.close()
        home_layers.take_back(self._config, spare.layer)
        if spare.cgroup_fds:
            self._give_back(spare.cgroup_fds)


def tell(socket: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message to a spare. One that could not be made has left its reason on its socket."""
    try:
        send(socket, message, descriptors)
    except BrokenPipeError:
        pass  # the host program reads the reason on its socket
