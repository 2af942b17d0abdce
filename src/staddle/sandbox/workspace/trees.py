"""Layered trees of a sandbox, each identified by its root's path inside, and their mounts.

The workspace is one. The home tree, with the root "/", combines the home, /tmp and /var/tmp. System
directories are others, once root inside may write them; ROOT_TREE is `/` itself. Only the workspace can be
committed. Every snapshot, fork and kept sandbox includes all trees.
"""

from __future__ import annotations

import _socket
import os
from contextlib import contextmanager
from functools import partial

from ...errors import LayerError
from ...forkserver.connection import OverlayDirs, in_order
from ...interrupts import uninterrupted
from ...ipc.forkserver_messages import ROOT_OF_TEMPLATE
from ...ipc.wire import await_descriptors, pass_descriptors
from ...layers.frozen_base import FrozenBase
from ...layers.squash import Squash, deep
from ...layers.stack import Stack
from ...paths import ROOT_TREE, WORKSPACE_PATH, covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Protocol, TypeVar

    from ...ipc.agent_client import AgentClient
    from ...ipc.agent_messages import NamedProcess, Others
    from ...layers.baseline import Baseline
    from ...layers.changes import Change
    from ...layers.stack import LayerSnapshot
    from ...layers.store import Layer

    Result = TypeVar("Result")

    class Freezer(Protocol):
        """Freezes the processes of a sandbox from outside."""

        def freeze(self) -> bool: ...
        def thaw(self) -> None: ...


class LayeredTree:
    """A tree in use: the layers that store its changes, and the paths where it is mounted."""

    def __init__(self, root: str, mounted_at: tuple[str, ...], stack: Stack) -> None:
        self.root, self.mounted_at, self.stack = root, mounted_at, stack
        self.squash = Squash()
        #: Other stacks of ours: replaced ones, closed in the background, and the prepared next one.
        self.others: list[Stack] = []

    def replace(self, stack: Stack) -> Stack:
        """Continue with `stack`. Returns the previous one, which the caller closes."""
        before, self.stack = self.stack, stack
        self.others = [*(one for one in self.others if one.is_open), before]
        return before

    def is_shared(self, layer: Layer, points: int = 0) -> bool:
        """Whether a snapshot or another sandbox uses this frozen layer, besides `points` of the history."""
        ours = points + sum(one.is_open and layer in (one.top, *one.frozen) for one in self.others)
        return layer.users > 1 + ours + self.squash.holds(layer)

    @property
    def dirs(self) -> OverlayDirs:
        """Directories that the fork server mounts for it."""
        return overlay_dirs(self.root, self.stack)

    def fresh(self) -> Stack:
        """Return a stack without changes."""
        return Stack.new(self.stack.store, self.stack.bases)

    def freeze(self, most: int | None = None) -> LayerSnapshot:
        """Freeze the tree, with fewer than `most` layers (default: the overall limit).

        From now on the top layer must not be written.
        """
        return self._here(self.squash.shorten_now(self.stack.freeze(), most))

    def below(self) -> LayerSnapshot:
        """Return the tree without its empty top layer."""
        return self._here(self.stack.below())

    def copy(self) -> LayerSnapshot:
        """Return the tree with a copy of the top layer; nothing may write to it meanwhile."""
        return self._here(self.stack.copy())

    def squash_deep(self) -> None:
        """Squash many layers into few in the background, for a later freeze."""
        if len(self.stack.frozen) >= deep():
            self.squash.begin(self.stack.below())

    def _here(self, taken: LayerSnapshot) -> LayerSnapshot:
        taken.mounted_at = self.mounted_at
        return taken

    def diff(self, paths: Collection[str] | None = None, baseline: Baseline | None = None) -> list[Change]:
        """Return the changes, or those of some paths in it, with paths as seen inside."""
        from ...layers.changes import diff

        elsewhere = self.root != WORKSPACE_PATH
        return diff(self.stack.view(), paths, at=path_of(self.root), baseline=baseline, elsewhere=elsewhere)


def path_of(root: str) -> str:
    """Return the path inside that prefixes paths in this tree."""
    return "/" if root == ROOT_TREE else root


def by_tree(
    paths: Iterable[str], directory: str, mounted_at: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """Map paths as seen inside, relative to `directory`, to paths below the roots of their trees.

    `mounted_at` lists the mount points of each tree by root. Raises ValueError for a path in no tree.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        whole = os.path.normpath(os.path.join(directory, path))
        # The innermost mount wins: everything is below the root.
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
    """Return the directories that the fork server mounts for a tree.

    For the workspace they omit the host's directory, which the fork server knows; for the root they include
    its template, which has all mount points.
    """
    if root == ROOT_TREE:
        return OverlayDirs(stack.top.upper, stack.top.work, (*stack.lowers, ROOT_OF_TEMPLATE.decode()))
    if root != WORKSPACE_PATH:
        return OverlayDirs(stack.top.upper, stack.top.work, stack.lowers)
    *lowers, lowest = stack.lowers
    base = lowest if isinstance(lowest, FrozenBase) else ""
    return OverlayDirs(stack.top.upper, stack.top.work, tuple(lowers), base)


class MountedTrees:
    """Trees that the agent of one sandbox has mounted.

    `make` tells the fork server to mount detached trees and send them to the agent through a socket. Without
    it there are no layers, and only `stopped` works.
    """

    def __init__(
        self,
        agent: AgentClient,
        make: Callable[[Mapping[str, OverlayDirs], int], None] | None = None,
        freezer: Freezer | None = None,
    ) -> None:
        self._agent, self._make, self._freezer = agent, make, freezer

    def mount(self, trees: Mapping[str, OverlayDirs]) -> list[int]:
        """Mount `trees` where no process sees them; return their descriptors, for `swap`."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            self._maker()(trees, theirs.fileno())
            theirs.close()  # so that this does not wait if nothing was sent
            return await_descriptors(ours.fileno(), len(trees))
        finally:
            ours.close()
            theirs.close()

    def swap(
        self, trees: Mapping[str, OverlayDirs], others: Others, mounts: Sequence[int] = ()
    ) -> list[NamedProcess] | None:
        """Mount `trees`, by their roots inside, in place of the present ones; see `AgentClient.swap`.

        `mounts` are theirs, if they were made by `mount`.
        """
        make = partial(pass_descriptors, descriptors=mounts) if mounts else partial(self._maker(), trees)
        if others == "refuse" and self._agent.is_paused:
            return None  # a paused shell could not re-enter its directory
        return self._agent.swap(in_order(trees), make, others)

    def _maker(self) -> Callable[[Mapping[str, OverlayDirs], int], None]:
        if self._make is None:
            raise LayerError(
                "this sandbox has no layers",
                why="its changes are made directly, or in a copy",
                fix="open it with mode='overlay' on the namespaces backend",
            )
        return self._make

    def end_others(self) -> list[NamedProcess]:
        """End everything but idle shells: programs, jobs, terminals, and the processes that they left."""
        return self._agent.end_others()

    @property
    def are_lost(self) -> bool:
        """Whether the sandbox has died: nothing runs in it any more."""
        return not self._agent.alive

    @contextmanager
    def stopped(self) -> Iterator[Callable[[], bool]]:
        """Stop every process during the block. Yields a function that tells whether all stayed stopped.

        It freezes the cgroup, or without one sends signals, which a program's timer can undo. A sandbox that
        was paused before stays paused. A sandbox that has died has no processes to stop.
        """
        if self.are_lost:
            yield lambda: True
            return
        is_paused = self._agent.is_paused
        resume: Callable[[], object] = tuple  # set before stopping: a signal handler may raise
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
            except BaseException:  # perhaps before it began
                uninterrupted(resume)
                raise

    def while_stopped(self, work: Callable[[], Result]) -> Result:
        """Do `work` while everything is stopped; repeat it if a program ran, LayerError after a few times.

        `work` must replace its own leftovers when it is repeated.
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


#: The most times that work is repeated because a program ran meanwhile.
_MOST_TRIES = 5
