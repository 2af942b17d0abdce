"""The trees and snapshots of a kept sandbox, to and from its record."""

from __future__ import annotations

import os

from ...layers import session_record
from ...layers.stack import LayerSnapshot, Stack
from ...policy.paths import WORKSPACE_PATH
from .layered_tree import LayeredTree
from .snapshot import Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...layers.store import Layer, Store


def tree(store: Store, recorded: session_record.TreeRecord, layers: Mapping[str, Layer]) -> LayeredTree:
    """A recorded tree, to go on with."""
    top, *frozen = (layers[name] for name in recorded.layers)
    stack = Stack(store, base_paths(store.path, recorded.bases), frozen, top)
    return LayeredTree(recorded.root, recorded.places, stack)


def snapshot(
    store: Store, base: str, recorded: session_record.SnapshotRecord, layers: Mapping[str, Layer]
) -> Snapshot:
    """A recorded snapshot; `base` is what the layers of its workspace are over. It has no shells."""

    def frozen(names: Collection[str], below: Sequence[str], mounted_at: tuple[str, ...]) -> LayerSnapshot:
        return LayerSnapshot(store, below, [layers[name] for name in names], mounted_at)

    trees = {WORKSPACE_PATH: frozen(recorded.layers, [base], (WORKSPACE_PATH,))}
    for one in recorded.beside:
        trees[one.root] = frozen(one.layers, base_paths(store.path, one.bases), one.places)
    return Snapshot(recorded.label, "swap", trees, recorded.baseline, {}, created=recorded.created)


def tree_record(one: LayeredTree) -> session_record.TreeRecord:
    """The record of a tree."""
    layers = (one.stack.top, *one.stack.frozen)
    return session_record.TreeRecord(one.root, one.mounted_at, _bases(one.stack), layer_names(layers))


def snapshot_record(taken: Snapshot) -> session_record.SnapshotRecord:
    """The record of a snapshot."""
    others = tuple(
        session_record.TreeRecord(root, one.mounted_at, _bases(one), layer_names(one.layers))
        for root, one in taken._trees.items()
        if root != WORKSPACE_PATH
    )
    layers = layer_names(taken._trees[WORKSPACE_PATH].layers)
    return session_record.SnapshotRecord(taken.label, taken.created, layers, taken._baseline, others)


def base_paths(store: str, bases: Sequence[str]) -> list[str]:
    """The directories below a tree. One that is in the store is recorded by its name there."""
    return [base if base.startswith("/") else f"{store}/{base}" for base in bases]


def _bases(stack: Stack | LayerSnapshot) -> tuple[str, ...]:
    within = f"{stack.store.path}/"
    return tuple(base.removeprefix(within) for base in stack.bases)


def layer_names(layers: Collection[Layer]) -> tuple[str, ...]:
    """The names of layers in a record."""
    return tuple(os.path.basename(layer.path) for layer in layers)
