"""`Snapshot`: files of a sandbox and the state of every shell at one moment; take and restore it.

A snapshot freezes the layers and mounts new ones on top. It copies nothing, so its time does not depend on
the number of files. This needs a sandbox with only idle shells: a running program would continue with the old
files. If one runs, everything is stopped while the layers are copied. The workspace, the home and /tmp are
taken together; a tree without writes is not remounted.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from weakref import ReferenceType, WeakKeyDictionary, ref

from ..._value import Value
from ...errors import InvalidCall, LayerError, SandboxLost
from ...interrupts import unmistakable
from ...layers.baseline import Baseline
from ...layers.drift import MOST_ENTRIES, MOST_PATHS, Drift, drift, now, now_ns
from ...layers.frozen_base import FrozenBase, LoadedBase, origin
from ...layers.host_directory import reach
from ...layers.stack import LayerSnapshot, Stack, close_all
from ...layers.store import user_of_this_process
from ...paths import WORKSPACE_PATH
from .fork_point import ForkPoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike
    from typing import Any, Literal, Protocol

    from ...ipc.agent_messages import NamedProcess
    from ...layers.changes import Change
    from ...layers.store import Layer
    from ...shell.shell import Shell
    from ...shell.state import SavedShell
    from .frozen import BaseFreezer
    from .snapshot_file import SavedSnapshot
    from .workspace import SandboxWorkspace

    class NamedShell(Protocol):
        """Part of a session that a snapshot uses."""

        @property
        def name(self) -> str: ...
        @property
        def _shell(self) -> Shell: ...
        @property
        def _user(self) -> str: ...

    class InterpreterTwin(Protocol):
        """A process that continues an interpreter; see `interpreter.Twin`."""

        agent: object
        pid: int
        gone: str

        @property
        def has_ended(self) -> bool: ...
        def wake(self) -> Any: ...
        def close(self, why: str = ...) -> None: ...


class KeptInterpreters(Value):
    """The interpreters in a snapshot, by session.

    Those in `kept` can continue; `why_not` has the reason for each other one.
    """

    kept: tuple[str, ...] = ()
    why_not: Mapping[str, str] = {}


@unmistakable(own=("close",))
class Snapshot:
    """A moment of a sandbox. It keeps its layers until `close()`, or until it is garbage collected.

    `method` tells how the files were taken: "swap", or "copy" because a program ran.
    """

    closed = True  # until there is something to close
    #: Copies the directory; None if there is no need.
    freezer: BaseFreezer | None = None
    _parent: ReferenceType[Snapshot] | None = None
    #: Workspace that it was taken of.
    _of: ReferenceType[SandboxWorkspace] | None = None
    #: Whether the history took it: it is not listed, and not in the tree of snapshots.
    automatic = False

    def __init__(
        self,
        label: str,
        method: Literal["swap", "copy"],
        trees: Mapping[str, LayerSnapshot],
        baseline: Baseline,
        shells: Mapping[str, SavedShell],
        *,
        created: float | None = None,
    ) -> None:
        """Hold the layers `trees` of the sandbox, by their roots inside, including the workspace's."""
        self.label, self.method = label, method
        self.created = now() if created is None else created
        self.sessions = tuple(shells)
        self._trees, self._baseline, self._shells = dict(trees), baseline, dict(shells)
        #: Twins of interpreters, and why other interpreters have none, by session.
        self.twins: Mapping[str, InterpreterTwin] = {}
        self.without_twin: Mapping[str, str] = {}
        self.closed = False

    @property
    def parent(self) -> Snapshot | None:
        """Snapshot that it continued from; None for the first one, or if that is gone."""
        found = None if self._parent is None else self._parent()
        return None if found is None or found.closed else found

    @property
    def processes(self) -> KeptInterpreters:
        """Interpreters that a restore would continue, and why each other one would begin anew."""
        gone = {
            name: twin.gone or "its twin has ended" for name, twin in self.twins.items() if twin.has_ended
        }
        names = tuple(name for name in self.twins if name not in gone)
        return KeptInterpreters(names, {**self.without_twin, **gone})

    @property
    def workspace(self) -> str:
        """Host directory whose snapshot this is."""
        return origin(self._trees[WORKSPACE_PATH].bases[-1])

    @property
    def frozen(self) -> bool:
        """Whether it has a copy of the directory, so that a restore hides later edits on the host."""
        tree = self._trees[WORKSPACE_PATH]
        return tree.is_copy or isinstance(tree.bases[-1], FrozenBase)

    def drift(self, *, limit: int = MOST_PATHS, most: int | None = None) -> Drift:
        """Return the host's changes to the workspace since then that a restore would show.

        There are none if the lowest layer is a copy of the host's directory. It walks at most `most` entries
        and returns at most `limit` paths, as seen inside.
        """
        self._check_open()
        tree = self._trees[WORKSPACE_PATH]
        if tree.is_copy or isinstance(tree.bases[-1], FrozenBase) or not self._is_of(self.workspace):
            return Drift()
        layers = [layer.upper for layer in tree.layers]
        at = tree.mounted_at[0]
        return drift(self.workspace, self.created, layers, at=at, limit=limit, most=most)

    def diff(self, other: Snapshot) -> list[Change]:
        """Return the changes that lead from the files of `other` to the files of this snapshot.

        Changes in the home and in /tmp come after those in the workspace. Both are of the same workspace: of
        this sandbox, or of its forks.
        """
        from .snapshot_diff import changes_between

        self._check_open()
        checked(other)._check_open()
        if self.workspace != other.workspace:
            raise InvalidCall(
                "these snapshots cannot be compared",
                why="they are of different workspaces",
                fix="compare snapshots of a sandbox and its forks",
            )
        return changes_between(other._trees, self._trees)

    def save(
        self,
        path: str | PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
        freeze: bool | None = None,
    ) -> None:
        """Write it to the file `path`, whole or not at all.

        By default it includes a copy of a small workspace directory: the copy below its layers, or else the
        directory as it is now. `freeze=True` also includes a large one, or raises LayerError; `freeze=False`
        includes none. `progress` is called with the number of entries written and the maximum.
        """
        from .snapshot_file import save

        self._check_open()
        user_of_this_process()
        base = None if freeze is False else self._copied(asked=bool(freeze))
        try:
            save(self._content(), os.fspath(path), progress, base)
        finally:
            if base is not None:
                base.drop()

    @staticmethod
    def load(path: str | PathLike[str], *, progress: Callable[[int, int], object] | None = None) -> Snapshot:
        """Load a saved snapshot, to restore it in a sandbox or for `Sandbox.from_snapshot`.

        `progress` is called with the bytes read and the total. Raises ArchiveRefused for a file that `save`
        does not write, and LayerError if it needs more than a quarter of the free space where layers are
        stored. Both change nothing.
        """
        from .snapshot_file import load

        return LoadedSnapshot(load(os.fspath(path), progress))

    def _content(self) -> SavedSnapshot:
        from .snapshot_file import SavedSnapshot

        return SavedSnapshot(
            self.label,
            self.method,
            self.created,
            self._trees,
            self._baseline,
            self._shells,
            self._origin_facts(),
        )

    def _origin_facts(self) -> Mapping[str, object]:
        """Return facts that identify its directory for another process; empty if there is none."""
        from .stores import empty_directory

        directory = self.workspace
        return {} if directory == empty_directory(self._trees[WORKSPACE_PATH].store) else _identity(directory)

    def _is_of(self, directory: str) -> bool:
        """Whether `directory` is the host directory that it was taken of."""
        from .stores import empty_directory

        return directory == self.workspace != empty_directory(self._trees[WORKSPACE_PATH].store)

    # ------------------------------------------------------------ for this package

    @property
    def tree(self) -> LayerSnapshot:
        """Layers of the workspace."""
        return self._trees[WORKSPACE_PATH]

    def having(self, tree: LayerSnapshot) -> Snapshot:
        """Return the same moment with another workspace, to be closed separately."""
        trees = {root: each.again() for root, each in self._trees.items() if root != WORKSPACE_PATH}
        made = Snapshot(
            self.label, self.method, {**trees, WORKSPACE_PATH: tree.again()}, self._baseline, self._shells
        )
        made.freezer, made._of = self.freezer, self._of
        return made

    def freeze(self, *, asked: bool) -> FrozenBase | None:
        """Put a copy of the host's directory, as it is now, below its layers. Returns the copy, if any."""
        tree = self._trees[WORKSPACE_PATH]
        base = None if self.frozen else self._copied(asked=asked)
        if base is None:
            return None
        try:
            self._trees[WORKSPACE_PATH] = LayerSnapshot(tree.store, [base], tree.layers, tree.mounted_at)
        finally:
            base.drop()
        tree.close()
        return base

    def _copied(self, *, asked: bool) -> FrozenBase | None:
        """Return the copy below its layers, or a new copy of the host's directory, acquired for the caller.

        If it cannot be copied: LayerError if it was `asked` for, else None.
        """
        tree = self._trees[WORKSPACE_PATH]
        if isinstance(tree.bases[-1], FrozenBase):
            return tree.bases[-1].hold()
        can_be = not tree.is_copy and not tree.store.is_persistent and self._is_of(self.workspace)
        if self.freezer is not None and can_be:
            return self.freezer.freeze(tree.store, self.workspace, asked=asked)
        if asked:
            raise LayerError(
                "there is no copy of the workspace's directory",
                why="the sandbox has none, is kept, or works in a copy already",
                fix="leave freeze out",
            )
        return None

    def fitted_to(self, workspace: SandboxWorkspace) -> Snapshot:
        """Adapt it to a sandbox with `workspace`. Raises InvalidCall if it is of another directory."""
        if self.workspace != workspace.directory:
            raise InvalidCall(
                f"{self!r} is of another workspace", why=f"it is of {self.workspace!r}", fix="open that"
            )
        if self._trees[WORKSPACE_PATH].is_copy == (workspace.copy is not None):
            return self
        # Layers for a copy or the reverse: convert as if it had been saved and loaded.
        from .snapshot_file import portable

        content = portable(self._content())
        if not self._trees[WORKSPACE_PATH].is_copy:
            content = content.replace(trees={root: tree.again() for root, tree in self._trees.items()})
        elif (owner := workspace.stack.store.owner) is not None:  # a copy belongs to root, layers do not
            from ...layers.persistent_store import give

            for layer in content.trees[WORKSPACE_PATH].layers:
                give(layer.upper, owner)
        return LoadedSnapshot(content).fitted_to(workspace)

    def new_workspace(self) -> SandboxWorkspace:
        """Return a workspace for another sandbox that continues from here."""
        made = self._new_workspace()
        if self._of is not None:
            parent = self._of()
            known = () if parent is None else parent.lineage
            point = ForkPoint(self._of, self._trees[WORKSPACE_PATH])
            made.lineage = (*(each.again() for each in known), point)
        return made

    def _new_workspace(self) -> SandboxWorkspace:
        tree = self._trees[WORKSPACE_PATH]
        if tree.is_copy:
            from .copied import CopySnapshot

            if isinstance(tree, CopySnapshot):
                return tree.new_workspace(self._baseline.copy())
        from .overlay import OverlayWorkspace

        made = OverlayWorkspace(self.workspace, self._trees, self._baseline.copy(), freezer=self.freezer)
        history(made).at = ref(self)
        return made

    def continue_in(self, session: NamedShell, workspace: SandboxWorkspace | None) -> None:
        """Restore the session of that name, in a sandbox with `workspace`."""
        with session._shell.lock():
            session._shell.become(self.shell_state(session.name, workspace))

    def shell_state(self, name: str, workspace: SandboxWorkspace | None) -> SavedShell | None:
        """Return the shell state of that session, for a sandbox with `workspace`."""
        shell = self._shells.get(name)
        before = self._trees[WORKSPACE_PATH].mounted_at
        if shell is None or workspace is None or before == (workspace.mounted_at,):
            return shell
        from .snapshot_file import relocated

        return relocated(shell, before[0], workspace.mounted_at)

    def _check_open(self) -> None:
        """Raise LayerError if it is closed."""
        if self.closed:
            what = f"the snapshot {self.label!r} is gone"
            raise LayerError(what, why="it, or its sandbox, is closed", fix="take another")

    def close(self) -> None:
        """Release its files; files that a sandbox uses remain as long as it does."""
        self.closed = True
        for twin in self.twins.values():
            twin.close()
        for tree in self._trees.values():
            tree.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()

    def __repr__(self) -> str:
        return f"<Snapshot {self.label!r} ({self.method})>"


def checked(snapshot: object) -> Snapshot:
    """Raise InvalidCall unless `snapshot` is one."""
    if isinstance(snapshot, Snapshot):
        return snapshot
    raise InvalidCall(
        f"{snapshot!r} is no snapshot",
        why="only what snapshot() returns is one",
        fix="give a Snapshot, or for a point of the history point.snapshot",
    )


class LoadedSnapshot(Snapshot):
    """A snapshot read from a file, which any sandbox can restore."""

    def __init__(self, saved: SavedSnapshot) -> None:
        super().__init__(
            saved.label, saved.method, saved.trees, saved.baseline, saved.shells, created=saved.created
        )
        self._origin = saved.origin
        self._base, self._base_taken = saved.base, saved.base_taken

    @property
    def frozen(self) -> bool:
        """Whether the file contains a copy of the directory."""
        return self._base is not None

    def _copied(self, *, asked: bool) -> FrozenBase | None:
        if self._base is None:
            return super()._copied(asked=asked)
        from .stores import empty_directory

        place = empty_directory(self._trees[WORKSPACE_PATH].store)
        return LoadedBase.of(self._base, place, self._base_taken)

    def close(self) -> None:
        """Release its files; files that a sandbox uses remain as long as it does."""
        base, self._base = self._base, None
        super().close()
        if base is not None:
            base.drop()

    @property
    def workspace(self) -> str:
        """Directory that it was taken of, on the original machine; empty if it had none."""
        return str(self._origin.get("path", ""))

    def _origin_facts(self) -> Mapping[str, object]:
        return self._origin

    def _is_of(self, directory: str) -> bool:
        return os.path.isdir(directory) and self._origin == _identity(directory)

    def fitted_to(self, workspace: SandboxWorkspace) -> Snapshot:
        """Adapt it to the trees of a sandbox, with whiteouts only where a file must be hidden."""
        from .copied import CopiedWorkspace

        if isinstance(workspace, CopiedWorkspace):
            copy, baseline = workspace.flattened(self._trees[WORKSPACE_PATH])
            trees: dict[str, LayerSnapshot] = {WORKSPACE_PATH: copy}
            return Snapshot(self.label, self.method, trees, baseline, self._shells, created=self.created)
        made: dict[str, LayerSnapshot] = {}
        try:
            for root, tree in workspace.trees.items():
                made[root] = LayerSnapshot(tree.stack.store, tree.stack.bases, (), tree.mounted_at)
                if root == WORKSPACE_PATH and workspace.takes_saved_base and self._base is not None:
                    made[root] = self._over(self._base, workspace.directory, made[root])
                if root in self._trees:
                    made[root] = _rebased(self._trees[root], made[root])
            baseline = self._baseline_for(workspace, made[WORKSPACE_PATH])
        except BaseException:
            for point in made.values():
                point.close()
            raise
        return Snapshot(self.label, self.method, made, baseline, self._shells, created=self.created)

    def _over(self, copy: Layer, directory: str, empty: LayerSnapshot) -> LayerSnapshot:
        """Put `empty`, which is closed, over a saved copy in place of `directory` itself."""
        base = LoadedBase.of(copy, directory, self._base_taken if self._is_of(directory) else now_ns())
        try:
            return LayerSnapshot(empty.store, [base], (), empty.mounted_at)
        finally:
            base.drop()
            empty.close()

    def _baseline_for(self, workspace: SandboxWorkspace, point: LayerSnapshot) -> Baseline:
        from .snapshot_file import in_layers

        if workspace.stand_in is not None or self._origin != _identity(workspace.directory):
            return Baseline(workspace.baseline.taken)  # only the state that this sandbox began with
        baseline = self._baseline.copy()
        for path in baseline.settled():
            if status := in_layers(point.layers, path):
                baseline.resettle(path, status)
        return baseline


def _rebased(known: LayerSnapshot, empty: LayerSnapshot) -> LayerSnapshot:
    """Merge the layers of `known` into one over the bases of `empty`, which is closed."""
    from ...layers.merge import merge, prune

    layer = empty.store.layer(like=empty.bases[0]).hold()
    try:
        merge([one.upper for one in known.layers], layer.upper, link=known.store is empty.store)
        prune(layer.upper, empty.bases)
        return LayerSnapshot(empty.store, empty.bases, (layer,), empty.mounted_at)
    finally:
        layer.drop()
        empty.close()


def _identity(directory: str) -> dict[str, object]:
    """Facts that identify a directory, even across machines."""
    found = os.stat(reach(directory))
    return {
        "path": directory,
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


@contextmanager
def loaded(snapshot: Snapshot | str | PathLike[str]) -> Iterator[Snapshot]:
    """Yield the snapshot, or load it from a file for the duration of the block."""
    if isinstance(snapshot, Snapshot):
        yield snapshot
        return
    found = Snapshot.load(snapshot)
    try:
        yield found
    finally:
        found.close()


# ---------------------------------------------------------------- snapshots of one sandbox


class History:
    """Existing snapshots of a workspace, and the one that it continued from."""

    def __init__(self) -> None:
        self.at: ReferenceType[Snapshot] | None = None
        self._taken: dict[ReferenceType[Snapshot], None] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot that was just taken."""
        snapshot._parent = self.at
        if snapshot.automatic:
            return
        self.at = ref(snapshot)
        self._taken[ref(snapshot, self._forget)] = None

    def _forget(self, gone: ReferenceType[Snapshot]) -> None:
        self._taken.pop(gone, None)

    def listed(self) -> list[Snapshot]:
        """Return the snapshots that are not closed, oldest first."""
        found = [one() for one in list(self._taken)]
        return [snapshot for snapshot in found if snapshot is not None and not snapshot.closed]


_histories: WeakKeyDictionary[SandboxWorkspace, History] = WeakKeyDictionary()


def history(workspace: SandboxWorkspace) -> History:
    """Return the history of a workspace."""
    return _histories.setdefault(workspace, History())


def snapshot_layers(workspace: SandboxWorkspace) -> set[str]:
    """Return the layer directories of a workspace's open snapshots."""
    known = _histories.get(workspace)
    found = () if known is None else known.listed()
    trees = [tree for snapshot in found for tree in list(snapshot._trees.values())]
    return {layer.upper for tree in trees for layer in tree.layers}


def take(
    workspace: SandboxWorkspace,
    sessions: Sequence[NamedShell],
    label: str,
    *,
    listed: bool = True,
    automatic: bool = False,
    before_files: Callable[[], object] = tuple,
) -> Snapshot:
    """Take a snapshot of a sandbox whose `sessions` are idle.

    Unless `listed`, its list of snapshots omits it. `automatic`: for its history. `before_files` is called
    after the shells are saved, and before the files are.
    """
    if not isinstance(label, str):
        raise InvalidCall(f"the label is {label!r}", why="it is not text", fix="write text")
    # Root's sessions are not included: a sandbox that continues from it may have no root.
    continued = [session for session in sessions if not session._user]
    shells = {session.name: saved for session in continued if (saved := _saved(session)) is not None}
    before_files()
    created = now()
    method, trees = workspace.freeze(partial(come_back, sessions))
    made = Snapshot(label, method, trees, workspace.baseline.copy(), shells, created=created)
    made.freezer, made._of, made.automatic = workspace.freezer, ref(workspace), automatic
    if listed:
        history(workspace).add(made)
    return made


def _saved(session: NamedShell) -> SavedShell | None:
    """Return the state of a session's shell; None if the sandbox has died with its shells."""
    try:
        return session._shell.saved()
    except SandboxLost:
        return None


def restore(
    workspace: SandboxWorkspace,
    sessions: Sequence[NamedShell],
    snapshot: Snapshot,
    others: Literal["keep", "end"],
    *,
    looks: bool = True,
    before_shells: Callable[[], object] = tuple,
) -> tuple[list[NamedProcess], Drift]:
    """Restore the files and shells of a snapshot; a session that it lacks begins anew.

    `before_shells` is called after the files are restored, and before the shells are.

    Returns the processes (except idle shells) that were ended before the exchange, and the host's changes
    since the snapshot, judged by a sample of entries, if it `looks` for them.
    """
    snapshot._check_open()
    fitting = snapshot.fitted_to(workspace)

    def then() -> None:
        workspace.baseline = fitting._baseline.with_commits_of(workspace.baseline)
        history(workspace).at = snapshot._parent if snapshot.automatic else ref(snapshot)
        before_shells()
        for session in sessions:
            session._shell.become(fitting.shell_state(session.name, workspace))

    ended = change(workspace, workspace.restored(fitting._trees), then, others)
    return ended, drift_after(workspace, snapshot, fitting) if looks else Drift()


def drift_after(workspace: SandboxWorkspace, snapshot: Snapshot, fitting: Snapshot) -> Drift:
    """Return the host's changes since a restored snapshot, judged by a sample of entries."""
    if workspace.stand_in is not None or not snapshot._is_of(workspace.directory):
        return Drift()
    return fitting.drift(most=MOST_ENTRIES)


# Exchange the layers of an open sandbox, even while programs run.


def change(
    workspace: SandboxWorkspace,
    following: dict[str, Stack],
    then: Callable[[], object] = tuple,
    others: Literal["keep", "end"] = "keep",
) -> list[NamedProcess]:
    """Continue with other layers, even while programs run, and call `then`. Returns the ended processes.

    `following` is closed if that fails.
    """
    try:
        return workspace.swap(following, then, others) or []
    except BaseException:
        close_all(following)
        raise


def extend(workspace: SandboxWorkspace, bases: Mapping[str, Sequence[str]]) -> None:
    """Put system directories in layers, so that they can be written from now on.

    `bases` maps each path inside to the host directories below it, topmost first. The owners in the topmost
    one decide which user may write. Trees that already have layers stay. Snapshots, forks,
    `diff(everything=True)` and kept sandboxes include the new ones. Running programs keep their open files.
    """
    from .overlay import OverlayWorkspace

    if not isinstance(workspace, OverlayWorkspace):
        raise LayerError(
            "this sandbox has no layers",
            why="its workspace is a copy",
            fix="open it with mode='overlay' on the namespaces backend",
        )
    following: dict[str, Stack] = {}
    try:
        for root, below in bases.items():
            if root not in workspace.trees:
                following[root] = Stack.new(workspace.stack.store, below)
    except BaseException:
        close_all(following)
        raise
    if following:
        change(workspace, following)


def come_back(sessions: Sequence[NamedShell], *, at_once: bool = False) -> None:
    """Make shells enter their directory in the newly mounted tree; see `Shell.reenter_directory`."""
    for session in sessions:
        session._shell.reenter_directory(at_once=at_once)
