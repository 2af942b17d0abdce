"""The sandboxes that wait to be taken, as the zygote has them.

One of them may have been told ahead what it will show: whoever opens one sandbox after the other for
the same directory takes one that is ready but for its name.
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

    from ..ipc.forkserver_messages import Blueprint


class Spare:
    """One that waits: the line to it, its layer, and what it shows already, if anything.

    `doors` lead to its control groups, for another one if nobody takes it.
    """

    __slots__ = ("doors", "layer", "line", "shows")

    def __init__(self, line: _socket.socket, layer: bytes, doors: Sequence[int] = ()) -> None:
        self.line, self.layer, self.doors = line, layer, tuple(doors)
        self.shows: object = None

    @property
    def has_failed(self) -> bool:
        """Whether it could not be made: those that wait for somebody say nothing."""
        poll = select.poll()
        poll.register(self.line, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """It is somebody else's."""
        self.line.close()
        close_all(self.doors)


class Spares:
    """All of them. `give_back` is called with the doors of one that nobody took."""

    def __init__(self, blueprint: Blueprint, give_back: Callable[[tuple[int, ...]], object]) -> None:
        self._blueprint, self._give_back = blueprint, give_back
        self._waiting: list[Spare] = []
        self._wish: tuple[object, bytes, list[int]] | None = None  # for the next that has nothing to show

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def layers(self) -> list[bytes]:
        """The layers that were made ahead for them."""
        return [spare.layer for spare in self._waiting]

    def add(self, spare: Spare, *, first: bool = False) -> None:
        """One more; the `first` to be taken if it was taken before, for nothing."""
        self._waiting.insert(0 if first else len(self._waiting), spare)
        self._fulfil()

    def take(self, shows: object = None) -> Spare | None:
        """One that shows this already, or nothing."""
        for spare in [spare for spare in self._waiting if spare.shows == shows]:
            self._waiting.remove(spare)
            if not spare.has_failed:
                return spare
            self.discard(spare)  # something went wrong, and that may be over
        return None

    def prepare(self, shows: object, message: bytes, trees: Sequence[int]) -> None:
        """Have one show `trees`, which are ours from now on, as the request in `message` says."""
        self._wish = (shows, message, list(trees))
        self._fulfil()

    def forget(self) -> None:
        """Nobody comes for what one was told to show."""
        if self._wish is not None:
            close_all(self._wish[2])
            self._wish = None
        for spare in [spare for spare in self._waiting if spare.shows is not None]:
            self._waiting.remove(spare)
            self.discard(spare)

    def _fulfil(self) -> None:
        if self._wish is None or (spare := self.take()) is None:
            return
        (spare.shows, message, trees), self._wish = self._wish, None
        tell(spare.line, message)
        tell(spare.line, TAKEN, trees)
        close_all(trees)
        self._waiting.append(spare)

    def discard(self, spare: Spare) -> None:
        """End one that nobody will take."""
        spare.line.close()
        home_layers.take_back(self._blueprint, spare.layer)
        if spare.doors:
            self._give_back(spare.doors)


def tell(line: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Say something to a sandbox that waits."""
    try:
        send(line, message, descriptors)
    except BrokenPipeError:
        pass  # it could not be made, and whoever gets its line reads there why
