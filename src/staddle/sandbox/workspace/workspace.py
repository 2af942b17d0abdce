"""`SandboxWorkspace`: the files of one sandbox, whose changes stay apart from the host's until a commit."""

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
from ...limits import disk
from ...linux.file_room import refuse_if_full
from ...policy.paths import ROOT_TREE, WORKSPACE_PATH

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
    from ...shell.state import SavedShell
    from .frozen import BaseFreezer
    from .trees import LayeredTree, MountedTrees

    Method = Literal["swap", "copy"]

#: More entries than this are not compared after each command; `diff` compares all.
MOST_ENTRIES = 1000


class SandboxWorkspace(ABC):
    """The files of one sandbox. There are three kinds:

    - `OverlayWorkspace`: layers that are mounted over the host's directory;
    - `PersistentWorkspace`: the same, in a store that outlives this process;
    - `CopiedWorkspace`: a copy of the directory, where layers cannot be mounted.

    `directory` is what lies below: the host's directory, or an empty one of ours. `trees` are the trees
    that have changes of their own, by their roots inside; that of the workspace is always among them.
    `baseline` says what the host's files were. The caller sees to it that nothing writes to the files
    during a call of anything but `changes`.

    `open.open` makes these calls, in this order:

    1. the constructor (which begins with the directory, or where a snapshot was taken), or
       `persistent.claim_workspace`;
    2. `stand_in` or, of a copy, `copy`: the plan is compiled with that;
    3. of layers only: `begin` or `rebase` (see `as_root.prepare`), then `to_mount`, which says
       what the fork server has to mount;
    4. of layers only: `adopt_home`, as soon as the fork server has answered, whatever follows: the home
       layer that it has prewarmed is ours from then on;
    5. `attach`, when the sandbox is open; everything else can be called from then on;
    6. `close`, when the sandbox has ended; or `abandon`, if there never was one.
    """

    directory: str
    trees: dict[str, LayeredTree]
    baseline: Baseline
    #: Makes copies of the directory, to lie below layers; None where there are none.
    freezer: BaseFreezer | None = None
    #: Whether it begins at a snapshot that was saved, with the copy of the directory that is in the file.
    takes_saved_base = False
    #: The path of the workspace inside.
    mounted_at = WORKSPACE_PATH
    _mounted: MountedTrees | None = None

    @property
    def stack(self) -> Stack:
        """The layers of the workspace itself."""
        return self.trees[WORKSPACE_PATH].stack

    @property
    def stand_in(self) -> str | None:
        """The empty directory below the layers of a sandbox that was given no directory; None if it was."""
        return None

    @property
    def copy(self) -> str | None:
        """The directory that takes the place of the host's, where there are no layers."""
        return None

    @property
    def is_frozen(self) -> bool:
        """Whether edits on the host are not seen inside: a copy of the directory is there, or none."""
        return False

    @property
    def is_current(self) -> bool:
        """Whether the host's directory is as the copy below the layers, if there is one."""
        return True

    def attach(self, mounted: MountedTrees, at: str) -> None:
        """The sandbox is open: `mounted` are its trees, and `at` is the path of the workspace inside."""
        self._mounted = mounted
        self._begin_watch()

    @property
    def mounts(self) -> MountedTrees:
        """The trees as they are mounted in the sandbox that has this open. LayerError while there is none."""
        if self._mounted is None:
            raise LayerError(
                "no sandbox has these layers",
                why="it was closed, or never opened",
                fix="open a sandbox first",
            )
        return self._mounted

    # ------------------------------------------------------------ shells

    #: Whether the state of shells is kept beyond the end of the sandbox.
    keeps_shells = False

    def kept_shells(self, environment: Mapping[str, str]) -> Mapping[str, SavedShell]:
        """The shells to continue with, by session, in a sandbox that is opened with `environment`."""
        return {}

    def keep_shells(  # noqa: B027 - only a workspace that outlives its process keeps any
        self, shells: Mapping[str, SavedShell], environment: Mapping[str, str]
    ) -> None:
        """Keep the shells, by session, of a sandbox that was opened with `environment`."""

    # ------------------------------------------------------------ changes

    def _begin_watch(self) -> None:
        self._watches: dict[str, ChangeWatch] = {}
        self._watching = threading.Lock()
        self._watch_trees((WORKSPACE_PATH, *(root for root in self.trees if root != WORKSPACE_PATH)))

    def _watch_trees(self, roots: Iterable[str]) -> None:
        """Watch the layers of these trees as they are now; that of the workspace is the first."""
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
        """Go on to watch the layers of these trees: what was done to them just now is no change."""
        if self._mounted is not None:
            with self._watching:
                self._watch_trees(roots)

    def changes(self) -> tuple[Change, ...] | None:
        """The changes since this was last called: those to the workspace, then those elsewhere.

        None when there are too many entries in the workspace, the sandbox is closed meanwhile, or this
        process has too many files open. A tree elsewhere with too many is left out.
        """
        changes: tuple[Change, ...] | None = ()
        with self._watching:
            watches = self._watches
            try:
                if are_untouched(watches.values()):
                    return ()
                watches[WORKSPACE_PATH].baseline = self.baseline  # another one after a discard or a restore
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
        """Every change against the workspace as it is on the host, by the path that is seen inside.

        With `everything` also those to the other trees; with `paths`, by root, at and below these only.
        """

    def drift(self, limit: int) -> Drift:
        """The changes of the host since the sandbox began with the directory, but for paths it has changed.

        None are told of a sandbox that works in a copy.
        """
        return Drift()

    @abstractmethod
    def by_tree(self, paths: Collection[str], directory: str) -> dict[str, list[str]]:
        """Paths as seen inside, from `directory`, by the roots of their trees; see `trees.by_tree`."""

    def commit(
        self,
        paths: Collection[str] | None,
        to: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Committed:
        """Take changes over to the host, or to the directory `to`; see layers.commit."""
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
        """The view of the changes over another directory, and what that had before."""
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
        """Every tree as it is now, by root, and how that was taken.

        `then` is called if other layers were mounted for that, while signals are still deferred.
        """

    @abstractmethod
    def restored(self, trees: Mapping[str, LayerSnapshot]) -> dict[str, Stack]:
        """Stacks that have to be swapped in for the trees to be as in a snapshot."""

    @abstractmethod
    def without(self, paths: Mapping[str, Collection[str]] | None) -> dict[str, Stack]:
        """Stacks that have to be swapped in to discard the changes at and below the paths in each tree.

        None: all changes to the workspace, which is then as the host has it now.
        """

    def swap(
        self, following: dict[str, Stack], then: Callable[[], object] = tuple, others: Others = "keep"
    ) -> list[NamedProcess] | None:
        """Go on with the stacks `following` in place of the present ones. On success it is emptied.

        Returns the processes that were ended for it; None if `others` are in the way, and nothing is done.
        `then` is called after it while signals are still deferred: a shell must not be left in a directory
        that is no longer there.
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
        """Have the sandbox see `stacks`; as `swap`."""

    @abstractmethod
    def replace(self, stacks: Mapping[str, Stack]) -> None:
        """Go on with `stacks`, which the sandbox sees now."""

    # ------------------------------------------------------------ the end

    def written(self) -> list[str]:
        """The directories that hold what this sandbox has written."""
        stacks = [tree.stack for tree in self.trees.values()]
        return [layer.upper for stack in stacks for layer in (stack.top, *stack.frozen)]

    #: True if deleted files in old layers exceed the quota; layers are then merged sooner.
    is_crowded = False

    def shown(self, most: int) -> disk.DiskUsage:
        """The space of what this sandbox has written and shows, and of all layers that others hold, too.

        More than `most` bytes are not counted.
        """
        total = count = 0
        for tree in list(self.trees.values()):
            layers = (tree.stack.top, *tree.stack.frozen)
            apart = {index for index, layer in enumerate(layers) if index and tree.is_shared(layer)}
            parts = [disk.shown([layer.upper for layer in layers], apart, most)]
            parts += [disk.occupied(layers[index].upper, most) for index in apart]
            total += sum(part.bytes for part in parts)
            count += sum(part.inodes for part in parts)
            if not all(part.whole for part in parts):
                return disk.DiskUsage(total, count, whole=False)
        return disk.DiskUsage(total, count)

    def abandon(self) -> None:
        """No sandbox came to be for it."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let the layers go."""
