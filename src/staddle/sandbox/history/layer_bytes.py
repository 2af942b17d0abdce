"""`LayerBytes`: bytes of files in the layers that snapshots keep, counted without a walk where possible."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

from ...background import do_later
from ...layers.store import usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...layers.store import Layer
    from ..workspace.snapshot import Snapshot


#: Merged layers are counted again after this many snapshots.
_RECOUNT = 100


class LayerBytes:
    """Bytes of the layers of several snapshots. Each layer counts once, and each file.

    A layer that a squash has made shares files with the layers that it was made of. Files that only it has
    left are counted again after every `_RECOUNT` snapshots.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[Layer, int] = {}
        #: Number of the snapshots that use each layer.
        self.users: Counter[Layer] = Counter()
        self._merged: set[Layer] = set()
        self._added = 0
        #: Bytes of all these layers.
        self.total = 0

    def add(self, snapshot: Snapshot, size: int | None) -> None:
        """Add a snapshot. `size` is that of the files since the last one, if it is known."""
        layers = _layers(snapshot)
        with self._lock:
            self.users.update(layers)
            new = [layer for layer in layers if layer not in self._sizes]
            is_known = size is not None and len(new) == 1
            for layer in new:
                self._sizes[layer] = 0
            if is_known and size:
                self._sizes[new[0]] = size
                self.total += size
            self._added += 1
            if new and not is_known:  # a squash has made one of them, or there was too much to list
                self._merged.update(new)
            elif self._added % _RECOUNT:
                return
            new = [*self._merged] if self._added % _RECOUNT == 0 else new
        do_later(partial(self._measure, new))

    def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot."""
        with self._lock:
            self.users.subtract(layers := _layers(snapshot))
            for layer in layers:
                if not self.users[layer]:
                    del self.users[layer]
                    self._merged.discard(layer)
                    self.total -= self._sizes.pop(layer)

    def beside(self, present: Iterable[Layer]) -> int:
        """Return the bytes of the layers that are not among `present`."""
        with self._lock:
            return self.total - sum(self._sizes.get(layer, 0) for layer in present)

    def _measure(self, layers: list[Layer]) -> None:
        for layer in layers:
            size = usage(layer.upper, linked=False) if layer.users else 0
            with self._lock:
                if layer in self._sizes:
                    self.total += size - self._sizes[layer]
                    self._sizes[layer] = size


def _layers(snapshot: Snapshot) -> list[Layer]:
    return [layer for tree in snapshot._trees.values() for layer in tree.layers]
