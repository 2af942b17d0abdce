"""`SandboxWorkspace`: files of one sandbox, whose changes stay apart from the host's until a commit."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod

from ...errors import InvalidCall, LayerError, TooManyOpenFiles
from ...interrupts import uninterrupted
from ...layers.baseline import OccupiedBaseline
from ...layers.change_watch import ChangeWatch, are_untouched
from ...layers.drift import Drift
from ...layers.host_directory import HostDirectory
from ...layers.stack import LayerSnapshot
from ...limits import disk
from ...linux.file_room import refuse_if_full
from ...paths import ROOT_TREE, WORKSPACE_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Literal, Unpack

    from ...ipc.agent_messages import NamedProcess, Others
    from ...layers.baseline import Baseline
    from ...layers.changes import Change
    from ...layers.commit import CommitOptions
    from ...layers.merged_view import LayerView
    from ...layers.review import Committed
    from ...layers.stack import LayerSnapshot, Stack
    from ...layers.store import Layer
    from ...shell.state import SavedShell
    from .fork_point import ForkPoint
    from .frozen import BaseFreezer
    from .trees import LayeredTree, MountedTrees

    Method = Literal["swap", "copy"]

#: Changes are compared after each command up to this many entries; `diff` compares all.
MOST_ENTRIES = 1000


class SandboxWorkspace(ABC):
    """Files of one sandbox, in one of three kinds.

    - `OverlayWorkspace`: layers that are mounted over the host's directory;
    - `PersistentWorkspace`: the same, in a store that outlives this process;
    - `CopiedWorkspace`: a copy of the directory, where layers cannot be mounted.

    `directory` is below them: the host's directory, or an empty one of ours. `trees` have their own changes,
    by their roots inside; the workspace is always among them. `baseline` records the host's files. The caller
    must ensure that nothing writes to the files during any call except `changes`.

    `open.open` makes these calls, in this order:

    1. the constructor (which begins with the directory, or where a snapshot was taken), or
       `persistent.claim_workspace`;
    2. `stand_in` or, for a copy, `copy`: the plan is compiled with it;
    3. for layers only: `begin` or `rebase` (see `as_root.prepare`), then `to_mount`, which returns
       what the fork server has to mount;
    4. for layers only: `adopt_home`, as soon as the fork server has answered, even if a later step fails:
       the prewarmed home layer is ours from then on;
    5. `attach`, when the sandbox is open; everything else can be called from then on;
    6. `close`, when the sandbox has ended, or `abandon`, if it was never opened.
    """

    directory: str
    trees: dict[str, LayeredTree]
    baseline: Baseline
    #: Copies the directory, for use below layers; None without layers.
    freezer: BaseFreezer | None = None
    #: Whether it begins at a saved snapshot, with the copy of the directory in the file.
    takes_saved_base = False
    #: Path of the workspace inside.
    mounted_at = WORKSPACE_PATH
    #: The points at which it and its parents were forked, the oldest first.
    lineage: tuple[ForkPoint, ...] = ()
    _mounted: MountedTrees | None = None
    _also_at = WORKSPACE_PATH  # where it is mounted as well, if it is another path

    @property
    def stack(self) -> Stack:
        """Layers of the workspace itself."""
        return self.trees[WORKSPACE_PATH].stack

    @property
    def stand_in(self) -> str | None:
        """Empty directory below the layers of a sandbox that was given none; else None."""
        return None

    @property
    def copy(self) -> str | None:
        """Directory that replaces the host's, where there are no layers."""
        return None

    @property
    def is_frozen(self) -> bool:
        """Whether it hides later edits on the host: below it is a copy, or no directory."""
        return False

    @property
    def is_current(self) -> bool:
        """Whether the host's directory equals the copy below the layers, if there is one."""
        return True

    def attach(self, mounted: MountedTrees, at: str) -> None:
        """Connect it to the open sandbox: its trees are `mounted`, `at` is the workspace's path inside."""
        self._mounted, self._also_at = mounted, at
        self._begin_watch()

    @property
    def mounts(self) -> MountedTrees:
        """Trees mounted in the sandbox that uses this. Raises LayerError if there is none."""
        if self._mounted is None:
            raise LayerError(
                "no sandbox has these layers",
                why="it was closed, or never opened",
                fix="open a sandbox first",
            )
        return self._mounted

    # ------------------------------------------------------------ shells

    #: Whether the state of shells outlives the sandbox.
    keeps_shells = False

    def kept_shells(self, environment: Mapping[str, str]) -> Mapping[str, SavedShell]:
        """Return the shells to continue with, by session, in a sandbox opened with `environment`."""
        return {}

    def keep_shells(  # noqa: B027 - only a persistent workspace keeps any
        self, shells: Mapping[str, SavedShell], environment: Mapping[str, str]
    ) -> None:
        """Save the shells, by session, of a sandbox opened with `environment`."""

    # ------------------------------------------------------------ changes

    def _begin_watch(self) -> None:
        self._watches: dict[str, ChangeWatch] = {}
        self._watching = threading.Lock()
        self._watch_trees((WORKSPACE_PATH, *(root for root in self.trees if root != WORKSPACE_PATH)))

    def _watch_trees(self, roots: Iterable[str]) -> None:
        """Watch the present layers of these trees, the workspace first."""
        for root in roots:
            view, ours = self.trees[root].stack.view(), root == WORKSPACE_PATH
            if root in self._watches:
                self._watches[root].follow(view)
            else:
                self._watches[root] = ChangeWatch(
                    view,
                    baseline=self.baseline if ours else None,
                    at=self.mounted_at if ours else "/" if root == ROOT_TREE else root,
                    most=MOST_ENTRIES,
                    elsewhere=not ours,
                )

    def _follow(self, roots: Iterable[str] = (WORKSPACE_PATH,)) -> None:
        """Watch the replaced layers of these trees: the replacement itself is no change."""
        if self._mounted is not None:
            with self._watching:
                self._watch_trees(roots)

    def changes(self) -> tuple[Change, ...] | None:
        """Return the changes since the last call: to the workspace, then elsewhere.

        None if the workspace has too many entries, the sandbox is closed meanwhile, or this process has too
        many open files. Other trees with too many entries are left out.
        """
        changes: tuple[Change, ...] | None = ()
        with self._watching:
            watches = self._watches
            try:
                if are_untouched(watches.values()):
                    return ()
                watches[WORKSPACE_PATH].baseline = self.baseline  # a discard or a restore replaces it
                for root, watch in watches.items():
                    found = watch.look()
                    if found and changes is not None:
                        changes += found
                    elif found is None and root == WORKSPACE_PATH:
                        changes = None
            except (FileNotFoundError, TooManyOpenFiles):
                return None
        return changes

    @abstractmethod
    def diff(
        self, paths: Mapping[str, Collection[str]] | None = None, *, everything: bool = False
    ) -> list[Change]:
        """Return every change against the workspace on the host, with paths as seen inside.

        `everything` adds the changes to the other trees; `paths`, by root, limits them to these paths.
        """

    def drift(self, limit: int) -> Drift:
        """Return the host's changes since the sandbox began, except at paths that it has changed.

        A sandbox that works in a copy reports none.
        """
        return Drift()

    @abstractmethod
    def by_tree(self, paths: Collection[str], directory: str) -> dict[str, list[str]]:
        """Map paths as seen inside, relative to `directory`, to their trees; see `trees.by_tree`."""

    def commit(
        self,
        paths: Collection[str] | None,
        to: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Committed:
        """Write changes to the host, or to the directory `to`; see layers.commit."""
        from ...layers.commit import commit

        if to is not None:
            view, baseline = self._elsewhere(to)
            return commit(view, paths=paths, baseline=baseline, **options)
        if self.stand_in is not None:
            raise LayerError(
                "there is nothing to commit to",
                why="the sandbox was opened without a workspace",
                fix="open it with one",
            )

        return commit(self.stack.host_view(), paths=paths, baseline=self.baseline, **options)

    def _elsewhere(self, to: str) -> tuple[LayerView, Baseline]:
        """Return the view of the changes over another directory, and a baseline for it."""
        try:
            target = HostDirectory.of(os.path.realpath(to))
        except OSError as error:
            refuse_if_full(error)
            raise InvalidCall(
                f"{to!r} cannot be committed to",
                why=error.strerror or str(error),
                fix="name a directory that you can write",
            ) from None
        view = self.stack.host_view().replace(bases=(target,))
        if isinstance(self.directory, HostDirectory) and self.directory.is_same(target):
            return view, self.baseline  # it was moved there
        if self.copy is not None:
            raise LayerError(
                "the work cannot be written to another directory",
                why="the sandbox works in a copy, which shows nothing of other directories",
                fix="snapshot().save(FILE), and Sandbox.from_snapshot(FILE, DIRECTORY)",
            )
        return view, OccupiedBaseline()

    # ------------------------------------------------------------ snapshots

    @abstractmethod
    def freeze(self, then: Callable[[], object]) -> tuple[Method, dict[str, LayerSnapshot]]:
        """Freeze every tree, by root. Returns also how that was done.

        If other layers were mounted for it, `then` is called while signals are still deferred.
        """

    @abstractmethod
    def restored(self, trees: Mapping[str, LayerSnapshot]) -> dict[str, Stack]:
        """Return the stacks to swap in so that the trees are as in a snapshot."""

    @abstractmethod
    def without(self, paths: Mapping[str, Collection[str]] | None) -> dict[str, Stack]:
        """Return the stacks to swap in to discard the changes at and below the paths in each tree.

        None: all changes to the workspace, which is then as on the host now.
        """

    def on_top(self, point: LayerSnapshot, layer: Layer, paths: Collection[str]) -> LayerSnapshot:
        """Return the workspace at `point` with `layer` on top, which changes `paths`."""
        return LayerSnapshot(point.store, point.bases, (layer, *point.layers), point.mounted_at)

    def continuing(self, point: LayerSnapshot) -> dict[str, Stack]:
        """Return the stack to swap in so that the workspace alone is as at `point`."""
        return {WORKSPACE_PATH: point.stack()}

    def forget_forks(self) -> None:
        """Release the points at which it was forked."""
        lineage, self.lineage = self.lineage, ()
        for each in lineage:
            each.tree.close()

    def swap(
        self, following: dict[str, Stack], then: Callable[[], object] = tuple, others: Others = "keep"
    ) -> list[NamedProcess] | None:
        """Continue with the stacks `following` in place of the present ones. On success it is emptied.

        Returns the processes that were ended for it, or None if `others` prevent it, and then nothing is
        done. `then` is called afterwards while signals are still deferred: a shell must not stay in a
        directory that is gone.
        """

        def work() -> list[NamedProcess] | None:
            ended = self._put(following, others)
            if ended is not None:
                self.replace(following)
                following.clear()
                then()
            return ended

        return uninterrupted(work)

    @abstractmethod
    def _put(self, stacks: Mapping[str, Stack], others: Others) -> list[NamedProcess] | None:
        """Show `stacks` to the sandbox; as `swap`."""

    @abstractmethod
    def replace(self, stacks: Mapping[str, Stack]) -> None:
        """Continue with `stacks`, which the sandbox sees now."""

    # ------------------------------------------------------------ space and end

    def written(self) -> list[str]:
        """Return the directories that hold the sandbox's writes."""
        stacks = [tree.stack for tree in self.trees.values()]
        return [layer.upper for stack in stacks for layer in (stack.top, *stack.frozen)]

    #: True if deleted files in old layers exceed the quota; layers are then merged sooner.
    is_crowded = False
    #: Number of points of the history that use a layer. The history has a limit of its own.
    layer_points: Mapping[Layer, int] = {}

    def shown(self, most: int) -> disk.DiskUsage:
        """Return the space of the sandbox's visible writes, and of layers that others also use.

        Counting stops above `most` bytes.
        """
        total = count = 0
        for tree in list(self.trees.values()):
            layers = (tree.stack.top, *tree.stack.frozen)
            points = self.layer_points
            apart = {
                index
                for index, layer in enumerate(layers)
                if index and tree.is_shared(layer, points.get(layer, 0))
            }
            parts = [disk.shown([layer.upper for layer in layers], apart, most)]
            parts += [disk.occupied(layers[index].upper, most) for index in apart]
            total += sum(part.bytes for part in parts)
            count += sum(part.inodes for part in parts)
            if not all(part.whole for part in parts):
                return disk.DiskUsage(total, count, whole=False)
        return disk.DiskUsage(total, count)

    def abandon(self) -> None:
        """Release it: no sandbox was opened with it."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release the layers."""
