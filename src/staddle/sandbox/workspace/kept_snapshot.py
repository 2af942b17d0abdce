"""Trees and snapshots of a kept session, as they are worked with and as its record names them."""

from __future__ import annotations

import os

from ..._value import Value
from ...layers import kept
from ...layers.stack import Frozen, Stack
from .layered_tree import Beside, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...layers.baseline import Baseline
    from ...layers.store import Layer, Store


class Held(Value):
    """A kept snapshot: its layers, those of other trees by root, and since when it is there."""

    point: Frozen
    created: float
    baseline: Baseline
    beside: Mapping[str, Point]

    def layers(self) -> list[Layer]:
        """All that it is made of."""
        return [
            *self.point.layers,
            *(layer for other in self.beside.values() for layer in other.frozen.layers),
        ]

    def close(self) -> None:
        """Let the layers go."""
        self.point.close()
        for other in self.beside.values():
            other.frozen.close()


def tree(store: Store, recorded: kept.Beside, layers: Mapping[str, Layer]) -> Beside:
    """A tree to go on with."""
    top, *frozen = (layers[name] for name in recorded.layers)
    stack = Stack(store, paths(store.path, recorded.bases), frozen, top)
    return Beside(recorded.root, recorded.places, stack)


def snapshot(store: Store, base: str, recorded: kept.Point, layers: Mapping[str, Layer]) -> Held:
    """A snapshot to come back to; `base` is what its workspace's layers are over."""

    def frozen(names: Collection[str], below: Sequence[str]) -> Frozen:
        return Frozen(store, below, [layers[name] for name in names])

    beside = {
        one.root: Point(one.places, frozen(one.layers, paths(store.path, one.bases)))
        for one in recorded.beside
    }
    return Held(frozen(recorded.layers, [base]), recorded.created, recorded.baseline, beside)


def tree_record(one: Beside) -> kept.Beside:
    """What is written down of a tree."""
    layers = (one.stack.top, *one.stack.frozen)
    return kept.Beside(one.root, one.places, _bases(one.stack), names(layers))


def snapshot_record(label: str, held: Held) -> kept.Point:
    """What is written down of a snapshot."""
    beside = tuple(
        kept.Beside(root, one.places, _bases(one.frozen), names(one.frozen.layers))
        for root, one in held.beside.items()
    )
    return kept.Point(label, held.created, names(held.point.layers), held.baseline, beside)


def paths(store: str, bases: Sequence[str]) -> list[str]:
    """What a tree is over, of which the record has only a name when it is in the store."""
    return [base if base.startswith("/") else f"{store}/{base}" for base in bases]


def _bases(stack: Stack | Frozen) -> tuple[str, ...]:
    within = f"{stack.store.path}/"
    return tuple(base.removeprefix(within) for base in stack.bases)


def names(layers: Collection[Layer]) -> tuple[str, ...]:
    """How a record calls layers."""
    return tuple(os.path.basename(layer.path) for layer in layers)
