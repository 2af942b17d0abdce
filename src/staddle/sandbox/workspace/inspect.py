"""The changes and the size of a kept sandbox, by its record alone: also while it is in use."""

from __future__ import annotations

import os

from ...errors import LayerError
from ...layers import session_record
from ...layers.merged_view import LayerView
from ...policy.paths import WORKSPACE_PATH
from .layered_tree import by_tree
from .record_codec import base_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ...layers.changes import Change
    from ...layers.session_record import SessionRecord


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
                found += diff(view(tree.layers, base_paths(directory, tree.bases)), below, at=tree.root)
        return found
    except FileNotFoundError:
        raise LayerError(
            f"the layers of the kept sandbox {record.name!r} are not there",
            why="whoever works in it has just put others in their place, or they were deleted",
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
        what = "is not there" if inode == -1 else "is another directory than the one it was made for"
        raise LayerError(
            f"the kept sandbox {record.name!r} has lost its workspace",
            why=f"{record.workspace!r} {what}",
            fix=f"put it back, or let the changes go: staddle rm {record.name}",
        )
