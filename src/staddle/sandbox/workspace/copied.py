"""A workspace that is a copy of the host's directory, for hosts that cannot mount layers.

It makes the same promises: the host's directory changes only on commit; diff, discard, snapshot, restore and
fork work. Each costs time in proportion to the files. The copy uses FICLONE if the file system has it.

Unlike layers, a copy does not show which files the sandbox changed. So the baseline records every file as it
was copied. A file that still equals its record is unchanged, even if the host has since changed, added or
deleted it.
"""

from __future__ import annotations

import os
import stat

from ...errors import LayerError
from ...files.tree import LastDirectory, Tree, walk
from ...layers.baseline import Baseline, CopyBaseline
from ...layers.copied_tree import condense, exchange
from ...layers.differences import Selection, differences
from ...layers.discard import bring_back
from ...layers.host_directory import HostDirectory
from ...layers.merge import copy_of, flatten
from ...layers.merged_view import LayerView, OpenLayers
from ...layers.persistent_store import give
from ...layers.stack import LayerSnapshot, Stack
from ...paths import WORKSPACE_PATH, covers
from ...policy.workspace import compile_session
from .stores import copy_store_for, owner_of_copy
from .trees import LayeredTree, by_tree
from .workspace import SandboxWorkspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ...ipc.agent_messages import NamedProcess, Others
    from ...layers.changes import Change
    from ...layers.store import Layer, Store
    from ...policy import Policy
    from .trees import MountedTrees
    from .workspace import Method


class CopySnapshot(LayerSnapshot):
    """A copy at one moment. `unchanged` are the paths that equal the host's; None means all."""

    is_copy = True

    def __init__(self, of: CopiedWorkspace, layer: Layer, unchanged: frozenset[str] | None) -> None:
        super().__init__(of.store, [of.directory], (layer,), (of.mounted_at,))
        self._of, self._unchanged = of, unchanged

    def again(self) -> CopySnapshot:
        """Return another reference to this snapshot, to be closed separately."""
        made = CopySnapshot(self._of, self.layers[0], self._unchanged)
        made.mounted_at = self.mounted_at
        return made

    def condensed(self, baseline: Baseline) -> LayerSnapshot:
        """Convert the changes to a layer, for an archive. `baseline` is that of the snapshot."""
        view = LayerView((self.layers[0].upper,), self.bases, True, self._of.hidden)
        layer = self.store.layer(like=self.bases[0]).hold()
        try:
            with OpenLayers(view) as opened:
                found = [
                    item
                    for item in differences(opened)
                    if (
                        item.path not in (self._unchanged or ())
                        if item.new
                        else not baseline.is_as_settled(item)
                    )
                ]
            with OpenLayers(view) as opened:
                condense(opened, found, layer.upper)
            return LayerSnapshot(self.store, self.bases, (layer,), (WORKSPACE_PATH,))
        finally:
            layer.drop()

    def stack(self) -> WorkingCopy:
        """Copy it again, for the working directory."""
        return self.copied_to(self.store.layer())

    def copied_to(self, empty: Layer) -> WorkingCopy:
        """Copy it into this layer."""
        layer = empty.hold()
        try:
            copy_of(self.layers[0].upper, layer.upper, ours=True)
            return WorkingCopy(self._of, layer, self._unchanged)
        finally:
            layer.drop()

    def new_workspace(self, baseline: Baseline) -> CopiedWorkspace:
        """Return a workspace for another sandbox that continues from here."""
        return CopiedWorkspace(self._of.directory, self._of.hidden, self, baseline)


class WorkingCopy(Stack):
    """A copy to work in; see `CopySnapshot`. `baseline` belongs to it."""

    def __init__(
        self,
        of: CopiedWorkspace,
        top: Layer,
        unchanged: frozenset[str] | None,
        baseline: Baseline | None = None,
    ) -> None:
        super().__init__(of.store, [of.directory], (), top)
        self._of, self.unchanged, self.baseline = of, unchanged, baseline

    def view(self) -> LayerView:
        """Return the view that compares the copy with the host's directory."""
        return LayerView((self.top.upper,), self.bases, True, self._of.hidden)

    def copy(self) -> CopySnapshot:
        """Copy the present files."""
        layer = self.store.layer().hold()
        try:
            copy_of(self.top.upper, layer.upper, ours=True)
            return CopySnapshot(self._of, layer, self._of.untouched())
        finally:
            layer.drop()


class CopiedWorkspace(SandboxWorkspace):
    """A copy of the host's directory `directory`, in the directory `copy`."""

    store: Store

    def __init__(
        self,
        directory: str,
        hidden: Collection[str] = (),
        snapshot: CopySnapshot | None = None,
        baseline: Baseline | None = None,
    ) -> None:
        """Copy `directory` except `hidden` paths, or begin at `snapshot`, with its `baseline`."""
        self.directory, self.hidden = HostDirectory.of(directory), tuple(hidden)
        self.store = copy_store_for(directory) if snapshot is None else snapshot.store
        like = self.directory if snapshot is None else None
        layer = self.store.layer(like=like, reserved=True)
        working = self._anew(layer) if snapshot is None else snapshot.copied_to(layer)
        #: Owner of the copy, if not us. A commit gives the files to the directory's owner.
        self._owner = owner_of_copy(self.store, working.top.upper)
        self._working = begun = self._given(working)
        begun._of = self
        self.trees = {WORKSPACE_PATH: LayeredTree(WORKSPACE_PATH, (WORKSPACE_PATH,), begun)}
        self.mounted_at = self.copy
        self.baseline = baseline or begun.baseline or CopyBaseline()

    @property
    def copy(self) -> str:
        """Path of the copy on the host, in which the sandbox works."""
        return self._working.top.upper

    @property
    def is_frozen(self) -> bool:
        """Always True: it is a copy."""
        return True

    def attach(self, mounted: MountedTrees, at: str) -> None:
        """Set the path of the workspace inside, by which changes are named."""
        self.mounted_at = at
        super().attach(mounted, at)

    @property
    def baseline(self) -> Baseline:
        """Baseline; setting it marks the files of the copy that equal the host's."""
        return self._baseline

    @baseline.setter
    def baseline(self, baseline: Baseline) -> None:
        self._baseline = baseline
        unchanged = self._working.unchanged
        with Tree(self.copy, ours=True) as tree:
            for path, status in walk(tree):
                if unchanged is None or path in unchanged:
                    baseline.resettle(path, status)

    def untouched(self) -> frozenset[str]:
        """Return the paths that equal the host's."""
        with Tree(self.copy, ours=True) as tree:
            return frozenset(path for path, status in walk(tree) if self._baseline.is_settled(path, status))

    # ------------------------------------------------------------ copies

    def _given(self, working: WorkingCopy) -> WorkingCopy:
        """Give the copy to the sandbox's owner, if there is one. Marks are taken afterwards."""
        if self._owner is not None:
            os.chmod(working.top.path, 0o711)  # noqa: S103 - the sandbox may use only `upper`
            give(working.top.upper, self._owner)
        return working

    def _anew(self, empty: Layer) -> WorkingCopy:
        """Copy the directory as it is now into this layer."""
        baseline = CopyBaseline()
        layer = empty.hold()
        try:
            copy_of(self.directory, layer.upper, without=Selection(self.hidden) if self.hidden else None)
            self._note(baseline, layer.upper, Selection(None))
            return WorkingCopy(self, layer, None, baseline)
        except PermissionError as error:
            raise LayerError(
                "the workspace cannot be copied",
                why=f"{error.filename!r} cannot be read",
                fix="deny it, let it be read, or use a backend that has layers",
            ) from None
        finally:
            layer.drop()

    def freeze(self, then: Callable[[], object]) -> tuple[Method, dict[str, LayerSnapshot]]:
        """Copy the copy while everything is stopped. Nothing is mounted, so `then` is not called."""
        taken: list[LayerSnapshot] = []

        def copy() -> None:
            while taken:
                taken.pop().close()
            taken.append(self._working.copy())

        try:
            self.mounts.while_stopped(copy)
        except BaseException:
            for found in taken:
                found.close()
            raise
        return "copy", {WORKSPACE_PATH: taken[0]}

    def restored(self, trees: Mapping[str, LayerSnapshot]) -> dict[str, Stack]:
        """Copy the snapshot's files."""
        found = trees[WORKSPACE_PATH].stack()
        return {WORKSPACE_PATH: self._given(found) if isinstance(found, WorkingCopy) else found}

    def on_top(self, point: LayerSnapshot, layer: Layer, paths: Collection[str]) -> LayerSnapshot:
        """Copy the workspace at `point`, with the changes of `layer`."""
        made = self.store.layer().hold()
        try:
            flatten([layer.upper], point.layers[0].upper, made.upper)
            known = point._unchanged if isinstance(point, CopySnapshot) else None
            unchanged = self.untouched() if known is None else known
            return CopySnapshot(self, made, unchanged.difference(paths))
        finally:
            made.drop()

    def continuing(self, point: LayerSnapshot) -> dict[str, Stack]:
        """Copy the files at `point`."""
        return self.restored({WORKSPACE_PATH: point})

    def without(self, paths: Mapping[str, Collection[str]] | None) -> dict[str, Stack]:
        """Copy without the changes at and below the paths, which become as on the host now."""
        chosen = Selection(None if paths is None else paths[WORKSPACE_PATH])
        if paths is None or chosen.is_everything:
            return {WORKSPACE_PATH: self._given(self._anew(self.store.layer(like=self.directory)))}
        layer = self.store.layer().hold()
        try:
            copy_of(self.copy, layer.upper, ours=True, without=chosen)
            bring_back(self.directory, paths[WORKSPACE_PATH], layer.upper, self.hidden)
            baseline = self._baseline.copy()
            baseline.forget(chosen)
            back = self._note(baseline, layer.upper, chosen)
            untouched = {path for path in self.untouched() if not chosen.has(path)}
            made = WorkingCopy(self, layer, frozenset((*untouched, *back)), baseline)
            return {WORKSPACE_PATH: self._given(made)}
        finally:
            layer.drop()

    def _note(self, baseline: Baseline, copy: str, chosen: Selection) -> list[str]:
        """Record the host's files at the chosen paths of the copy. Returns these paths."""
        root = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with Tree(copy, ours=True) as tree:
                found = [path for path, _ in walk(tree) if chosen.has(path)]
            baseline.note(root, found)
            return found
        finally:
            os.close(root)

    def flattened(self, point: LayerSnapshot) -> tuple[CopySnapshot, Baseline]:
        """Copy the layers of `point` over the directory as it is now. Returns it with its baseline."""
        baseline = CopyBaseline()
        layer = self.store.layer(like=self.directory).hold()
        try:
            away = Selection(self.hidden) if self.hidden else None
            flatten([one.upper for one in point.layers], self.directory, layer.upper, without=away)
            if point.store.owner is not None:  # a layer's owner; a copy has the workspace's
                _give(layer.upper, point.store.owner[0], os.stat(self.directory))
            there = set(self._note(baseline, layer.upper, Selection(None)))
            for one in point.layers:
                with Tree(one.upper, ours=True) as tree:
                    for path, status in walk(tree):
                        there.discard(path)
                        if stat.S_ISCHR(status.st_mode):  # a whiteout: the sandbox deleted the file
                            self._forgo(baseline, path)
            made = CopySnapshot(self, layer, frozenset(there))
            made.mounted_at = (WORKSPACE_PATH,)  # its path in layers
            return made, baseline
        finally:
            layer.drop()

    def _forgo(self, baseline: Baseline, path: str) -> None:
        """Record that the sandbox deleted the host's files at and below `path`."""
        gone = [path]
        with Tree(self.directory, ours=False) as tree:
            if (status := tree.status(path)) is not None and stat.S_ISDIR(status.st_mode):
                gone += [f"{path}/{below}" for below, _ in walk(tree, path)]
        baseline.expect(gone)

    def _put(self, stacks: Mapping[str, Stack], others: Others) -> list[NamedProcess]:
        """Exchange the copy's contents for another's while everything is stopped.

        Running processes do not prevent it.
        """
        ended = self.mounts.end_others() if others == "end" else []
        with self.mounts.stopped():
            exchange(self.copy, stacks[WORKSPACE_PATH].top.upper)
        return ended

    def replace(self, stacks: Mapping[str, Stack]) -> None:
        """Continue with the exchanged contents, and delete the previous ones."""
        given = stacks[WORKSPACE_PATH]
        if isinstance(given, WorkingCopy):
            self._working.unchanged = given.unchanged
            self.baseline = given.baseline or self._baseline
        given.close()
        self._follow()

    # ------------------------------------------------------------ changes

    def diff(
        self, paths: Mapping[str, Collection[str]] | None = None, *, everything: bool = False
    ) -> list[Change]:
        """Return every change by the sandbox, with paths as seen inside. There is only the workspace."""
        from ...layers.changes import diff

        chosen = None if paths is None else paths[WORKSPACE_PATH]
        return diff(self.stack.view(), chosen, at=self.mounted_at, baseline=self._baseline)

    def by_tree(self, paths: Collection[str], directory: str) -> dict[str, list[str]]:
        """Map paths as seen inside, relative to `directory`; see `trees.by_tree`."""
        found = by_tree(paths, directory, {self.mounted_at: (self.mounted_at,)})
        return {WORKSPACE_PATH: [path for several in found.values() for path in several]}

    def close(self) -> None:
        """Delete the copy."""
        self.forget_forks()
        self._working.close()


def _give(directory: str, uid: int, to: os.stat_result) -> None:
    """Change the owner of `uid`'s files in a directory that no sandbox uses yet."""
    with Tree(directory, ours=True) as tree:
        found = [path for path, status in walk(tree) if status.st_uid == uid]
        last = LastDirectory(tree.root)
        for path in found:
            parent, _, name = path.rpartition("/")
            os.chown(name, to.st_uid, to.st_gid, dir_fd=last.at(parent), follow_symlinks=False)
        last.close()


# ---------------------------------------------------------------- plans


def denied_paths(policy: Policy, workspace: str) -> tuple[str, ...]:
    """Return the denied paths below a workspace, which are not copied."""
    _, alone = compile_session(policy, workspace, access="read", moved=True)
    found = () if alone is None else alone.hidden
    return tuple(item.path[len(workspace) :].lstrip("/") for item in found if covers(workspace, item.path))
