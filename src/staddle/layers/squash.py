"""`Squash`: merges frozen layers of a tree into one, so that a tree with many snapshots stays shallow.

    squash = Squash()                          one for each tree
    frozen = squash.shorten(stack.freeze())    with the merged layer in place of its parts
    squash.begin(stack.below())                make the next one, in the background

Layers are merged by weight, as in a log-structured merge tree. A merge takes the newest layers, and continues
while the next older layer has no more entries than these together. So each entry is merged again about as
often as the number of snapshots can be halved, and small layers do not touch a large old layer.
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

#: From this depth on a tree is squashed in the background: lookups cost a little for every layer.
DEEP = 16
#: A tree has no more layers than this, unless a squash fails.
DEEPEST = 64
#: The least number of newest layers to merge.
_NEWEST = 8
#: A walk opens two files for each layer, and the fork server one: one part in this many of the limit.
_PART = 8


def deepest() -> int:
    """The depth at which a freeze waits for a squash, or does it; less if few files may be open."""
    return min(DEEPEST, max(open_files.LEAST, open_files.original_limit()) // _PART)


def deep() -> int:
    """The depth at which a tree is squashed in the background."""
    return min(DEEP, deepest() // 2)


class _Cancelled(Exception):
    """The tree was closed meanwhile."""


class Squash:
    """The squash of one tree: a run of its frozen layers, and the merged layer.

    The layers below a layer never change. So the merged layer can replace the run in any stack: in stacks
    made after the squash began, and in older stacks that were restored since.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Locked by the thread that merges.
        self._merging = threading.Lock()
        self._queued: LayerSnapshot | None = None
        self._busy = self._closed = False
        self._waiting = 0
        self._run: tuple[Layer, ...] = ()
        self._merged: Layer | None = None

    def holds(self, layer: Layer) -> bool:
        """Whether it has made `layer`, and references it."""
        return self._merged is layer

    def shorten(self, point: LayerSnapshot) -> LayerSnapshot:
        """Return `point`, or an equivalent with fewer layers in its place."""
        with self._lock:
            at = _index(point.layers, self._run)
            if self._merged is None or at < 0:
                return point
            layers = (*point.layers[:at], self._merged, *point.layers[at + len(self._run) :])
            made = LayerSnapshot(point.store, point.bases, layers, point.mounted_at)
        point.close()
        return made

    def shorten_now(self, point: LayerSnapshot, most: int | None = None) -> LayerSnapshot:
        """Like `shorten`, but to fewer layers than `most` (default: `deepest`): wait for a squash, or do it.

        If that fails, as on a full file system, the layers stay as they are.
        """
        point, most = self.shorten(point), most or deepest()
        if len(point.layers) < most:
            return point
        self._waiting += 1  # a squash in the background then stops pausing
        try:
            with self._merging:
                point = self.shorten(point)
                if len(point.layers) >= most:
                    # Not the topmost layer, which may be written until the next one is mounted.
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
        """Merge the newest frozen layers of `point` in the background, if there are many.

        Takes over `point`. Does nothing while another merge is in progress.
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
        """Drop the layers; a merge in progress is given up. Does nothing when called again."""
        with self._lock:
            self._closed = True
            queued, self._queued = self._queued, None
            merged, self._merged, self._run = self._merged, None, ()
        if queued is not None:
            queued.close()
        if merged is not None:
            merged.drop()
        with self._merging:
            pass  # it references layers until it has given up

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
    """Return the layers worth merging, of frozen layers, topmost first."""
    count = min(_NEWEST, len(layers))
    total = sum(_entries(layer) for layer in layers[:count])
    while count < len(layers) and (more := _entries(layers[count], total)) <= total:
        total += more
        count += 1
    return layers[:count]


def _entries(layer: Layer, most: int = -1) -> int:
    """Count the entries of a frozen layer; any number above `most` if there are more than that."""
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
    """Return the index at which `run` begins in `layers`; -1 if it is not there as a whole."""
    if not run or run[0] not in layers:
        return -1
    at = layers.index(run[0])
    return at if layers[at : at + len(run)] == run else -1
