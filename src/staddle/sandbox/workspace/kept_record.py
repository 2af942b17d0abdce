"""The record of a kept sandbox: trees and snapshots to and from it, and the changes and size that it tells.

The latter by the record alone, also while the sandbox is in use.
"""

from __future__ import annotations

import os

from ...errors import LayerError
from ...layers import session_record
from ...layers.merged_view import LayerView
from ...layers.stack import LayerSnapshot, Stack
from ...policy.paths import WORKSPACE_PATH
from .snapshot import Snapshot
from .trees import LayeredTree, by_tree, path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...layers.changes import Change
    from ...layers.session_record import SessionRecord
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


def changes(
    record: SessionRecord, paths: Collection[str] | None = None, *, everything: bool = False
) -> list[Change]:
    """The changes of a kept sandbox, also while it is in use; with `everything`, also outside the workspace.

    Only at and below `paths` when given, as they are seen inside, from the workspace; ValueError for
    one that cannot be told about.
    """
    from ...layers.changes import diff

    check_workspace(record)
    directory = f"{session_record.directory_of(record.name)}/{session_record.LAYERS}"
    base = record.workspace or f"{directory}/empty"

    def view(layers: tuple[str, ...], below: Sequence[str]) -> LayerView:
        return LayerView(tuple(f"{directory}/{name}/upper" for name in layers), tuple(below))

    mounted_at = {WORKSPACE_PATH: (WORKSPACE_PATH,), **{tree.root: tree.places for tree in record.beside}}
    chosen = None if paths is None else by_tree(paths, WORKSPACE_PATH, mounted_at)
    found = []
    try:
        if chosen is None or WORKSPACE_PATH in chosen:
            below = None if chosen is None else chosen[WORKSPACE_PATH]
            found += diff(view(record.layers, [base]), below, at=WORKSPACE_PATH, baseline=record.baseline)
        for tree in record.beside:
            if everything if chosen is None else tree.root in chosen:
                below = None if chosen is None else chosen[tree.root]
                layers = view(tree.layers, base_paths(directory, tree.bases))
                found += diff(layers, below, at=path_of(tree.root), elsewhere=True)
        return found
    except FileNotFoundError:
        raise LayerError(
            f"the layers of the kept sandbox {record.name!r} do not exist",
            why="another process has just replaced them, or they were deleted",
            fix="try again",
        ) from None


def size(record: SessionRecord) -> int:
    """The bytes that its layers take."""
    from ...layers.store import usage

    directory = f"{session_record.directory_of(record.name)}/{session_record.LAYERS}"
    return sum(usage(f"{directory}/{name}/upper") for name in record.every_layer)


def check_workspace(record: SessionRecord) -> None:
    """LayerError when the directory that a kept sandbox is of is not the one that is there now."""
    if record.workspace is None:
        return
    try:
        inode = os.stat(record.workspace).st_ino if os.path.isdir(record.workspace) else -1
    except OSError:
        inode = -1
    if inode != record.inode:
        what = "does not exist" if inode == -1 else "is another directory than the one it was made for"
        raise LayerError(
            f"the kept sandbox {record.name!r} has lost its workspace",
            why=f"{record.workspace!r} {what}",
            fix=f"put it back, or let the changes go: staddle rm --force {record.name}",
        )
