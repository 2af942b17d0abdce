"""The layered trees of a sandbox, each known by the path of its root inside, and as they are mounted there.

The workspace is one. The home tree, whose root is "/", is the home, /tmp and /var/tmp in one; directories
of the system are others, once root inside may write them, and ROOT_TREE is `/` itself. Only the workspace is
ever committed. All are part of every snapshot, fork and kept sandbox.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial

from ...errors import LayerError
from ...forkserver.connection import OverlayDirs, in_order
from ...interrupts import uninterrupted
from ...ipc.forkserver_messages import ROOT_OF_TEMPLATE
from ...layers.frozen_base import FrozenBase
from ...layers.squash import Squash, deep
from ...layers.stack import Stack
from ...policy.paths import ROOT_TREE, WORKSPACE_PATH, covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import Protocol, TypeVar

    from ...ipc.agent_client import AgentClient
    from ...ipc.agent_messages import NamedProcess, Others
    from ...layers.baseline import Baseline
    from ...layers.changes import Change
    from ...layers.stack import LayerSnapshot
    from ...layers.store import Layer

    Result = TypeVar("Result")

    class Freezer(Protocol):
        """Stops a sandbox from outside."""

        def freeze(self) -> bool: ...
        def thaw(self) -> None: ...


class LayeredTree:
    """A tree that is worked on: the layers that take its changes, and the paths where it is mounted."""

    def __init__(self, root: str, mounted_at: tuple[str, ...], stack: Stack) -> None:
        self.root, self.mounted_at, self.stack = root, mounted_at, stack
        self.squash = Squash()
        #: Stacks that were replaced, and are closed in the background.
        self._replaced: list[Stack] = []

    def replace(self, stack: Stack) -> Stack:
        """Go on with `stack`; the one before, which the caller closes."""
        before, self.stack = self.stack, stack
        self._replaced = [*(one for one in self._replaced if one.is_open), before]
        return before

    def is_shared(self, layer: Layer) -> bool:
        """Whether a snapshot or another sandbox holds a frozen layer of this tree, too."""
        ours = sum(one.is_open and layer in (one.top, *one.frozen) for one in self._replaced)
        return layer.users > 1 + ours + self.squash.holds(layer)

    @property
    def dirs(self) -> OverlayDirs:
        """The directories that the fork server mounts for it."""
        return overlay_dirs(self.root, self.stack)

    def fresh(self) -> Stack:
        """A stack in which nothing has been changed."""
        return Stack.new(self.stack.store, self.stack.bases)

    def freeze(self, most: int | None = None) -> LayerSnapshot:
        """The tree as it is now, in fewer than `most` layers, or than there may be at all.

        From now on the top layer may not be written any more.
        """
        return self._here(self.squash.shorten_now(self.stack.freeze(), most))

    def below(self) -> LayerSnapshot:
        """The tree without its top layer, in which there is nothing."""
        return self._here(self.stack.below())

    def copy(self) -> LayerSnapshot:
        """The tree as it is now, with a copy of the top layer; nothing may write to it meanwhile."""
        return self._here(self.stack.copy())

    def squash_deep(self) -> None:
        """Have few layers made of many, in the background, for a freeze to come."""
        if len(self.stack.frozen) >= deep():
            self.squash.begin(self.stack.below())

    def _here(self, taken: LayerSnapshot) -> LayerSnapshot:
        taken.mounted_at = self.mounted_at
        return taken

    def diff(self, paths: Collection[str] | None = None, baseline: Baseline | None = None) -> list[Change]:
        """Every change since it was fresh, by the path that is seen inside; of some paths in it only."""
        from ...layers.changes import diff

        elsewhere = self.root != WORKSPACE_PATH
        return diff(self.stack.view(), paths, at=path_of(self.root), baseline=baseline, elsewhere=elsewhere)


def path_of(root: str) -> str:
    """The path inside that paths in the tree with this root are below."""
    return "/" if root == ROOT_TREE else root


def by_tree(
    paths: Iterable[str], directory: str, mounted_at: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """Paths as they are seen inside, from `directory`, as paths below the roots of their trees.

    `mounted_at` are the paths of each tree, by root. ValueError for a path that is in none.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        whole = os.path.normpath(os.path.join(directory, path))
        # Of several, the innermost: everything is in the root.
        roots = [
            (len(place.strip("/")), path_of(root), root)
            for root, shown in mounted_at.items()
            for place in shown
            if covers(place, whole)
        ]
        if not roots:
            first, *others = (place for shown in mounted_at.values() for place in shown)
            rest = f", nor in {', '.join(others)}" if others else ""
            raise ValueError(f"{path!r} is not in the workspace, which is {first}{rest}")
        _, at, root = max(roots)
        found.setdefault(root, []).append(whole[len(at) :].lstrip("/"))
    return found


def overlay_dirs(root: str, stack: Stack) -> OverlayDirs:
    """The directories that the fork server mounts for a tree.

    Of the workspace without the host's directory, which the fork server knows; of the root
    with its template, which has the places of everything that is mounted there.
    """
    if root == ROOT_TREE:
        return OverlayDirs(stack.top.upper, stack.top.work, (*stack.lowers, ROOT_OF_TEMPLATE.decode()))
    if root != WORKSPACE_PATH:
        return OverlayDirs(stack.top.upper, stack.top.work, stack.lowers)
    *lowers, lowest = stack.lowers
    base = lowest if isinstance(lowest, FrozenBase) else ""
    return OverlayDirs(stack.top.upper, stack.top.work, tuple(lowers), base)


class MountedTrees:
    """The trees that the agent of one sandbox has mounted.

    `make` has the fork server mount trees that are attached nowhere, and send them to the agent at the
    other end of a socket. Without it there are no layers, and only `stopped` can be used.
    """

    def __init__(
        self,
        agent: AgentClient,
        make: Callable[[Mapping[str, OverlayDirs], int], None] | None = None,
        freezer: Freezer | None = None,
    ) -> None:
        self._agent, self._make, self._freezer = agent, make, freezer

    def swap(self, trees: Mapping[str, OverlayDirs], others: Others) -> list[NamedProcess] | None:
        """Mount `trees`, by their roots inside, in place of those there; see `AgentClient.swap`."""
        if self._make is None:
            raise LayerError(
                "this sandbox has no layers",
                why="its changes are made directly, or in a copy",
                fix="open it with mode='overlay' on the namespaces backend",
            )
        if others == "refuse" and self._agent.is_paused:
            return None  # a shell could not enter its directory again
        return self._agent.swap(in_order(trees), partial(self._make, trees), others)

    def end_others(self) -> list[NamedProcess]:
        """End everything but idle shells: programs, jobs, terminals, and what any of them left behind."""
        return self._agent.end_others()

    @property
    def are_lost(self) -> bool:
        """Whether the sandbox has ended by itself: nothing runs in it any more, and nothing will."""
        return not self._agent.alive

    @contextmanager
    def stopped(self) -> Iterator[Callable[[], bool]]:
        """Every process of the sandbox is stopped meanwhile. What is given tells whether that held.

        By its cgroup; without one by signals, which a program's timer can undo. One that was paused before
        stays so. None is there, if the sandbox has ended by itself.
        """
        if self.are_lost:
            yield lambda: True
            return
        is_paused = self._agent.is_paused
        resume: Callable[[], object] = tuple  # known before it is stopped: a signal's handler may raise
        try:
            if self._freezer is not None:
                resume = tuple if is_paused else self._freezer.thaw
                if self._freezer.freeze():
                    yield lambda: True
                    return
            resume = tuple if is_paused else self._agent.resume
            before = self._agent.pause()[0]
            yield lambda: before >= 0 and self._agent.pause()[0] == before
        finally:
            try:
                uninterrupted(resume)
            except BaseException:  # perhaps before it was begun
                uninterrupted(resume)
                raise

    def while_stopped(self, work: Callable[[], Result]) -> Result:
        """Do `work` while nothing runs, again if something did; LayerError after a few times.

        `work` must leave nothing behind that a second time would not replace.
        """
        for _ in range(_MOST_TRIES):
            with self.stopped() as were_stopped:
                result = work()
                if were_stopped():
                    return result
        raise LayerError(
            "the files could not be read at one moment",
            why="a program inside continues whenever it is stopped",
            fix="end it, or run where the sandbox has a control group",
        )


#: How often files are copied again because something ran meanwhile.
_MOST_TRIES = 5
