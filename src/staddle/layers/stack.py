"""Layers in their order: `Stack`, which is mounted and written, and `LayerSnapshot`, which is frozen.

    stack = Stack.new(store, ["/home/me/project"])     mount stack.lowers, stack.top.upper, stack.top.work
    frozen = stack.freeze()                            a point to come back to; nothing is copied
    next_one = frozen.stack()                          mount this in place of it
    stack.close()                                      when it is mounted no more
    frozen.stack()                                     as often as wanted: restore, fork

A stack and a frozen point are values that hold their layers: each is closed on its own, in any
order, and a layer, or a base that is a copy of ours, goes with the last that holds it. Making one of
another never changes the first, so a step that fails is taken back by closing what it made. What is
frozen is never written again: the caller of `freeze` mounts the next one in its place, or makes a `copy`.
"""

from __future__ import annotations

import os

from ..linux.file_room import refuse_if_full
from .frozen_base import FrozenBase, origin
from .merge import merge, prune
from .merged_view import LayerView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .store import Layer, Store


class LayerSnapshot:
    """The layers of one tree at one moment, over the bases. Nothing writes to them any more.

    They are deleted with the last snapshot or stack that holds them. `mounted_at` are the paths inside
    where the tree was seen.
    """

    #: Whether it is a whole copy instead of a layer.
    is_copy = False

    def __init__(
        self, store: Store, bases: Sequence[str], layers: Iterable[Layer], mounted_at: tuple[str, ...] = ()
    ) -> None:
        self.store, self.bases, self.mounted_at = store, _held(bases), mounted_at
        self.layers = tuple(layer.hold() for layer in layers)
        self._open = True

    def again(self) -> LayerSnapshot:
        """The same point once more, to be closed on its own."""
        return LayerSnapshot(self.store, self.bases, self.layers, self.mounted_at)

    def stack(self) -> Stack:
        """A stack that continues from here, with a new layer on top."""
        return Stack(self.store, self.bases, self.layers, self.store.layer(like=self.bases[0]))

    def view(self) -> LayerView:
        """The view that compares these layers with the bases."""
        return LayerView(tuple(layer.upper for layer in self.layers), self.bases)

    def squashed(self) -> LayerSnapshot:
        """The same in one layer. Files are linked, not copied. To be used in place of this one."""
        if len(self.layers) < 2:
            return self.again()
        layer = self.store.layer(like=self.bases[0])
        layer.hold()
        try:
            merge([one.upper for one in self.layers], layer.upper, link=True)
            prune(layer.upper, self.bases)
            return LayerSnapshot(self.store, self.bases, (layer,), self.mounted_at)
        finally:
            layer.drop()

    def close(self) -> None:
        """Let the layers go. A second time does nothing."""
        if self._open:
            self._open = False
            for layer in self.layers:
                layer.drop()
            _let_go(self.bases)


class Stack:
    """A layer that is written, over frozen ones, over the bases (all topmost first).

    `like`, the mode of the first base, is what the mounted directory looks like: overlayfs takes
    it from the upper layer.
    """

    def __init__(self, store: Store, bases: Sequence[str], frozen: Iterable[Layer], top: Layer) -> None:
        """Called by `new`, `LayerSnapshot.stack` and the methods below."""
        self.store, self.bases = store, _held(bases)
        self.frozen = tuple(layer.hold() for layer in frozen)
        self.top = top.hold()
        self._open = True

    @classmethod
    def new(cls, store: Store, bases: Sequence[str]) -> Stack:
        """A stack in which nothing has been changed yet."""
        return cls(store, bases, (), store.layer(like=bases[0]))

    @property
    def lowers(self) -> tuple[str, ...]:
        """The lower directories of the mount, topmost first."""
        return (*(layer.upper for layer in self.frozen), *self.bases)

    def is_untouched(self) -> bool:
        """Whether nothing has been written to the top layer: a mount of it need not be changed."""
        try:
            with os.scandir(self.top.upper) as entries:
                return next(entries, None) is None
        except OSError as error:
            refuse_if_full(error)
            raise

    def view(self) -> LayerView:
        """The view that compares all its layers with the bases."""
        return LayerView((self.top.upper, *(layer.upper for layer in self.frozen)), self.bases)

    def host_view(self) -> LayerView:
        """The view that compares them with the host's directory, also where a copy of that lies below."""
        hosts = tuple(map(origin, self.bases))
        return self.view() if hosts == self.bases else self.view().replace(bases=hosts, began_with=self.bases)

    def since(self, point: LayerSnapshot) -> LayerView | None:
        """The view of the changes since `point`, or None when this stack does not come from it."""
        count = len(point.layers)
        if self.bases != point.bases or self.frozen[len(self.frozen) - count :] != point.layers:
            return None
        own = self.frozen[: len(self.frozen) - count]
        return LayerView(
            (self.top.upper, *(layer.upper for layer in own)),
            (*(layer.upper for layer in point.layers), *self.bases),
        )

    def freeze(self) -> LayerSnapshot:
        """Snapshot of the present layers. From now on the top may not be written any more."""
        return LayerSnapshot(self.store, self.bases, (self.top, *self.frozen))

    def below(self) -> LayerSnapshot:
        """Snapshot of the layers below the top, which is empty. Nothing has to be mounted anew."""
        return LayerSnapshot(self.store, self.bases, self.frozen)

    def copy(self) -> LayerSnapshot:
        """Snapshot with a copy of the top layer: for a stack that goes on being written.

        Nothing may write to it during this call; LayerError when something did.
        """
        layer = self.store.layer(like=self.bases[0])
        layer.hold()
        try:
            merge([self.top.upper], layer.upper)
            return LayerSnapshot(self.store, self.bases, (layer, *self.frozen))
        finally:
            layer.drop()

    def without(self, paths: Iterable[str], *, owner: tuple[int, int] | None = None) -> Stack:
        """The same without the changes at and below `paths`, for the mount in its place.

        What was changed there in a frozen layer is covered with what the bases have; `owner`
        gets the files for that, when we are root.
        """
        from .discard import discard

        layer = self.store.layer(like=self.bases[0])
        layer.hold()
        try:
            discard(self.view(), tuple(paths), layer.upper, owner)
            return Stack(self.store, self.bases, self.frozen, layer)
        finally:
            layer.drop()

    @property
    def is_open(self) -> bool:
        """Whether it holds its layers."""
        return self._open

    def close(self) -> None:
        """Let the layers go. A second time does nothing."""
        if self._open:
            self._open = False
            for layer in (self.top, *self.frozen):
                layer.drop()
            _let_go(self.bases)


def _held(bases: Iterable[str]) -> tuple[str, ...]:
    """All of `bases`; those that are copies of ours are held."""
    return tuple(base.hold() if isinstance(base, FrozenBase) else base for base in bases)


def _let_go(bases: Iterable[str]) -> None:
    for base in bases:
        if isinstance(base, FrozenBase):
            base.drop()


def close_all(several: Mapping[str, LayerSnapshot | Stack]) -> None:
    """Close what was made for a step that failed."""
    for one in several.values():
        one.close()
