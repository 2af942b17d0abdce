"""Changes that lead from one snapshot to another, computed from their layers without a mount."""

from __future__ import annotations

from ...layers.changes import Change, diff
from ...layers.merged_view import LayerView
from ...paths import WORKSPACE_PATH
from .trees import path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...layers.differences import Kind
    from ...layers.stack import LayerSnapshot

_OPPOSITE: dict[Kind, Kind] = {"added": "deleted", "deleted": "added"}


def changes_between(old: Mapping[str, LayerSnapshot], new: Mapping[str, LayerSnapshot]) -> list[Change]:
    """Return the changes that lead from the trees `old` to the trees `new`, the workspace's first."""
    found: list[Change] = []
    for root in (WORKSPACE_PATH, *(root for root in new if root != WORKSPACE_PATH)):
        if root in old and root in new:
            found += _compared(root, old[root], new[root])
    return found


def _compared(root: str, old: LayerSnapshot, new: LayerSnapshot) -> list[Change]:
    """Return the changes of one tree from `old` to `new`."""
    at, elsewhere = path_of(root), root != WORKSPACE_PATH
    common = 0
    while (
        common < min(len(old.layers), len(new.layers)) and old.layers[-1 - common] is new.layers[-1 - common]
    ):
        common += 1
    first = [layer.upper for layer in old.layers]
    second = [layer.upper for layer in new.layers[: len(new.layers) - common]]
    found = diff(LayerView(tuple(second), (*first, *old.bases)), at=at, elsewhere=elsewhere) if second else []
    if common == len(old.layers):
        return found  # everything that `old` has is below
    # Entries of `old` alone: compared the other way round, and turned.
    own = tuple(first[: len(first) - common])
    below = (*(layer.upper for layer in new.layers), *new.bases)
    # A pair of renamed files may be two changes on the other side.
    known = {path for change in found for path in (change.path, change.old_path) if path}
    for change in diff(LayerView(own, below), at=at, elsewhere=elsewhere):
        if (rest := _unknown_part(change, known)) is not None:
            found.append(_turned(rest))
    return sorted(found, key=lambda change: change.path.split("/"))


def _unknown_part(change: Change, known: set[str]) -> Change | None:
    """Return the change, or the half of a renaming, whose path is not known yet; None if all is."""
    is_known = change.path in known
    if change.kind != "renamed" or (change.old_path in known) == is_known:
        return None if is_known else change
    if is_known:
        part = change.replace(
            kind="deleted", path=change.old_path, type=None, size=None, mode=None, target=None
        )
    else:
        part = change.replace(kind="added", old_type=None, old_size=None, old_mode=None, old_target=None)
    part = part.replace(old_path=None)
    part._set("_source", change.__dict__.get("_source"))
    return part


def _turned(change: Change) -> Change:
    """Return the change in the other direction."""
    if change.kind == "renamed":
        turned = change.replace(path=change.old_path, old_path=change.path)
    else:
        turned = change.replace(
            kind=_OPPOSITE.get(change.kind, change.kind),
            type=change.old_type,
            size=change.old_size,
            mode=change.old_mode,
            target=change.old_target,
            old_type=change.type,
            old_size=change.size,
            old_mode=change.mode,
            old_target=change.target,
        )
    turned._set("_source", change.__dict__.get("_source"))
    turned._set("_is_turned", True)
    return turned
