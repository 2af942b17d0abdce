"""The layers of a sandbox: where its changes are, until somebody wants them or not.

One store for this process holds the layers of all its sandboxes, so that a fork shares those of
its parent.
"""

from __future__ import annotations

import atexit
import os
import threading
from functools import partial

from ...errors import LayerError
from ...forkserver.client import HomeTree, mounter
from ...forkserver.requests import OverlayDirs
from ...inside.agent.mount_swap import HOME_TREE
from ...layers import removal
from ...layers.baseline import Baseline
from ...layers.recovery import recover
from ...layers.scan import Watch
from ...layers.stack import Frozen, Stack
from ...layers.store import Store, home_for, sweep
from ...policy.workspace import PLACE
from . import prewarm
from .home_layer import made
from .layered_tree import Beside, by_tree, layers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ...forkserver.client import SandboxProcess
    from ...layers.changes import Change
    from ...layers.commit import Committed
    from ...layers.review import OnConflict
    from ...mounts.operations import Operation
    from ...shell.shell_state import Remembered
    from .layered_tree import Point
    from .mounted_trees import MountedTrees


#: More than this are not looked through after every command; `diff` does it when asked.
MOST_ENTRIES = 1000


class Layering:
    """The stacks that one sandbox works on. Whoever calls sees to it that nothing writes to them meanwhile.

    `stack` is that of the workspace; `beside` are others, by the path of their roots inside.
    `swaps` says that it can be taken as it is, and another one put in its place.
    """

    swaps = True
    _mounted: MountedTrees | None = None

    def __init__(
        self,
        workspace: str | None,
        point: Frozen | None = None,
        baseline: Baseline | None = None,
        beside: Mapping[str, Point] | None = None,
    ) -> None:
        """Begin with `workspace` as it is (None: empty), or where `point` was left, with its `baseline`."""
        store = store_for(workspace) if point is None else point.store
        place = workspace or empty_directory(store)
        if point is None:
            self._start(place, Stack.new(store, [place]), baseline, fresh=True)
            return
        self._start(place, point.shallow().stack(), baseline)
        try:
            for root, other in (beside or {}).items():
                self.beside[root] = Beside(root, other.places, other.frozen.shallow().stack())
        except BaseException:
            self.close()
            raise

    def _start(self, workspace: str, stack: Stack, baseline: Baseline | None, *, fresh: bool = False) -> None:
        self.workspace, self.stack = workspace, stack
        self.beside: dict[str, Beside] = {}
        self.baseline = baseline or Baseline()
        self._is_fresh = fresh
        if not fresh:  # else when it is mounted
            self._begin_watch()

    def _begin_watch(self) -> None:
        self._watch = Watch(self.stack.view(), baseline=self.baseline, at=PLACE, most=MOST_ENTRIES)
        self._watching = threading.Lock()

    @property
    def is_nobodys(self) -> bool:
        """Whether there is no directory of the host to commit to."""
        return self.workspace == empty_directory(self.stack.store)

    @property
    def copy(self) -> str | None:
        """The directory that is worked in instead of the workspace, where there are no layers."""
        return None

    def seen_at(self, place: str) -> None:
        """Where the workspace is, inside."""

    def at_home(self, shell: Remembered, point: Frozen) -> Remembered:
        """What a shell remembered at `point`, for one that works on this: it is at the same place."""
        return shell

    @property
    def stays(self) -> bool:
        """Whether it is there for others after this process."""
        return False

    # ------------------------------------------------------------ mounts

    def mounted(self, stack: Stack | None = None) -> OverlayDirs:
        """What has to be mounted for this stack of the workspace, or another one."""
        stack = stack or self.stack
        *frozen, _ = stack.lowers  # the last is the workspace, which the fork server knows
        return OverlayDirs(stack.top.upper, stack.top.work, tuple(frozen))

    def world(self, places: tuple[str, ...], operations: Sequence[Operation]) -> HomeTree | None:
        """What the home and the like are to be made of: fresh from the skeleton with these, if not begun."""
        if not places:
            return None
        store = self.stack.store
        skeleton = None if store.stays else made(store, operations)
        if HOME_TREE not in self.beside and skeleton is None:
            self.beside[HOME_TREE] = Beside(HOME_TREE, places, Stack.new(store, [made(store, operations)]))
        self._fresh_world = (places, skeleton)
        known = self.beside.get(HOME_TREE)
        return HomeTree(skeleton, None if known is None else layers_of(known.stack))

    def fingerprint(self) -> bytes:
        """What the workspace looks like, as long as there is nothing of its own in its layers; empty else."""
        return prewarm.fingerprint_of(self.workspace) if self._is_fresh else b""

    def come(self, taken: SandboxProcess) -> None:
        """The sandbox has come, with layers that were made ahead if it has some."""
        if taken.instead is not None:
            removal.in_background(self.stack.close)
            store, name = self.stack.store, os.path.basename(os.path.dirname(taken.instead.upper))
            self.stack = Stack(store, self.stack.bases, (), store.adopted(name))
        if self._is_fresh:
            self._begin_watch()
            if taken.is_usual:
                removal.in_background(partial(prewarm.make_next, taken, self.stack))
            self._is_fresh = False
        if taken.layer:
            self._adopt(taken.layer)

    def _adopt(self, layer: str) -> None:
        """Take over the layer that was made ahead for a fresh world."""
        places, skeleton = self._fresh_world
        store = self.stack.store
        fresh = Stack(store, [skeleton or ""], (), store.adopted(layer))
        if HOME_TREE in self.beside:
            fresh.close()  # it goes on with another one
        else:
            self.beside[HOME_TREE] = Beside(HOME_TREE, places, fresh)

    def system(self) -> dict[str, OverlayDirs]:
        """What has to be mounted for directories of the system, those that have layers."""
        return {root: layers_of(tree.stack) for root, tree in self.beside.items() if root != HOME_TREE}

    def begin(self, bases: Mapping[str, Sequence[str]]) -> None:
        """Before they are mounted: have these directories of the system in layers, too."""
        for root, below in bases.items():
            self.beside[root] = Beside(root, (root,), Stack.new(self.stack.store, below))

    def rebase(self, bases: Mapping[str, Sequence[str]], places: tuple[str, ...] = ()) -> None:
        """Before they are mounted: have trees that are begun lie over something else from now on."""
        for root, below in bases.items():
            if (tree := self.beside.get(root)) is not None:
                before = tree.stack
                tree.stack = Stack(before.store, below, before.frozen, before.top)
                tree.places = places or tree.places
                before.close()

    def stacks(self) -> dict[str, Stack]:
        """All that can be frozen and replaced, by root."""
        return {PLACE: self.stack, **{root: tree.stack for root, tree in self.beside.items()}}

    def layers(self, stacks: Mapping[str, Stack]) -> dict[str, OverlayDirs]:
        """What has to be mounted for stacks of these trees."""
        return {
            root: self.mounted(stack) if root == PLACE else layers_of(stack) for root, stack in stacks.items()
        }

    def attach(self, mounted: MountedTrees) -> None:
        """The sandbox is open, and these are its trees."""
        self._mounted = mounted

    @property
    def trees(self) -> MountedTrees:
        """The trees of the sandbox that has this open. LayerError while there is none."""
        if self._mounted is None:
            raise LayerError("no sandbox has these layers")
        return self._mounted

    def put(self, stacks: Mapping[str, Stack], *, alone: bool) -> bool:
        """Mount `stacks` in place of what is there. With `alone`, False when something is in the way."""
        return self.trees.swap(self.layers(stacks), alone=alone)

    def written(self) -> list[str]:
        """The directories that hold what this sandbox has written."""
        return [layer.upper for stack in self.stacks().values() for layer in (stack.top, *stack.frozen)]

    def fresh(self) -> Stack:
        """A stack in which nothing has been changed; the workspace as it is from now on."""
        self.baseline = Baseline()
        return Stack.new(self.stack.store, self.stack.bases)

    def without(self, paths: Mapping[str, Collection[str]]) -> dict[str, Stack]:
        """The stacks of these trees without the changes at and below the paths in each."""
        stacks, found = self.stacks(), {}
        try:
            for root, chosen in paths.items():
                found[root] = stacks[root].without(chosen, owner=mounter())
        except BaseException:
            for stack in found.values():
                stack.close()
            raise
        return found

    def replace(self, stacks: Mapping[str, Stack]) -> None:
        """Go on with `stacks`, which are mounted now."""
        before = [stack for root, stack in self.stacks().items() if root in stacks]
        for root, stack in stacks.items():
            if root == PLACE:
                self.stack = stack
            elif root in self.beside:
                self.beside[root].stack = stack
            else:
                self.beside[root] = Beside(root, (root,), stack)
        self._replaced()
        tidy_up = partial(_tidy_up, before, self.stack.store)
        if self.stack.store.stays:
            tidy_up()  # whoever opens it next must not wait for that
        else:
            removal.in_background(tidy_up)
        if PLACE in stacks:
            with self._watching:
                self._watch.follow(self.stack.view())

    def _replaced(self) -> None:
        """Called before the layers that are not needed any more go."""

    def tidy(self) -> None:
        """Make few layers of many, in the background: look-ups cost a little for every one."""
        for stack in self.stacks().values():
            if stack.is_deep:
                removal.in_background(partial(_squash, stack))

    # ------------------------------------------------------------ changes

    def changes(self) -> tuple[Change, ...] | None:
        """What was changed since this was last asked; None when there is too much to look through.

        Also None when the sandbox was closed while its last command was being told about.
        """
        with self._watching:
            self._watch.baseline = self.baseline  # another one after a discard or a restore
            try:
                return self._watch.look()
            except FileNotFoundError:
                return None

    def diff(
        self, paths: Mapping[str, Collection[str]] | None = None, *, everything: bool = False
    ) -> list[Change]:
        """Every change against the workspace as it is on the host, by the path that is seen inside.

        With `everything` also those to the other trees; with `paths`, by root, at and below these only.
        """
        from ...layers.changes import diff

        found: list[Change] = []
        if paths is None or PLACE in paths:
            chosen = None if paths is None else paths[PLACE]
            found += diff(self.stack.view(), chosen, at=PLACE, baseline=self.baseline)
        for root, tree in self.beside.items():
            if everything if paths is None else root in paths:
                found += tree.diff(None if paths is None else paths[root])
        return found

    def by_tree(self, paths: Collection[str], directory: str) -> dict[str, list[str]]:
        """Paths as seen inside, from `directory`, by the roots of their trees; see `layered_tree`."""
        places = {PLACE: (PLACE,), **{root: tree.places for root, tree in self.beside.items()}}
        return by_tree(paths, directory, places)

    def commit(
        self,
        paths: Collection[str] | None,
        on_conflict: OnConflict,
        allow_protected: bool,
        progress: Callable[[int, int], object] | None,
    ) -> Committed:
        """Take changes over to the host; see layers.commit."""
        from ...layers.commit import commit

        if self.is_nobodys:
            raise LayerError(
                "there is nothing to commit to",
                why="the sandbox was opened without a workspace",
                fix="open it with one",
            )

        return commit(
            self.stack.view(),
            paths=paths,
            baseline=self.baseline,
            on_conflict=on_conflict,
            allow_protected=allow_protected,
            progress=progress,
        )

    def never_used(self) -> None:
        """No sandbox came to be for it."""
        self.close()

    def close(self) -> None:
        """Let the layers go."""
        _tidy_up(self.stacks().values(), self.stack.store if self.swaps else None)


def _tidy_up(stacks: Iterable[Stack], store: Store | None) -> None:
    """After these were replaced, and before others are."""
    for stack in stacks:
        stack.close()
    if store is not None and not store.stays:
        removal.in_background(store.make_ahead)


def _squash(stack: Stack) -> None:
    try:
        stack.squash(removal.rest)
    except (OSError, LayerError):
        pass  # it was closed meanwhile, or there is no room: it stays as it is


def relative(paths: Collection[str] | None, directory: str) -> tuple[str, ...] | None:
    """Paths as they are seen inside, from `directory`, as paths below the workspace."""
    if paths is None:
        return None
    found = []
    for path in paths:
        whole = os.path.normpath(os.path.join(directory, path))
        if whole != PLACE and not whole.startswith(f"{PLACE}/"):
            raise ValueError(f"{path!r} is not in the workspace, which is {PLACE}")
        found.append(whole[len(PLACE) + 1 :])
    return tuple(found)


# ---------------------------------------------------------------- stores

_stores: list[Store] = []
_making = threading.Lock()


def empty_directory(store: Store) -> str:
    """A directory with nothing in it, for sandboxes that are not for one."""
    path = f"{store.path}/empty"
    if not os.path.isdir(path):
        try:
            os.mkdir(path, 0o755)
            if store.owner is not None:
                os.chown(path, *store.owner)
        except FileExistsError:
            pass  # another thread was quicker
    return path


def store_for(workspace: str | None) -> Store:
    """The store of this process that can hold the layers of a workspace; made if there is none."""
    with _making:
        for store in _stores:
            if workspace is None or not (_within(store.home, workspace) or _within(workspace, store.home)):
                return store
        owner = mounter()
        home = home_for([workspace] if workspace else [], traversable=owner is not None)
        sweep(home)  # of processes of ours that were killed
        recover()  # and their commits
        store = Store(home, owner=owner)
        _stores.append(store)
        return store


def _within(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def close_stores() -> None:
    """Let the layers of all sandboxes of this process go, and wait for that."""
    while _stores:
        _stores.pop().close()
    removal.wait()  # nobody else does when the interpreter ends


def _after_fork() -> None:
    """The stores are our parent's."""
    while _stores:
        _stores.pop().leave()


atexit.register(close_stores)
os.register_at_fork(after_in_child=_after_fork)
