"""A workspace of layers that are mounted over the host's directory, and the other trees."""

from __future__ import annotations

import os
from functools import partial

from ...background import do_later, let_catch_up
from ...forkserver.client import HomeTree, mounter
from ...inside.agent.mount_swap import HOME_TREE
from ...layers.baseline import Baseline
from ...layers.drift import Drift, drift
from ...layers.frozen_base import FrozenBase
from ...layers.host_directory import HostDirectory
from ...layers.stack import LayerSnapshot, Stack, close_all
from ...layers.store import Layer
from ...paths import WORKSPACE_PATH, covers
from .home_layer import home_layer
from .prepared_stacks import MountedStacks, PreparedStacks
from .stores import EMPTY, empty_directory, store_for
from .trees import LayeredTree, by_tree, overlay_dirs, path_of
from .workspace import SandboxWorkspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ...forkserver.connection import OverlayDirs
    from ...ipc.agent_messages import NamedProcess, Others
    from ...layers.changes import Change
    from ...layers.store import Store
    from ...mounts.operations import Operation
    from .frozen import BaseFreezer
    from .kept_points import KeptPoints
    from .workspace import Method


#: The number of layers at which a freeze squashes them if space is short.
_FEW = 3


class OverlayWorkspace(SandboxWorkspace):
    """Overlay layers over the host's directory. One store of this process holds all its sandboxes' layers."""

    #: Host uid of the sandbox's root, if that is not its user.
    root_uid: int | None = None
    #: Copy of the directory that it began with, if it is frozen.
    _own_base: FrozenBase | None = None
    #: Whether layers that the history keeps exceed its bytes; they are then merged sooner.
    is_heavy = False
    #: Points of its history that outlive the process; None if none do.
    kept_points: KeptPoints | None = None
    #: Newest copy for its forks, reused while the directory is unchanged.
    _fork_base: FrozenBase | None = None

    def __init__(
        self,
        directory: str | None,
        trees: Mapping[str, LayerSnapshot] | None = None,
        baseline: Baseline | None = None,
        *,
        freezer: BaseFreezer | None = None,
        freeze: bool | None = False,
    ) -> None:
        """Begin with `directory` (None: empty), or with the `trees` and `baseline` of a snapshot.

        `freezer` copies the directory. `freeze` begins with a copy; None does so if the directory is small.
        """
        self.freezer = freezer
        directory = None if directory is None else HostDirectory.of(directory)
        if trees is None:
            store = store_for(directory)
            place = directory or empty_directory(store)
            base = None
            if freezer is not None and freeze is not False and directory is not None:
                base = freezer.freeze(store, directory, asked=bool(freeze))
            try:
                stack = Stack.new(store, [place if base is None else base])
            finally:
                if base is not None:
                    base.drop()  # the stack holds it
            self._start(place, stack, baseline)
            return
        if directory is not None:
            directory.check()  # it may have been moved since the snapshot
        workspace = trees[WORKSPACE_PATH]
        self._start(directory or empty_directory(workspace.store), workspace.stack(), baseline)
        try:
            for root, tree in trees.items():
                if root != WORKSPACE_PATH:
                    self.trees[root] = LayeredTree(root, tree.mounted_at, tree.stack())
        except BaseException:
            self.close()
            raise

    def _start(self, directory: str, stack: Stack, baseline: Baseline | None) -> None:
        self.directory = directory
        self.trees = {WORKSPACE_PATH: LayeredTree(WORKSPACE_PATH, (WORKSPACE_PATH,), stack)}
        self._prepared = PreparedStacks()
        lowest = stack.bases[-1]
        if isinstance(lowest, FrozenBase):
            self._own_base = lowest.hold()
        self.baseline = baseline or Baseline(None if self._own_base is None else self._own_base.taken)

    def _is_there(self) -> bool:
        """Whether the directory is still at its path, by which the fork server mounts it."""
        return not isinstance(self.directory, HostDirectory) or self.directory.is_there()

    def _check_directory(self) -> None:
        if isinstance(self.directory, HostDirectory):
            self.directory.check()

    @property
    def stand_in(self) -> str | None:
        """Empty directory below the layers, if there is no host directory to commit to."""
        return self.directory if self.directory == f"{self.stack.store.path}/{EMPTY}" else None

    @property
    def is_frozen(self) -> bool:
        """Whether a copy of the directory, or an empty directory of ours, is below the layers."""
        return self._base is not None or self.stand_in is not None

    @property
    def _base(self) -> FrozenBase | None:
        lowest = self.stack.bases[-1]
        return lowest if isinstance(lowest, FrozenBase) else None

    @property
    def is_current(self) -> bool:
        """Whether the host's directory equals the copy below the layers, if any. Walks it."""
        return self._base is None or self._base.is_current

    def keep_for_forks(self, base: FrozenBase) -> None:
        """Hold the copy that forks began with until it is closed or replaced by a newer one."""
        before, self._fork_base = self._fork_base, base.hold()
        if before is not None:
            before.drop()

    @property
    def has_system(self) -> bool:
        """Whether system directories are in layers as well, so that root inside can write them."""
        return "/usr" in self.trees

    # ------------------------------------------------------------ opening

    def begin(self, bases: Mapping[str, Sequence[str]]) -> None:
        """Add layers for these system directories, before they are mounted."""
        for root, below in bases.items():
            stack = Stack.new(self.stack.store, below)
            self.trees[root] = LayeredTree(root, (path_of(root),), stack)

    def rebase(self, bases: Mapping[str, Sequence[str]], mounted_at: tuple[str, ...] = ()) -> None:
        """Replace the lower directories of existing trees, before they are mounted."""
        for root, below in bases.items():
            if (tree := self.trees.get(root)) is not None:
                before = tree.stack
                tree.stack = Stack(before.store, below, before.frozen, before.top)
                tree.mounted_at = mounted_at or tree.mounted_at
                before.close()

    def to_mount(
        self, mount_points: tuple[str, ...], operations: Sequence[Operation]
    ) -> tuple[OverlayDirs, HomeTree | None, dict[str, OverlayDirs]]:
        """Return the directories to mount: for the workspace, the home tree and system directories.

        The home tree is the existing one, or a fresh one over the home layer with `operations`.
        """
        system = {
            root: tree.dirs for root, tree in self.trees.items() if root not in (WORKSPACE_PATH, HOME_TREE)
        }
        return self.trees[WORKSPACE_PATH].dirs, self._home(mount_points, operations), system

    def _home(self, mount_points: tuple[str, ...], operations: Sequence[Operation]) -> HomeTree | None:
        if not mount_points:
            return None
        store = self.stack.store
        skeleton = None if store.is_persistent else home_layer(store, operations, self.root_uid)
        before = self.trees.get(HOME_TREE)
        if before is not None and before.stack.is_unchanged_from(skeleton):
            self.trees.pop(HOME_TREE).stack.close()  # the home layer of a spare shows the same files
        if HOME_TREE not in self.trees and skeleton is None:
            stack = Stack.new(store, [home_layer(store, operations, self.root_uid)])
            self.trees[HOME_TREE] = LayeredTree(HOME_TREE, mount_points, stack)
        self._fresh_home = (mount_points, skeleton)
        begun = self.trees.get(HOME_TREE)
        return HomeTree(skeleton, None if begun is None else begun.dirs)

    def adopt_home(self, layer: str) -> None:
        """Take over the home layer that the fork server has prewarmed, by its name."""
        mount_points, skeleton = self._fresh_home
        store = self.stack.store
        fresh = Stack(store, [skeleton or ""], (), Layer(store, f"{store.path}/{layer}"))
        if HOME_TREE in self.trees:
            fresh.close()  # it continues with an existing one
        else:
            self.trees[HOME_TREE] = LayeredTree(HOME_TREE, mount_points, fresh)

    def begin_now(self) -> None:
        """Begin with the directory as it is now, in an unused sandbox that was opened in advance."""
        self.baseline = Baseline()
        self._begin_watch()

    # ------------------------------------------------------------ changes

    def diff(
        self, paths: Mapping[str, Collection[str]] | None = None, *, everything: bool = False
    ) -> list[Change]:
        """Return every change against the workspace on the host, with paths as seen inside.

        `everything` adds the changes to the other trees; `paths`, by root, limits them to these paths.
        """
        found: list[Change] = []
        for root, tree in self.trees.items():
            if root in paths if paths is not None else everything or root == WORKSPACE_PATH:
                baseline = self.baseline if root == WORKSPACE_PATH else None
                found += tree.diff(None if paths is None else paths[root], baseline)
        return found

    def drift(self, limit: int) -> Drift:
        """Return the host's changes since the sandbox began with the directory, or with its copy."""
        if self.stand_in is not None:
            return Drift()
        layers, since = self.stack.view().layers, self.baseline.taken
        if self._base is not None:
            since = self._base.taken
        return drift(self.directory, since / 1e9, layers, at=self.mounted_at, limit=limit)

    def by_tree(self, paths: Collection[str], directory: str) -> dict[str, list[str]]:
        """Map paths as seen inside, relative to `directory`, to their trees; see `trees.by_tree`."""
        mounted_at = {root: tree.mounted_at for root, tree in self.trees.items()}
        wholes = (os.path.normpath(os.path.join(directory, path)) for path in paths)
        also = self._also_at
        named = [WORKSPACE_PATH + path[len(also) :] if covers(also, path) else path for path in wholes]
        return by_tree(named, directory, mounted_at)

    # ------------------------------------------------------------ snapshots

    def freeze(self, then: Callable[[], object]) -> tuple[Method, dict[str, LayerSnapshot]]:
        """Freeze every tree, and mount a new layer on top of each that was written to.

        A running program would continue with the old layers. So if one runs, or if the host's directory was
        moved and nothing can be mounted, everything is stopped and the layers are copied.
        """
        frozen: dict[str, LayerSnapshot] = {}
        touched: dict[str, LayerSnapshot] = {}
        following = MountedStacks()
        try:
            for root, tree in self.trees.items():
                if tree.stack.is_untouched():
                    frozen[root] = tree.below()
                else:
                    frozen[root] = tree.freeze(_FEW if self.is_crowded or self.is_heavy else None)
                    touched[root] = frozen[root]
            if not touched or self.mounts.are_lost:  # nothing writes to the layers any more
                return "swap", frozen
            following = self._prepared.take(touched)
            for root in touched.keys() - following.keys():
                following[root] = touched[root].stack()
            if self._is_there() and self.swap(following, then, "refuse") is not None:
                if not self.stack.store.is_persistent:
                    self._prepared.begin([self.trees[root] for root in touched], self._mount)
                for tree in self.trees.values():
                    tree.squash_deep()
                let_catch_up()  # each snapshot leaves files to delete
                return "swap", frozen

            def copy() -> None:
                for root in touched:
                    copied = self.trees[root].copy()
                    frozen[root].close()
                    frozen[root] = copied

            self.mounts.while_stopped(copy)
            return "copy", frozen
        except BaseException:
            close_all(frozen)
            raise
        finally:
            following.close()

    def restored(self, trees: Mapping[str, LayerSnapshot]) -> dict[str, Stack]:
        """Return stacks that restore a snapshot's trees; a tree that it lacks begins anew."""
        following: dict[str, Stack] = {}
        try:
            for root, tree in self.trees.items():
                known = trees.get(root)
                layers = () if known is None else known.layers
                if root != WORKSPACE_PATH and tree.stack.frozen == layers and tree.stack.is_untouched():
                    continue  # unchanged
                following[root] = tree.fresh() if known is None else self._continued(root, known)
            for root, known in trees.items():
                if root not in (HOME_TREE, *self.trees):
                    following[root] = known.stack()
            return following
        except BaseException:
            close_all(following)
            raise

    def _continued(self, root: str, known: LayerSnapshot) -> Stack:
        """Return a stack that continues `known`; a frozen workspace keeps its copy if `known` has none."""
        if root != WORKSPACE_PATH or self._own_base is None or isinstance(known.bases[-1], FrozenBase):
            return known.stack()
        frozen = LayerSnapshot(known.store, [self._own_base], known.layers)
        try:
            return frozen.stack()
        finally:
            frozen.close()

    def without(self, paths: Mapping[str, Collection[str]] | None) -> dict[str, Stack]:
        """Return stacks without the changes at and below the paths in each tree; None: the workspace."""
        if paths is None:
            return {WORKSPACE_PATH: self._anew()}
        found: dict[str, Stack] = {}
        try:
            for root, chosen in paths.items():
                found[root] = self.trees[root].stack.without(chosen, owner=mounter())
        except BaseException:
            close_all(found)
            raise
        return found

    def _anew(self) -> Stack:
        """Return a stack without changes: the workspace as it is from now on, or its copy."""
        self.baseline = Baseline(None if self._base is None else self._base.taken)
        return self.trees[WORKSPACE_PATH].fresh()

    def _put(self, stacks: Mapping[str, Stack], others: Others) -> list[NamedProcess] | None:
        """Mount `stacks` in place of the present ones."""
        self._check_directory()
        mounts = stacks.mounts if isinstance(stacks, MountedStacks) else ()
        return self.mounts.swap(_dirs(stacks), others, mounts)

    def _mount(self, stacks: Mapping[str, Stack]) -> list[int]:
        return self.mounts.mount(_dirs(stacks))

    def replace(self, stacks: Mapping[str, Stack]) -> None:
        """Continue with `stacks`, which are mounted now."""
        self._prepared.drop()
        before = []
        for root, stack in stacks.items():
            if root in self.trees:
                before.append(self.trees[root].replace(stack))
            else:
                self.trees[root] = LayeredTree(root, (path_of(root),), stack)
        self._replaced()
        close = partial(_close, before, self.stack.store)
        if self.stack.store.is_persistent:
            close()  # the next process that opens it must not wait
        else:
            do_later(close)
        self._follow(stacks)

    def _replaced(self) -> None:
        """Do what must precede deleting unused layers."""

    def close(self) -> None:
        """Release the layers."""
        self.forget_forks()
        self._prepared.drop()
        for tree in self.trees.values():
            tree.squash.close()
        own, self._own_base, of_forks, self._fork_base = self._own_base, None, self._fork_base, None
        for base in (own, of_forks):
            if base is not None:
                base.drop()
        _close([tree.stack for tree in self.trees.values()], self.stack.store)


def _dirs(stacks: Mapping[str, Stack]) -> dict[str, OverlayDirs]:
    return {root: overlay_dirs(root, stack) for root, stack in stacks.items()}


def _close(stacks: Iterable[Stack], store: Store) -> None:
    """Close replaced stacks, and prewarm a layer for the next."""
    for stack in stacks:
        stack.close()
    if not store.is_persistent:
        do_later(store.prewarm)
