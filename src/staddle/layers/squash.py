"""`Squash`: one layer made of several frozen ones of a tree, so that a tree of many snapshots stays shallow.

    squash = Squash()                          one for each tree
    frozen = squash.shorten(stack.freeze())    with the layer that was made, in place of those it is made of
    squash.begin(stack.below())                make the next one, in the background

Layers are merged by weight, as in a log-structured merge tree: the newest ones, and on while the next older
one has no more entries than those together. So each entry is merged again about as often as the number of
snapshots can be halved, however many there are, and a large layer of long ago is not touched by small ones.
"""

from __future__ import annotations

import threading

from ..background import do_later, rest
from ..errors import LayerError
from ..files.tree import Tree, walk
from ..linux import open_files
from .merge import merge, prune
from .stack import LayerSnapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .store import Layer

#: From here on a tree is squashed in the background: look-ups cost a little for every layer.
DEEP = 32
#: A tree has no more layers than these, but where that fails.
DEEPEST = 64
#: As many of the newest layers are merged at least.
_NEWEST = 16
#: A walk opens two files for each layer, and the fork server one: this part of what may be open.
_PART = 8


def deepest() -> int:
    """With so many layers a freeze waits for a squash, or does it: fewer where few files may be open."""
    return min(DEEPEST, open_files.original_limit() // _PART)


def deep() -> int:
    """With so many layers a tree is squashed in the background."""
    return min(DEEP, deepest() // 2)


class _Cancelled(Exception):
    """The tree was closed meanwhile."""


class Squash:
    """The squash of one tree: a run of its frozen layers, and the layer that means the same.

    What a layer lies over never changes. So the result stands for the run wherever that is found: in stacks
    that were made after the squash began, and in older ones that were restored since.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Held by the thread that merges.
        self._merging = threading.Lock()
        self._queued: LayerSnapshot | None = None
        self._busy = self._closed = False
        self._waiting = 0
        self._run: tuple[Layer, ...] = ()
        self._merged: Layer | None = None

    def holds(self, layer: Layer) -> bool:
        """Whether it has made `layer`, and holds it."""
        return self._merged is layer

    def shorten(self, point: LayerSnapshot) -> LayerSnapshot:
        """`point`, or the same in fewer layers in place of it."""
        with self._lock:
            at = _index(point.layers, self._run)
            if self._merged is None or at < 0:
                return point
            layers = (*point.layers[:at], self._merged, *point.layers[at + len(self._run) :])
            made = LayerSnapshot(point.store, point.bases, layers, point.mounted_at)
        point.close()
        return made

    def shorten_now(self, point: LayerSnapshot, most: int | None = None) -> LayerSnapshot:
        """The same, but with fewer layers than `most`, or `deepest`: waits for a squash, or does one.

        Where that cannot be done, as on a full file system, the layers stay as they are.
        """
        point, most = self.shorten(point), most or deepest()
        if len(point.layers) < most:
            return point
        self._waiting += 1  # one in the background takes no more rests
        try:
            with self._merging:
                point = self.shorten(point)
                if len(point.layers) >= most:
                    # Not the topmost one: that may be written until the next one is mounted.
                    below = LayerSnapshot(point.store, point.bases, point.layers[1:])
                    try:
                        self._merge(below)
                    finally:
                        below.close()
            return self.shorten(point)
        except (OSError, LayerError, _Cancelled):
            return point
        except BaseException:
            point.close()
            raise
        finally:
            self._waiting -= 1

    def begin(self, point: LayerSnapshot) -> None:
        """Have the newest of the frozen layers of `point` merged in the background, if they are many.

        Takes over `point`. One at a time: while one is under way, nothing else is begun.
        """
        with self._lock:
            done = self._merged is not None and _index(point.layers, self._run) >= 0
            if self._busy or self._closed or done or len(point.layers) < deep():
                begun = False
            else:
                self._queued, self._busy, begun = point, True, True
        if begun:
            do_later(self._work)
        else:
            point.close()

    def close(self) -> None:
        """Let the layers go; a merge that is under way is given up. A second time does nothing."""
        with self._lock:
            self._closed = True
            queued, self._queued = self._queued, None
            merged, self._merged, self._run = self._merged, None, ()
        if queued is not None:
            queued.close()
        if merged is not None:
            merged.drop()
        with self._merging:
            pass  # it holds layers until it has given up

    def _work(self) -> None:
        with self._merging:
            with self._lock:
                point, self._queued = self._queued, None
            try:
                if point is not None:
                    self._merge(point)
            except (OSError, LayerError, _Cancelled):
                pass  # it was closed meanwhile, or there is no room: everything stays as it is
            finally:
                self._busy = False
                if point is not None:
                    point.close()

    def _merge(self, point: LayerSnapshot) -> None:
        run = newest(point.layers)
        layer = point.store.layer(like=point.bases[0]).hold()
        try:
            merge([one.upper for one in run], layer.upper, link=True, rest=self._rest)
            between = [one.upper for one in point.layers[len(run) :]]
            prune(layer.upper, point.bases, between, rest=self._rest)
            with self._lock:
                self._check()
                before, self._merged, self._run = self._merged, layer.hold(), run
        finally:
            layer.drop()
        if before is not None:
            before.drop()

    def _rest(self) -> None:
        self._check()
        if not self._waiting:
            rest()

    def _check(self) -> None:
        if self._closed:
            raise _Cancelled


def newest(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers that are worth merging, of frozen ones, topmost first."""
    count = min(_NEWEST, len(layers))
    total = sum(_entries(layer) for layer in layers[:count])
    while count < len(layers) and (more := _entries(layers[count], total)) <= total:
        total += more
        count += 1
    return layers[:count]


def _entries(layer: Layer, most: int = -1) -> int:
    """The number of entries of a frozen layer; some number above `most` when there are more than that."""
    if layer.entries >= 0:
        return layer.entries
    count = 0
    with Tree(layer.upper, ours=True) as tree:
        for _ in walk(tree):
            count += 1
            if 0 <= most < count:
                return count
    layer.entries = count
    return count


def _index(layers: tuple[Layer, ...], run: tuple[Layer, ...]) -> int:
    """Index at which `run` begins in `layers`; -1 when it is not there as a whole."""
    if not run or run[0] not in layers:
        return -1
    at = layers.index(run[0])
    return at if layers[at : at + len(run)] == run else -1
