"""Points to come back to: the files of a sandbox and the state of every shell, at one moment.

What was written until then is frozen and a new layer takes what comes; nothing is copied, so it
takes as long after one file as after ten thousand. Only while nothing but waiting shells is in
the sandbox, though: a program that works on files would go on with the old ones. Then
everything is stopped for as long as it takes to copy the layers. The workspace, the home and /tmp
are taken together; of those nothing was written to, nothing has to be exchanged.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from functools import partial
from weakref import ReferenceType, WeakKeyDictionary, ref

from ...errors import InvalidCall
from ...inside.agent.mount_swap import HOME_TREE
from ...interrupts import uninterrupted
from ...layers.stack import Stack
from ...policy.workspace import PLACE
from .layered_tree import Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike
    from typing import Literal, Protocol

    from ...layers.baseline import Baseline
    from ...layers.stack import Frozen
    from ...shell.shell import Shell
    from ...shell.shell_state import Remembered
    from .overlay import Layering

    class NamedShell(Protocol):
        """A session, as far as a snapshot needs it."""

        @property
        def name(self) -> str: ...
        @property
        def shell(self) -> Shell: ...


class Snapshot:
    """A moment of a sandbox. Holds what it needs until `close()`, or until nobody has it any more.

    `method` says how the files were taken: "swap", or "copy" because something ran.
    """

    closed = True  # until there is something to close
    _parent: ReferenceType[Snapshot] | None = None

    def __init__(
        self,
        label: str,
        method: Literal["swap", "copy"],
        point: Frozen,
        baseline: Baseline,
        shells: Mapping[str, Remembered],
        *,
        beside: Mapping[str, Point] | None = None,
    ) -> None:
        """`point` is of the workspace; those `beside` are of other trees, by their roots inside."""
        self.label, self.method = label, method
        self.created = time.time()
        self.sessions = tuple(shells)
        self._point, self._baseline, self._shells = point, baseline, dict(shells)
        self._beside = dict(beside or {})
        self.closed = False

    @property
    def parent(self) -> Snapshot | None:
        """The snapshot that it went on from; None for a first one, or when nobody has that any more."""
        found = None if self._parent is None else self._parent()
        return None if found is None or found.closed else found

    @property
    def workspace(self) -> str:
        """The directory of the host whose snapshot this is."""
        return self._point.bases[-1]

    def save(
        self, path: str | PathLike[str], *, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Write it to the file `path`, whole or not at all.

        `progress` is told how many entries are written, and how many there are at most.
        """
        from .saving import save

        save(self, os.fspath(path), progress)

    @staticmethod
    def load(path: str | PathLike[str], *, progress: Callable[[int, int], object] | None = None) -> Snapshot:
        """The snapshot that was saved so, to be restored in a sandbox, or for `Sandbox.from_snapshot`.

        `progress` is told how many bytes of how many are read. ArchiveRefused, with nothing
        changed, for anything that `save` does not write.
        """
        from .saving import load

        return load(os.fspath(path), progress)

    def on(self, layering: Layering) -> Snapshot:
        """The same for the sandbox that works on `layering`."""
        if self.workspace != layering.workspace:
            raise InvalidCall(
                f"{self!r} is of another workspace", why=f"it is of {self.workspace!r}", fix="open that"
            )
        return self

    def _of(self) -> dict[str, object]:
        """What it is of, for another process to know; nothing where there is no directory."""
        from .overlay import empty_directory
        from .saving import identity

        return {} if self.workspace == empty_directory(self._point.store) else identity(self.workspace)

    def layering(self) -> Layering:
        """Layers for a sandbox that continues from here."""
        from .overlay import Layering

        if self._point.plain:
            from .copied import Point as Copy

            if isinstance(self._point, Copy):
                return self._point.layering(self._baseline.copy())
        made = Layering(self.workspace, self._point, self._baseline.copy(), self._beside)
        _history(made).at = ref(self)
        return made

    def continue_in(self, session: NamedShell, layering: Layering | None) -> None:
        """Have a session be as that of its name was, in a sandbox that works on `layering`."""
        shell = self._shells.get(session.name)
        with session.shell.held():
            session.shell.become(layering.at_home(shell, self._point) if layering and shell else shell)

    def close(self) -> None:
        """Let its files go; those that a sandbox still works on stay as long as that does."""
        self.closed = True
        self._point.close()
        for other in self._beside.values():
            other.frozen.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()

    def __repr__(self) -> str:
        return f"<Snapshot {self.label!r} ({self.method})>"


@contextmanager
def found(snapshot: Snapshot | str | PathLike[str]) -> Iterator[Snapshot]:
    """The snapshot, or the one in that file for as long as this takes."""
    if isinstance(snapshot, Snapshot):
        yield snapshot
        return
    loaded = Snapshot.load(snapshot)
    try:
        yield loaded
    finally:
        loaded.close()


class _History:
    """The snapshots of a sandbox that somebody still has, and the one that it went on from."""

    def __init__(self) -> None:
        self.at: ReferenceType[Snapshot] | None = None
        self.taken: list[ReferenceType[Snapshot]] = []

    def add(self, snapshot: Snapshot) -> None:
        snapshot._parent, self.at = self.at, ref(snapshot)
        self.taken = [*(one for one in self.taken if one() is not None), self.at]


_histories: WeakKeyDictionary[Layering, _History] = WeakKeyDictionary()


def _history(layering: Layering) -> _History:
    return _histories.setdefault(layering, _History())


def held(layering: Layering) -> list[Snapshot]:
    """The snapshots that were taken of it and are not closed, the oldest first."""
    found = [one() for one in _history(layering).taken]
    return [snapshot for snapshot in found if snapshot is not None and not snapshot.closed]


def take(layering: Layering, sessions: Sequence[NamedShell], label: str) -> Snapshot:
    """A snapshot of a sandbox whose `sessions` are at rest."""
    if not isinstance(label, str):
        raise InvalidCall(f"the label is {label!r}", why="it is not text")
    shells = {session.name: session.shell.remembered() for session in sessions}
    method: Literal["swap", "copy"] = "swap"
    points: dict[str, Frozen] = {}
    following: dict[str, Stack] = {}
    try:
        for root, stack in layering.stacks().items():
            if not layering.swaps:
                break
            if stack.is_untouched():
                points[root] = stack.below()
            else:
                points[root] = stack.freeze()
                following[root] = points[root].stack()
        if following:
            _exchange(layering, following, alone=True, then=partial(come_back, sessions))
        if following or not layering.swaps:  # something was in the way
            _close(following)
            method = "copy"
            points.update(_copied(layering, following or layering.stacks()))
        else:
            layering.tidy()
    except BaseException:
        _close(following)
        _close(points)
        raise
    workspace = points.pop(PLACE)
    beside = {root: Point(layering.beside[root].places, point) for root, point in points.items()}
    made = Snapshot(label, method, workspace, layering.baseline.copy(), shells, beside=beside)
    _history(layering).add(made)
    return made


def restore(layering: Layering, sessions: Sequence[NamedShell], snapshot: Snapshot) -> None:
    """Be as at the snapshot: its files, its shells; a session that was not there begins anew."""
    given, snapshot = snapshot, snapshot.on(layering)
    following = {PLACE: snapshot._point.stack()}
    try:
        for root, tree in layering.beside.items():
            point = snapshot._beside.get(root)
            layers = () if point is None else point.frozen.layers
            if tree.stack.frozen == layers and tree.stack.is_untouched():
                continue  # it is so
            following[root] = tree.fresh() if point is None else point.frozen.stack()
        for root, point in snapshot._beside.items():
            if root not in (HOME_TREE, *layering.beside):
                following[root] = point.frozen.stack()
    except BaseException:
        _close(following)
        raise

    def then() -> None:
        layering.baseline = snapshot._baseline.with_commits_of(layering.baseline)
        _history(layering).at = ref(given)
        for session in sessions:
            shell = snapshot._shells.get(session.name)
            session.shell.become(layering.at_home(shell, snapshot._point) if shell else None)

    change(layering, following, then)


def change(layering: Layering, following: dict[str, Stack], then: Callable[[], object] = tuple) -> None:
    """Go on with other layers, whoever is in the way, and do what belongs to that `then`."""
    try:
        _exchange(layering, following, alone=False, then=then)
    except BaseException:
        _close(following)
        raise


def _exchange(
    layering: Layering,
    following: dict[str, Stack],
    *,
    alone: bool,
    then: Callable[[], object],
) -> None:
    """Have these stacks in the place of the present ones; those are not in `following` any more that are.

    With `alone`, none if something is in the way. What belongs to it is done `then` as well, whoever is
    interrupted meanwhile: a shell must not be left in a directory that is no longer there.
    """

    def work() -> None:
        if layering.put(following, alone=alone):
            layering.replace(following)
            following.clear()
            then()

    uninterrupted(work)


def extend(layering: Layering, bases: Mapping[str, Sequence[str]]) -> None:
    """Have directories of the system in layers of their own, so that they can be written, from now on.

    `bases` tells for each, by its path inside, what lies below: paths of the host, topmost first. Who
    may write where is decided by the owners in the topmost one. Those that are so already stay as
    they are. They are part of everything then: snapshots, forks, `diff(everything=True)`, kept
    sessions. Programs that run go on with what they have open.
    """
    following: dict[str, Stack] = {}
    try:
        for root, below in bases.items():
            if root not in layering.beside:
                following[root] = Stack.new(layering.stack.store, below)
    except BaseException:
        _close(following)
        raise
    if following:
        change(layering, following)


def come_back(sessions: Sequence[NamedShell], *, at_once: bool = False) -> None:
    """Have shells be where they are, in the directory that is mounted there now; see `Shell.come_back`."""
    for session in sessions:
        session.shell.come_back(at_once=at_once)


def _copied(layering: Layering, roots: Iterable[str]) -> dict[str, Frozen]:
    """The trees with these roots, at one moment."""
    stacks, made = layering.stacks(), {}
    with layering.trees.stopped():
        try:
            for root in roots:
                made[root] = stacks[root].copy()
            return made
        except BaseException:
            _close(made)
            raise


def _close(several: Mapping[str, Frozen | Stack]) -> None:
    for one in several.values():
        one.close()
