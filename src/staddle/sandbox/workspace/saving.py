"""Snapshots as one file: written whole or not at all, and read as what a stranger may have made.

The file holds the layers of every tree, the state of every shell, and what is known of the
host's files (see layers.archive). It may come from another process or another machine: where
the workspace is another directory than the one it was of, what that one was says nothing.

What a shell remembers is text that bash printed. It is told to a bash in a sandbox again, as
when a shell is replaced, and nothing else is ever made of it.
"""

from __future__ import annotations

import os

from ...errors import ArchiveRefused
from ...files.tree import Tree, walk
from ...forkserver.client import mounter
from ...layers import archive, loading
from ...layers.baseline import Baseline
from ...layers.merging import merge, prune
from ...layers.stack import Frozen
from ...policy.workspace import PLACE
from ...shell.shell_state import Remembered
from ...shell.state import Dump
from .copied import Copied, renamed
from .copied import Point as Copy
from .layered_tree import Point
from .overlay import empty_directory, store_for
from .snapshots import Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ...layers.store import Layer
    from .overlay import Layering

    Progress = Callable[[int, int], object]

_KIND = "sandbox"
_MOST_SESSIONS, _LONGEST_NAME, _MOST_STATE, _LONGEST_PATH = 1000, 1000, 32 << 20, 1 << 16


# ---------------------------------------------------------------- out


def save(snapshot: Snapshot, path: str, progress: Progress | None = None) -> None:
    """Write `snapshot` to the file `path`; `progress` is told how many of how many entries are written."""
    copy = snapshot._point if isinstance(snapshot._point, Copy) else None
    points = {"workspace": snapshot._point if copy is None else copy.condensed(snapshot._baseline)}
    trees = [{"layer": "workspace", "root": PLACE, "places": [PLACE]}]
    for number, (root, other) in enumerate(snapshot._beside.items()):
        points[f"tree-{number}"] = other.frozen
        trees.append({"layer": f"tree-{number}", "root": root, "places": list(other.places)})
    facts = {
        "kind": _KIND,
        "label": snapshot.label,
        "method": snapshot.method,
        "created": snapshot.created,
        "trees": trees,
        "shells": {name: _shell_facts(_at_home(shell, copy)) for name, shell in snapshot._shells.items()},
        "baseline": _baseline_facts(snapshot),
        "of": snapshot._of(),
    }
    total = _entries(layer for point in points.values() for layer in point.layers) if progress else 0
    try:
        archive.save(points, path, facts=facts, progress=_counted(progress, total))
    finally:
        if copy is not None:
            points["workspace"].close()
    if progress is not None:
        progress(total, total)


def _at_home(shell: Remembered, copy: Copy | None) -> Remembered:
    return shell if copy is None else renamed(shell, copy.place, PLACE)


def _counted(progress: Progress | None, total: int) -> Callable[[int], object] | None:
    if progress is None:
        return None
    return lambda done: progress(min(done, total), total)


def _entries(layers: Iterable[Layer]) -> int:
    """How many there are, at most: what a layer hides of another one is counted, too."""
    count = 0
    for layer in layers:
        with Tree(layer.upper, ours=True) as tree:
            count += sum(1 for _ in walk(tree))
    return count


def _shell_facts(shell: Remembered) -> dict[str, object]:
    dump = None if shell.dump is None else {name: _text(piece) for name, piece in shell.dump.pieces().items()}
    return {"dump": dump, "status": shell.status, "cwd": _text(shell.cwd)}


def _baseline_facts(snapshot: Snapshot) -> dict[str, object]:
    """What is known of the host's files. Of what was committed, only where the layers still have that."""
    baseline = snapshot._baseline
    facts = baseline.facts()
    gone = {path: None for path, mark in dict(facts["settled"]).items() if mark is None}  # type: ignore[call-overload]
    still = {
        path: (-1,)  # the files will have other inodes
        for path in baseline.settled()
        if (status := _in(snapshot._point.layers, path)) and baseline.is_settled(path, status)
    }
    return {**facts, "settled": {**gone, **still}}


def _in(layers: Iterable[Layer], path: str) -> os.stat_result | None:
    for layer in layers:
        with Tree(layer.upper, ours=True) as tree:
            if (status := tree.status(path)) is not None:
                return status
    return None


def identity(workspace: str) -> dict[str, object]:
    """What tells a directory from all others, also on other machines."""
    found = os.stat(workspace)
    return {
        "path": workspace,
        "device": found.st_dev,
        "inode": found.st_ino,
        "machine": _machine(),
    }


def _machine() -> str:
    try:
        with open("/etc/machine-id") as file:
            return file.read(64).strip()
    except OSError:
        return os.uname().nodename


# ---------------------------------------------------------------- in


class Loaded(Snapshot):
    """A snapshot that was read from a file: to be restored in any sandbox."""

    _origin: dict[str, object]

    @property
    def workspace(self) -> str:
        """The directory whose snapshot it is, on the machine where it was taken; empty when it had none."""
        return str(self._origin.get("path", ""))

    def _of(self) -> dict[str, object]:
        return self._origin

    def on(self, layering: Layering) -> Snapshot:
        """The same for the trees of a sandbox: with whiteouts only for what is there to be hidden."""
        if isinstance(layering, Copied):
            copy, told = layering.flattened(self._point)
            return Snapshot(self.label, self.method, copy, told, self._shells)
        made: dict[str, Frozen] = {}
        try:
            for root, stack in layering.stacks().items():
                made[root] = Frozen(stack.store, stack.bases, ())
                if root == PLACE or root in self._beside:
                    known = self._point if root == PLACE else self._beside[root].frozen
                    made[root] = _rebased(known, made[root])
            baseline = self._baseline_for(layering, made[PLACE])
        except BaseException:
            for point in made.values():
                point.close()
            raise
        workspace = made.pop(PLACE)
        beside = {root: Point(layering.beside[root].places, point) for root, point in made.items()}
        return Snapshot(self.label, self.method, workspace, baseline, self._shells, beside=beside)

    def _baseline_for(self, layering: Layering, point: Frozen) -> Baseline:
        if layering.is_nobodys or self._origin != identity(layering.workspace):
            return Baseline(layering.baseline.taken)  # nothing is known but what this sandbox began with
        baseline = self._baseline.copy()
        for path in baseline.settled():
            if status := _in(point.layers, path):
                baseline.resettle(path, status)
        return baseline


def load(path: str, progress: Progress | None = None) -> Loaded:
    """The snapshot in the file `path`. ArchiveRefused, with nothing made, for what `save` does not write.

    `progress` is told how many of how many bytes are read.
    """
    layers, facts = loading.load(path, store_for(None), owner=mounter(), progress=progress)
    try:
        return _loaded(layers, facts)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ArchiveRefused(
            "the archive is refused", why=f"its manifest is damaged: {error}", fix="nothing was made of it"
        ) from None
    finally:
        for layer in layers.values():
            layer.drop()


def _loaded(layers: Mapping[str, Layer], facts: Mapping[str, Any]) -> Loaded:
    """The snapshot with these. ValueError and the like when `facts` are not such as `save` writes."""
    label, method, created = facts["label"], facts["method"], facts["created"]
    if facts["kind"] != _KIND or not isinstance(label, str) or len(label) > _LONGEST_PATH:
        raise ValueError("it is of something else")
    if method not in ("swap", "copy") or not isinstance(created, float):
        raise ValueError(f"it was taken at {created!r} by {method!r}")
    trees = {tree["root"]: (str(tree["layer"]), _places(tree["places"])) for tree in facts["trees"]}
    if not _places(trees) or sorted(name for name, _ in trees.values()) != sorted(layers):
        raise ValueError("its trees are not in it")
    shells, baseline, origin = _shells(facts["shells"]), Baseline.from_facts(facts["baseline"]), facts["of"]
    if not isinstance(origin, dict):
        raise ValueError("it does not say what it is of")
    workspace = layers[trees.pop(PLACE)[0]]
    # From here on nothing is wrong with it.
    store = store_for(None)
    base = empty_directory(store)
    beside = {
        root: Point(places, Frozen(store, [base], [layers[name]])) for root, (name, places) in trees.items()
    }
    made = Loaded(label, method, Frozen(store, [base], [workspace]), baseline, shells, beside=beside)
    made.created, made._origin = created, origin
    return made


def _rebased(known: Frozen, empty: Frozen) -> Frozen:
    layer = empty.store.layer(like=empty.bases[0]).hold()
    try:
        merge([one.upper for one in known.layers], layer.upper, link=known.store is empty.store)
        prune(layer.upper, empty.bases)
        return Frozen(empty.store, empty.bases, (layer,))
    finally:
        layer.drop()


def _shells(facts: Any) -> dict[str, Remembered]:
    if not isinstance(facts, dict) or len(facts) > _MOST_SESSIONS:
        raise ValueError("it has too many sessions")
    for name in facts:
        if not name or len(name) > _LONGEST_NAME:
            raise ValueError(f"{name[:20]!r} is no name of a session")
    return {name: _shell(shell) for name, shell in facts.items()}


def _shell(facts: dict[str, Any]) -> Remembered:
    status, cwd = facts["status"], _bytes(facts["cwd"])
    if type(status) is not int or not 0 <= status <= 255:
        raise ValueError(f"{status!r} is no status of a command")
    if len(cwd) > _LONGEST_PATH or b"\0" in cwd or (cwd and not cwd.startswith(b"/")):
        raise ValueError("a shell is nowhere")
    if facts["dump"] is None:
        return Remembered(None, status, cwd)
    pieces = {str(name): _bytes(piece) for name, piece in facts["dump"].items()}
    if sum(map(len, pieces.values())) > _MOST_STATE:
        raise ValueError("what a shell remembers is too much")
    dump = Dump.of_pieces(pieces)
    dump.replay(None)  # what cannot be told to a shell is no state of one
    return Remembered(dump, status, cwd)


def _places(facts: Any) -> tuple[str, ...]:
    for path in facts:
        if not isinstance(path, str) or not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise ValueError(f"{path!r} is no place of a tree")
    return tuple(facts)


def _text(data: bytes) -> str:
    from base64 import b64encode

    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    from base64 import b64decode

    return b64decode(text, validate=True)
