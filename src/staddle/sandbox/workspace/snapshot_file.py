"""Snapshots as one file: written whole or not at all, and read as untrusted input.

The file holds the layers of every tree, the state of every shell, and the baseline of the host's files (see
layers.archive). It may come from another process or machine. Its baseline applies only to the directory that
it was taken of.

The state of a shell is text that bash printed. Only a bash in a sandbox reads it again, as when a shell is
replaced; nothing else interprets it.
"""

from __future__ import annotations

import os

from ..._value import Value
from ...errors import ArchiveRefused
from ...files.tar import UnpackBounds
from ...files.tree import Tree, walk
from ...forkserver.client import mounter
from ...layers import archive
from ...layers.baseline import Baseline
from ...layers.frozen_base import ASKED
from ...layers.stack import LayerSnapshot
from ...limits.enforced import free_share
from ...paths import WORKSPACE_PATH
from ...shell.state import Dump, SavedShell
from .stores import empty_directory, store_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Literal

    from ...layers.frozen_base import FrozenBase
    from ...layers.store import Layer

    Progress = Callable[[int, int], object]

_KIND = "sandbox"
#: Name of the directory's copy, and the most additional entries for denied paths in it.
_BASE, _MOST_PLACES = "base", 1000
_MOST_SESSIONS, _LONGEST_NAME, _MOST_STATE, _LONGEST_PATH = 1000, 1000, 32 << 20, 1 << 16


class SavedSnapshot(Value):
    """Contents of such a file. `origin` identifies its directory; empty if there is none."""

    label: str
    method: Literal["swap", "copy"]
    created: float
    trees: Mapping[str, LayerSnapshot]
    baseline: Baseline
    shells: Mapping[str, SavedShell]
    origin: Mapping[str, object]
    #: Copy of its directory, acquired for the receiver.
    base: Layer | None = None
    #: Time of the copy in nanoseconds.
    base_taken: int = 0


# ---------------------------------------------------------------- save


def save(
    saved: SavedSnapshot, path: str, progress: Progress | None = None, base: FrozenBase | None = None
) -> None:
    """Write `saved` to the file `path`, with the copy `base` of its directory.

    `progress` is called with the number of entries written and the total.
    """
    workspace = saved.trees[WORKSPACE_PATH]
    given, saved = saved, portable(saved)
    trees = saved.trees
    others = [root for root in trees if root != WORKSPACE_PATH]
    names = {WORKSPACE_PATH: "workspace", **{root: f"tree-{number}" for number, root in enumerate(others)}}
    facts = {
        "kind": _KIND,
        "label": saved.label,
        "method": saved.method,
        "created": saved.created,
        "trees": [
            {"layer": names[root], "root": root, "places": list(tree.mounted_at)}
            for root, tree in trees.items()
        ],
        "shells": {name: shell_facts(shell) for name, shell in saved.shells.items()},
        "baseline": _baseline_facts(saved.baseline, workspace.layers),
        "of": dict(saved.origin),
        "base": None if base is None else base.taken,
    }
    points = {names[root]: tree for root, tree in trees.items()}
    if base is not None:
        points[_BASE] = LayerSnapshot(workspace.store, (), (base.layer,))
    total = _entries(layer for point in points.values() for layer in point.layers) if progress else 0
    try:
        archive.save(points, path, facts=facts, progress=_counted(progress, total))
    finally:
        if saved is not given:
            trees[WORKSPACE_PATH].close()
        if base is not None:
            points[_BASE].close()
    if progress is not None:
        progress(total, total)


def portable(saved: SavedSnapshot) -> SavedSnapshot:
    """Convert to layers: a copy is condensed to a layer, which the caller closes."""
    workspace = saved.trees[WORKSPACE_PATH]
    if not workspace.is_copy:
        return saved
    from .copied import CopySnapshot

    if not isinstance(workspace, CopySnapshot):
        return saved
    before = workspace.mounted_at[0]
    shells = {name: relocated(shell, before, WORKSPACE_PATH) for name, shell in saved.shells.items()}
    return saved.replace(trees={WORKSPACE_PATH: workspace.condensed(saved.baseline)}, shells=shells)


def _counted(progress: Progress | None, total: int) -> Callable[[int], object] | None:
    if progress is None:
        return None
    return lambda done: progress(min(done, total), total)


def _entries(layers: Iterable[Layer]) -> int:
    """Count the entries; entries hidden by a higher layer count as well."""
    count = 0
    for layer in layers:
        with Tree(layer.upper, ours=True) as tree:
            count += sum(1 for _ in walk(tree))
    return count


def shell_facts(shell: SavedShell) -> dict[str, object]:
    """Convert the state of a shell to JSON, for `read_shells`."""
    dump = None if shell.dump is None else {name: _text(piece) for name, piece in shell.dump.pieces().items()}
    return {"dump": dump, "status": shell.status, "cwd": _text(shell.cwd)}


def _baseline_facts(baseline: Baseline, layers: Iterable[Layer]) -> dict[str, object]:
    """Return the baseline, with only those committed files that are still so in the layers."""
    layers = tuple(layers)
    facts = baseline.facts()
    gone = {path: None for path, mark in dict(facts["settled"]).items() if mark is None}  # type: ignore[call-overload]
    still = {
        path: (-1,)  # the files will have other inodes
        for path in baseline.settled()
        if (status := in_layers(layers, path)) and baseline.is_settled(path, status)
    }
    return {**facts, "settled": {**gone, **still}}


def in_layers(layers: Iterable[Layer], path: str) -> os.stat_result | None:
    """Return the status of `path` in the topmost layer that has an entry there."""
    for layer in layers:
        with Tree(layer.upper, ours=True) as tree:
            if (status := tree.status(path)) is not None:
                return status
    return None


# ---------------------------------------------------------------- load


def load(path: str, progress: Progress | None = None) -> SavedSnapshot:
    """Read the file `path`. Raises ArchiveRefused for a file that `save` does not write.

    Raises LayerError if it needs more than a share of the store's free space. Both create nothing. `progress`
    is called with the bytes read and the total.
    """
    bounds = {_BASE: UnpackBounds(ASKED.bytes, ASKED.entries + _MOST_PLACES)}
    store = store_for(None)
    room = free_share(store.path)
    layers, facts = archive.load(path, store, owner=mounter(), room=room, progress=progress, whole=bounds)
    try:
        return _loaded(layers, facts)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ArchiveRefused(
            "the archive is refused", why=f"its manifest is damaged: {error}", fix="save the snapshot again"
        ) from None
    finally:
        for layer in layers.values():
            layer.drop()


def _loaded(layers: Mapping[str, Layer], facts: Mapping[str, Any]) -> SavedSnapshot:
    """Build the snapshot. Raises ValueError and the like if `save` cannot have written `facts`."""
    label, method, created = facts["label"], facts["method"], facts["created"]
    if facts["kind"] != _KIND or not isinstance(label, str) or len(label) > _LONGEST_PATH:
        raise ValueError("it is of something else")
    if method not in ("swap", "copy") or not isinstance(created, float):
        raise ValueError(f"it was taken at {created!r} by {method!r}")
    trees = {tree["root"]: (str(tree["layer"]), _places(tree["places"])) for tree in facts["trees"]}
    taken = facts.get("base")  # not in files of earlier versions
    if taken is not None and (type(taken) is not int or not 0 <= taken < 1 << 63):
        raise ValueError(f"its copy of the directory was made at {taken!r}")
    expected = [*(name for name, _ in trees.values()), *([] if taken is None else [_BASE])]
    if not _places(trees) or sorted(expected) != sorted(layers):
        raise ValueError("its trees are not in it")
    shells, baseline, origin = (
        read_shells(facts["shells"]),
        Baseline.from_facts(facts["baseline"]),
        facts["of"],
    )
    if not isinstance(origin, dict):
        raise ValueError("it does not name what it belongs to")
    workspace = trees.pop(WORKSPACE_PATH)
    # Everything is valid from here on.
    store = store_for(None)
    base = empty_directory(store)
    found = {
        root: LayerSnapshot(store, [base], [layers[name]], mounted_at)
        for root, (name, mounted_at) in ((WORKSPACE_PATH, workspace), *trees.items())
    }
    copy = None if taken is None else layers[_BASE].hold()
    return SavedSnapshot(label, method, created, found, baseline, shells, origin, copy, taken or 0)


def read_shells(facts: Any) -> dict[str, SavedShell]:
    """Parse shells by session. Raises ValueError if they are not valid."""
    if not isinstance(facts, dict) or len(facts) > _MOST_SESSIONS:
        raise ValueError("it has too many sessions")
    for name in facts:
        if not name or len(name) > _LONGEST_NAME:
            raise ValueError(f"{name[:20]!r} is not a name of a session")
    return {name: _shell(shell) for name, shell in facts.items()}


def _shell(facts: dict[str, Any]) -> SavedShell:
    status, cwd = facts["status"], _bytes(facts["cwd"])
    if type(status) is not int or not 0 <= status <= 255:
        raise ValueError(f"{status!r} is not a status of a command")
    if len(cwd) > _LONGEST_PATH or b"\0" in cwd or (cwd and not cwd.startswith(b"/")):
        raise ValueError("a shell has no directory")
    if facts["dump"] is None:
        return SavedShell(None, status, cwd)
    pieces = {str(name): _bytes(piece) for name, piece in facts["dump"].items()}
    if sum(map(len, pieces.values())) > _MOST_STATE:
        raise ValueError("what a shell remembers is too much")
    dump = Dump.of_pieces(pieces)
    dump.replay(None)  # raises if no shell can read it
    return SavedShell(dump, status, cwd)


def _places(facts: Any) -> tuple[str, ...]:
    for path in facts:
        if not isinstance(path, str) or not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise ValueError(f"{path!r} is not a valid place of a tree")
    return tuple(facts)


def _text(data: bytes) -> str:
    from base64 import b64encode

    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    from base64 import b64decode

    return b64decode(text, validate=True)


def relocated(shell: SavedShell, old: str, new: str) -> SavedShell:
    """Move a shell's state to another path of its workspace."""
    if old == new:
        return shell
    before, after = os.fsencode(old), os.fsencode(new)
    dump = None
    if shell.dump is not None:
        pieces = shell.dump.pieces()
        dump = Dump.of_pieces({name: piece.replace(before, after) for name, piece in pieces.items()})
    return SavedShell(dump, shell.status, shell.cwd.replace(before, after))
