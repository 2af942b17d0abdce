"""The layers of a sandbox's workspace: where its changes are, until somebody wants them or not.

One store for this process holds the layers of all its sandboxes, so that a fork shares those of
its parent.
"""

from __future__ import annotations

import atexit
import os
import threading
from functools import partial

from ..errors import LayerError
from ..layers import removal
from ..layers.baseline import Baseline
from ..layers.recovery import recover
from ..layers.scan import Watch
from ..layers.stack import Frozen, Stack
from ..layers.store import Store, home_for, sweep
from ..policy.workspace import PLACE
from ..zygote.client import Layers, mounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..layers.changes import Change
    from ..layers.commit import Committed
    from ..layers.review import OnConflict


#: More than this are not looked through after every command; `diff` does it when asked.
_MOST_ENTRIES = 1000


class Layering:
    """The stack that one sandbox works on. Whoever calls sees to it that nothing writes to it meanwhile."""

    def __init__(
        self, workspace: str | None, point: Frozen | None = None, baseline: Baseline | None = None
    ) -> None:
        """Begin with `workspace` as it is (None: empty), or where `point` was left, with its `baseline`."""
        store = _store(workspace) if point is None else point.store
        place = workspace or empty_directory(store)
        self._start(place, Stack.new(store, [place]) if point is None else point.stack(), baseline)

    def _start(self, workspace: str, stack: Stack, baseline: Baseline | None) -> None:
        self.workspace, self.stack = workspace, stack
        self.baseline = baseline or Baseline()
        self._watch = Watch(self.stack.view(), baseline=self.baseline, at=PLACE, most=_MOST_ENTRIES)
        self._watching = threading.Lock()

    @property
    def is_nobodys(self) -> bool:
        """Whether there is no directory of the host to commit to."""
        return self.workspace == empty_directory(self.stack.store)

    @property
    def stays(self) -> bool:
        """Whether it is there for others after this process."""
        return False

    def mounted(self, stack: Stack | None = None) -> Layers:
        """What has to be mounted for this stack, or another one."""
        stack = stack or self.stack
        *frozen, _ = stack.lowers  # the last is the workspace, which the zygote knows
        return Layers(stack.top.upper, stack.top.work, tuple(frozen))

    def fresh(self) -> Stack:
        """A stack in which nothing has been changed; the workspace as it is from now on."""
        self.baseline = Baseline()
        return Stack.new(self.stack.store, self.stack.bases)

    def without(self, paths: tuple[str, ...]) -> Stack:
        """The stack without the changes at and below `paths`."""
        return self.stack.without(paths, owner=mounter())

    def replace(self, stack: Stack) -> None:
        """Go on with `stack`, which is mounted now."""
        before, self.stack = self.stack, stack
        self._replaced()
        before.close()
        with self._watching:
            self._watch.follow(stack.view())

    def _replaced(self) -> None:
        """Called before the layers that are not needed any more go."""

    def tidy(self) -> None:
        """Make few layers of many, in the background: look-ups cost a little for every one."""
        if self.stack.is_deep:
            removal.in_background(partial(_squash, self.stack))

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

    def diff(self, paths: Collection[str] | None = None) -> list[Change]:
        """Every change against the workspace as it is on the host, by the path that is seen inside."""
        from ..layers.changes import diff

        return diff(self.stack.view(), paths, at=PLACE, baseline=self.baseline)

    def commit(
        self,
        paths: Collection[str] | None,
        on_conflict: OnConflict,
        allow_protected: bool,
        progress: Callable[[int, int], object] | None,
    ) -> Committed:
        """Take changes over to the host; see layers.commit."""
        from ..layers.commit import commit

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
        self.stack.close()


def _squash(stack: Stack) -> None:
    try:
        stack.squash()
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


def _store(workspace: str | None) -> Store:
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
