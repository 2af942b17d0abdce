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
        if not {change.path, change.old_path} & known:
            found.append(_turned(change))
    return sorted(found, key=lambda change: change.path.split("/"))


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
