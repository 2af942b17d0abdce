"""Layers in order: `Stack`, which is mounted and written, and `LayerSnapshot`, which is frozen.

    stack = Stack.new(store, ["/home/me/project"])     mount stack.lowers, stack.top.upper, stack.top.work
    frozen = stack.freeze()                            a point to come back to; nothing is copied
    next_one = frozen.stack()                          mount this in place of it
    stack.close()                                      when it is mounted no more
    frozen.stack()                                     as often as wanted: restore, fork

A stack and a snapshot are values with references to their layers. Each is closed separately, in any order. A
layer, or a base that is a copy of ours, is deleted with its last reference. Deriving one value from another
never changes the first, so closing the result undoes a failed step. A frozen layer is never written again:
the caller of `freeze` mounts the next stack in its place, or makes a `copy`.
"""

from __future__ import annotations

import os

from ..files.remove_tree import copy_attributes
from ..files.tree import MARKS
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

    They are deleted with the last snapshot or stack that references them. `mounted_at` are the paths inside
    at which the tree was mounted.
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
        """Return another reference to this snapshot, to be closed separately."""
        return LayerSnapshot(self.store, self.bases, self.layers, self.mounted_at)

    def stack(self) -> Stack:
        """Return a stack that continues from here, with a new layer on top."""
        shown = self.layers[0].upper if self.layers else self.bases[0]
        layer = self.store.layer(like=shown).hold()
        try:
            if self.layers:
                copy_attributes(shown, layer.upper, leave_out=MARKS)
            return Stack(self.store, self.bases, self.layers, layer)
        finally:
            layer.drop()

    def view(self) -> LayerView:
        """Return the view that compares these layers with the bases."""
        return LayerView(tuple(layer.upper for layer in self.layers), self.bases)

    def squashed(self) -> LayerSnapshot:
        """Return an equivalent snapshot of one layer, to use in place of this one.

        Files are linked, not copied.
        """
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
        """Drop the layers. Does nothing when called again."""
        if self._open:
            self._open = False
            for layer in self.layers:
                layer.drop()
            _let_go(self.bases)


class Stack:
    """A writable layer, over frozen layers, over the bases (all topmost first).

    Overlayfs shows the attributes of the top layer's directory, which are copied from the layer below it.
    """

    def __init__(self, store: Store, bases: Sequence[str], frozen: Iterable[Layer], top: Layer) -> None:
        """Called by `new`, `LayerSnapshot.stack` and the methods below."""
        self.store, self.bases = store, _held(bases)
        self.frozen = tuple(layer.hold() for layer in frozen)
        self.top = top.hold()
        self._open = True

    @classmethod
    def new(cls, store: Store, bases: Sequence[str]) -> Stack:
        """Return a stack without changes."""
        return cls(store, bases, (), store.layer(like=bases[0]))

    @property
    def lowers(self) -> tuple[str, ...]:
        """The lower directories of the mount, topmost first."""
        return (*(layer.upper for layer in self.frozen), *self.bases)

    def is_untouched(self) -> bool:
        """Whether the top layer is empty, so that its mount need not be replaced."""
        try:
            with os.scandir(self.top.upper) as entries:
                return next(entries, None) is None
        except OSError as error:
            refuse_if_full(error)
            raise

    def is_unchanged_from(self, base: str | None) -> bool:
        """Whether it shows exactly the directory `base`."""
        return self.bases == (base,) and not self.frozen and self.is_untouched()

    def view(self) -> LayerView:
        """Return the view that compares all its layers with the bases."""
        return LayerView((self.top.upper, *(layer.upper for layer in self.frozen)), self.bases)

    def host_view(self) -> LayerView:
        """Return the view that compares them with the host's directory, even if a copy of it is the base."""
        hosts = tuple(map(origin, self.bases))
        return self.view() if hosts == self.bases else self.view().replace(bases=hosts, began_with=self.bases)

    def since(self, point: LayerSnapshot) -> LayerView | None:
        """Return the view of the changes since `point`; None if this stack does not come from it."""
        count = len(point.layers)
        if self.bases != point.bases or self.frozen[len(self.frozen) - count :] != point.layers:
            return None
        own = self.frozen[: len(self.frozen) - count]
        return LayerView(
            (self.top.upper, *(layer.upper for layer in own)),
            (*(layer.upper for layer in point.layers), *self.bases),
        )

    def freeze(self) -> LayerSnapshot:
        """Return a snapshot of the present layers. From now on the top layer must not be written."""
        return LayerSnapshot(self.store, self.bases, (self.top, *self.frozen))

    def below(self) -> LayerSnapshot:
        """Return a snapshot of the layers below the top, which is empty. No mount has to change."""
        return LayerSnapshot(self.store, self.bases, self.frozen)

    def copy(self) -> LayerSnapshot:
        """Return a snapshot with a copy of the top layer, for a stack that stays writable.

        Nothing may write to it during this call; LayerError if something did.
        """
        layer = self.store.layer(like=self.bases[0])
        layer.hold()
        try:
            merge([self.top.upper], layer.upper)
            return LayerSnapshot(self.store, self.bases, (layer, *self.frozen))
        finally:
            layer.drop()

    def without(self, paths: Iterable[str], *, owner: tuple[int, int] | None = None) -> Stack:
        """Return a stack without the changes at and below `paths`, to mount in place of this one.

        Changes in a frozen layer are covered with entries of the bases. If we are root, `owner` owns these.
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
        """Whether it still references its layers."""
        return self._open

    def close(self) -> None:
        """Drop the layers. Does nothing when called again."""
        if self._open:
            self._open = False
            for layer in (self.top, *self.frozen):
                layer.drop()
            _let_go(self.bases)


def _held(bases: Iterable[str]) -> tuple[str, ...]:
    """Return `bases`, with a reference to each that is a copy of ours."""
    return tuple(base.hold() if isinstance(base, FrozenBase) else base for base in bases)


def _let_go(bases: Iterable[str]) -> None:
    for base in bases:
        if isinstance(base, FrozenBase):
            base.drop()


def close_all(several: Mapping[str, LayerSnapshot | Stack]) -> None:
    """Close everything that was made for a failed step."""
    for one in several.values():
        one.close()
