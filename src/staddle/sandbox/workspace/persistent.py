"""A named workspace of layers that another process can continue: `Sandbox(keep="NAME")`.

It has the same layers as any sandbox, in a store that outlives the process. Processes end with the sandbox;
the workspace, the home, /tmp and the state of its shells are restored (see `kept_shells`).
"""

from __future__ import annotations

import os
import time
import warnings

from ...errors import InvalidCall, LayerError
from ...files.tree import Tree
from ...forkserver.client import mounter
from ...inside.agent.mount_swap import HOME_TREE
from ...layers import persistent_store, session_record, trash
from ...layers.baseline import Baseline
from ...layers.differences import differences
from ...layers.host_directory import HostDirectory
from ...layers.merged_view import LayerView, OpenLayers
from ...layers.squash import deep
from ...layers.stack import LayerSnapshot, Stack
from ...layers.store import no_room
from ...paths import WORKSPACE_PATH
from ...shell.state import SavedShell
from . import home_layer
from .kept_points import KeptPoints, PointRecord
from .overlay import OverlayWorkspace
from .snapshot import Snapshot, drift_after
from .snapshot_file import read_shells, shell_facts
from .stores import empty_directory
from .trees import LayeredTree, by_tree, path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any, Unpack

    from ...forkserver.client import HomeTree
    from ...layers.changes import Change
    from ...layers.commit import CommitOptions
    from ...layers.drift import Drift
    from ...layers.review import Committed, Review
    from ...layers.session_record import SessionRecord
    from ...layers.store import Layer, Store
    from ...layers.undo import Undo
    from ...mounts.operations import Operation
    from ...policy import Policy

#: More changes than this are not compared at every start. The time of the first start then decides which
#: changes are the host's.
_MOST_TOUCHED = 20_000


class PersistentWorkspace(OverlayWorkspace):
    """Layers of a kept sandbox, locked by this process until `close`."""

    kept_points: KeptPoints

    def __init__(self, name: str, *, make: bool = False, workspace: str | None = None) -> None:
        """Open and lock the kept sandbox; with `make`, create it for `workspace` if missing."""
        session_record.checked_name(name)
        if make:
            session_record.make_home(workspace)
        self._store = store = persistent_store.PersistentStore(name, make=make, owner=mounter())
        self._closed = False
        self._next: tuple[Stack, Baseline] | None = None
        self.snapshots: dict[str, Snapshot] = {}
        self._shells = KeptShells(store.home)
        self.kept_points = store.of_history = KeptPoints(store.home)
        #: Snapshots of these points, by number.
        self.past: dict[int, Snapshot] = {}
        try:
            persistent_store.sweep_trash(os.path.dirname(session_record.home()))
            record = session_record.read(store.home)
            self.is_new = record is None
            if record is None:
                self._begin(name, workspace)
            else:
                self._continue(record)
        except BaseException:
            if getattr(self, "is_new", False):
                store.remove()
            store.leave()
            raise

    def _begin(self, name: str, workspace: str | None) -> None:
        place = HostDirectory.of(workspace) if workspace else empty_directory(self._store)
        self._start(place, Stack.new(self._store, [place]), None)
        now = time.time()
        inode = os.stat(self.directory).st_ino
        self.record = session_record.SessionRecord(name, workspace, inode, now, now, {}, (), self.baseline)
        self.save()
        self._store.sweep()  # another process may have been killed while it created this

    def _continue(self, record: SessionRecord) -> None:
        check_workspace(record)
        self.record = record
        self._store.recorded = record.every_layer
        self._store.sweep()
        place = HostDirectory.of(record.workspace) if record.workspace else empty_directory(self._store)
        try:
            layers = {name: self._store.existing(name) for name in record.every_layer}
            past = self._past_layers(layers)
        except OSError as error:
            raise LayerError(
                f"the kept sandbox {record.name!r} is damaged",
                why=f"{error.filename!r}: {error.strerror}",
                fix=f"`staddle rm --force {record.name}`",
            ) from None
        top, *frozen = (layers[name] for name in record.layers)
        self._start(place, Stack(self._store, [place], frozen, top), record.baseline)
        for recorded in record.beside:
            self.trees[recorded.root] = tree(self._store, recorded, layers)
        for point in record.points:
            self.snapshots[point.label] = snapshot(self._store, place, point, layers)
        for kept in past:
            self.past[kept.number] = snapshot(self._store, place, kept.snapshot, layers)
            self.past[kept.number].automatic = True

    def _past_layers(self, layers: dict[str, Layer]) -> list[PointRecord]:
        """Add the layers of the history's points. Returns the points that have all of theirs."""
        found = []
        for point in self.kept_points.records:
            try:
                for name in point.snapshot.every_layer:
                    if name not in layers:
                        layers[name] = self._store.existing(name)
                found.append(point)
            except OSError:
                self.kept_points.forget(point.number)
        return found

    # ------------------------------------------------------------ for a sandbox

    def prepare(self, policy: Policy) -> None:
        """Prepare everything for mounting, for a sandbox with this policy."""
        owner = self._store.owner
        if not self.is_new:
            every = [layer for tree in self.trees.values() for layer in (tree.stack.top, *tree.stack.frozen)]
            every += [
                layer
                for taken in self.snapshots.values()
                for tree in taken._trees.values()
                for layer in tree.layers
            ]
            layers = {layer.path: layer for layer in every}
            settled = self._settled_paths()
            for layer in layers.values():
                persistent_store.prepare(layer, owner, self.record.mounter)
            if owner is not None:
                for name in self.kept_points.layers:  # below other layers only: nothing is written there
                    if f"{self._store.path}/{name}" not in layers:
                        persistent_store.give(f"{self._store.path}/{name}", owner, self.record.mounter)
            if owner is not None:
                for base in self.record.every_base | self.kept_points.bases:
                    if "/" not in base:  # its contents belong to the sandbox
                        persistent_store.give(f"{self._store.path}/{base}", owner, self.record.mounter)
            for path in settled:
                if (status := self._in_the_layers(path)) is not None:
                    self.baseline.resettle(path, status)
            if owner is not None and self.stand_in is not None:
                os.chown(self.stand_in, *owner)
            self._begin_again()
            self._follow()
        self.record = self.record.replace(
            policy=policy_facts(policy), mounter=-1 if owner is None else owner[0]
        )
        self.save()

    def _settled_paths(self) -> list[str]:
        """Return the paths whose entries in the layers are as they were committed."""
        found = [(path, self._in_the_layers(path)) for path in self.baseline.settled()]
        return [path for path, status in found if status and self.baseline.is_settled(path, status)]

    def _in_the_layers(self, path: str) -> os.stat_result | None:
        for layer in (self.stack.top, *self.stack.frozen):
            with Tree(layer.upper, ours=True) as tree:
                if (status := tree.status(path)) is not None:
                    return status
        return None

    def _begin_again(self) -> None:
        """Rebase on the host's present files, except for the paths that the sandbox has changed."""
        try:
            with OpenLayers(self.stack.view()) as opened:
                touched = []
                for item in differences(opened):
                    touched.append(item.path)
                    if len(touched) > _MOST_TOUCHED:
                        return
                self.baseline.begin_again(opened.bases[0].root, touched)
        except OSError:
            return  # an unreadable host file: the older time is the stricter one

    def _replaced(self) -> None:
        if self._next is not None and self._next[0] is self.stack:
            self.baseline = self._next[1]
        self._next = None
        self.save()  # before anything is deleted

    def _home(self, mount_points: tuple[str, ...], operations: Sequence[Operation]) -> HomeTree | None:
        """Return the home tree to mount: as it was left, over the present plan's home layer."""
        if HOME_TREE in self.trees:
            below = home_layer.home_layer(self._store, operations, self.root_uid)
            self.rebase({HOME_TREE: [below]}, mount_points)
        found = super()._home(mount_points, operations)
        self.save()
        home_layer.sweep(self._store, self.record.every_base | self.kept_points.bases)
        return found

    def _anew(self) -> Stack:
        """Return a stack without changes: the workspace as it is from now on."""
        made = Stack.new(self._store, self.stack.bases)
        self._next = (made, Baseline())  # applies when it is mounted
        return made

    def commit(
        self,
        paths: Collection[str] | None,
        to: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Committed:
        """Write changes to the host; see layers.commit. `undo` restores the replaced files."""
        undo, is_copied = self._undo(), False
        if to is None and self.stand_in is None:
            found = options.get("reviewed") or self.review(paths)
            is_copied = undo.copy(self._in_directory(found.changes))
        done = super().commit(paths, to, **options)
        if is_copied and done.changes:
            undo.settle(self._in_directory(done.changes))
        elif to is None and done.changes:
            undo.forget()
        if to is None and done.changes:
            self.kept_points.clear()  # the host's files have changed below them
        self.save()
        return done

    def _in_directory(self, changes: Iterable[Change]) -> list[str]:
        """Return the paths of changes below the workspace: those of an open sandbox are as seen inside."""
        paths = [path for change in changes for path in (change.path, change.old_path) if path]
        return [path.removeprefix(f"{self.mounted_at}/") for path in paths]

    def _undo(self) -> Undo:
        from ...layers.undo import Undo

        return Undo(f"{session_record.directory_of(self.record.name)}/undo", self.directory)

    def undo(self) -> list[str]:
        """Restore the files that the last commit replaced; see layers.undo. Returns their paths."""
        return self._undo().run()

    keeps_shells = True

    def kept_shells(self, environment: Mapping[str, str]) -> Mapping[str, SavedShell]:
        """Return the shells saved at the end of the last sandbox, by session."""
        found = {name: kept.with_environment(environment) for name, kept in self._shells.now.items()}
        return {name: _moved(shell, WORKSPACE_PATH, self._also_at) for name, shell in found.items()}

    def keep_point(
        self, number: int, facts: Mapping[str, Any], taken: Snapshot, environment: Mapping[str, str]
    ) -> None:
        """Save a point of the history, taken in a sandbox opened with `environment`."""
        here = {name: _moved(one, self._also_at, WORKSPACE_PATH) for name, one in taken._shells.items()}
        shells = {name: shell_facts(KeptShell.of(one, environment).shell) for name, one in here.items()}
        record = snapshot_record(taken).replace(label=str(number))
        self.kept_points.write(PointRecord(number, facts, record, shells))
        self.past[number] = taken

    def drop_point(self, number: int) -> None:
        """Delete a point of the history; its layers go with its snapshot."""
        self.kept_points.forget(number)
        self.past.pop(number, None)

    def forget_history(self) -> None:
        """Delete the points of the history with the layers that only they need, while no sandbox uses it."""
        self.kept_points.clear()
        for taken in self.past.values():
            taken.close()
        self.past.clear()

    def past_snapshot(self, point: PointRecord, environment: Mapping[str, str]) -> Snapshot:
        """Return the snapshot of a kept point, for a sandbox opened with `environment`."""
        before = self.past[point.number]

        def read() -> dict[str, SavedShell]:
            return {
                name: _moved(KeptShell(shell).with_environment(environment), WORKSPACE_PATH, self._also_at)
                for name, shell in point.read_shells().items()
            }

        taken = self.past[point.number] = PastSnapshot(before, tuple(point.shells), read)
        return taken

    def keep_shells(self, shells: Mapping[str, SavedShell], environment: Mapping[str, str]) -> None:
        """Save the shells of a sandbox at its end."""
        moved = {name: _moved(shell, self._also_at, WORKSPACE_PATH) for name, shell in shells.items()}
        self._shells.now = {name: KeptShell.of(shell, environment) for name, shell in moved.items()}
        self._shells.write()

    def abandon(self) -> None:
        """Close it after a failed open; delete it if it was created for that sandbox."""
        if self.is_new and not self._closed:
            self._closed = True
            self._store.remove()
        else:
            self.close()

    def close(self) -> None:
        """Write the record, and unlock the kept sandbox. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.save()
        except OSError as error:
            if error.errno not in trash.FULL:
                raise
            # The last record remains valid: every change of layers was recorded.
            warnings.warn(f"{self.record.name}: {no_room(error, self._store.home)}", stacklevel=2)
        finally:
            for tree in self.trees.values():
                tree.squash.close()
                tree.stack.close()
            for taken in (*self.snapshots.values(), *self.past.values()):
                taken.close()
            self._store.end()

    def save(self) -> None:
        """Write the record of the present state."""
        others = [tree for root, tree in self.trees.items() if root != WORKSPACE_PATH]
        self.record = self.record.replace(
            used=time.time(),
            layers=layer_names((self.stack.top, *self.stack.frozen)),
            baseline=self.baseline,
            points=tuple(map(snapshot_record, self.snapshots.values())),
            beside=tuple(map(tree_record, others)),
        )
        session_record.write(self._store.home, self.record)
        self._store.recorded = self.record.every_layer

    # ------------------------------------------------------------ without an open sandbox

    def review(self, paths: Collection[str] | None) -> Review:
        """Review a commit: its changes, and the objections to it."""
        from ...layers.review import review

        with OpenLayers(self.stack.view()) as opened:
            return review(opened, paths, self.baseline, at=WORKSPACE_PATH)

    def take_over(self, paths: Collection[str] | None = None, **options: Unpack[CommitOptions]) -> Committed:
        """Commit while no sandbox uses it. After a complete commit it begins anew, with the host's files."""
        done = self.commit(paths, **options)
        if paths is None and not done.kept and not done.left_out:
            self.replace(self.without(None))
        return done

    def drop(self, paths: Mapping[str, Collection[str]] | None = None) -> None:
        """Discard changes to the workspace, or at `paths`, by tree, while no sandbox uses it."""
        self.replace(self.without(paths))

    def snapshot(self, label: str) -> None:
        """Save a snapshot under a label, while no sandbox uses it."""
        try:
            session_record.checked_label(label)
        except ValueError as error:
            raise InvalidCall(
                f"the label {label!r} cannot be used", why=str(error), fix="use letters, digits and dashes"
            ) from None
        if label in self.snapshots:
            raise InvalidCall(
                f"the kept sandbox {self.record.name!r} has a snapshot {label!r} already",
                fix=f"choose another label, or delete it: staddle snapshot {self.record.name} --delete ...",
                why="labels of kept snapshots are names",
            )
        following: dict[str, Stack] = {}
        taken = {}
        for root, tree in self.trees.items():
            if tree.stack.is_untouched():
                taken[root] = tree.below()
            else:
                taken[root] = tree.freeze(deep())
                following[root] = taken[root].stack()
        self.snapshots[label] = Snapshot(label, "swap", taken, self.baseline.copy(), {})
        self._shells.points[label] = dict(self._shells.now)
        self._shells.write()
        if following:
            self.replace(following)
        else:
            self.save()

    def restore(self, label: str) -> Drift:
        """Return to a snapshot, while no sandbox uses it; see `become`."""
        drift = self.become(self._snapshot(label))
        self._shells.now = dict(self._shells.points.get(label, {}))
        self._shells.write()
        return drift

    def become(self, snapshot: Snapshot) -> Drift:
        """Return to one of its snapshots, or to a loaded one, while no sandbox uses it.

        Returns the host's changes since the snapshot.
        """
        fitting = snapshot.fitted_to(self)
        following = self.restored(fitting._trees)
        self._next = (following[WORKSPACE_PATH], fitting._baseline.with_commits_of(self.baseline))
        self.replace(following)
        self._shells.now = {
            name: KeptShell(shell)
            for name in snapshot.sessions
            if (shell := snapshot.shell_state(name, None)) is not None
        }
        self._shells.write()
        return drift_after(self, snapshot, fitting)

    def saved(self, label: str | None) -> Snapshot:
        """Return a snapshot of it, or its present state, for saving to a file, while no sandbox uses it."""
        if label is None:
            trees, baseline = {root: tree.freeze() for root, tree in self.trees.items()}, self.baseline
            kept = self._shells.now
        else:
            known = self._snapshot(label)
            trees, baseline = {root: one.again() for root, one in known._trees.items()}, known._baseline
            kept = self._shells.points.get(label, {})
        shells = {name: one.shell for name, one in kept.items()}
        return Snapshot(label or "", "swap", trees, baseline.copy(), shells)

    def forget(self, label: str) -> None:
        """Delete a snapshot; layers in use elsewhere remain."""
        taken = self._snapshot(label)
        del self.snapshots[label]
        self.save()
        if self._shells.points.pop(label, None):
            self._shells.write()
        taken.close()

    def _snapshot(self, label: str) -> Snapshot:
        if label not in self.snapshots:
            known = ", ".join(map(repr, self.snapshots)) or "it has none"
            raise InvalidCall(
                f"the kept sandbox {self.record.name!r} has no snapshot {label!r}",
                why=f"there is: {known}",
                fix="name one of these",
            )
        return self.snapshots[label]


class PastSnapshot(Snapshot):
    """Snapshot of a point of an earlier process, with the layers of another. Reads its shells when needed."""

    automatic = True
    _known: dict[str, SavedShell] | None = None

    def __init__(
        self, other: Snapshot, sessions: tuple[str, ...], read: Callable[[], dict[str, SavedShell]]
    ) -> None:
        self._read = read
        super().__init__("", "swap", other._trees, other._baseline, {}, created=other.created)
        self.sessions, other.closed = sessions, True

    @property
    def _shells(self) -> dict[str, SavedShell]:
        if self._known is None:
            self._known = self._read()
        return self._known

    @_shells.setter
    def _shells(self, shells: dict[str, SavedShell]) -> None:
        self._known = shells or None


def _moved(shell: SavedShell, before: str, after: str) -> SavedShell:
    """Return the shell in the same directory of the workspace, which is at another path."""
    if before == after:
        return shell
    top, other, cwd = os.fsencode(before), os.fsencode(after), shell.cwd
    if cwd == top or cwd.startswith(top + b"/"):
        cwd = other + cwd[len(top) :]
    return SavedShell(shell.dump and shell.dump.moved(top, other), shell.status, cwd)


def claim_workspace(name: str, workspace: str | None, policy: Policy) -> PersistentWorkspace:
    """Open and lock the kept sandbox `name`; create it if missing."""
    made = PersistentWorkspace(name, make=True, workspace=workspace)
    try:
        if made.record.workspace != workspace:
            raise InvalidCall(
                f"the kept sandbox {name!r} is of another workspace",
                why=f"it was made for {made.record.workspace or 'no directory'!r}",
                fix="open it with that one, or choose another name",
            )
        made.prepare(policy)
        return made
    except BaseException:
        made.abandon()
        raise


def workspace_of(name: str) -> str | None:
    """Return the workspace of an existing kept sandbox; None if it has none, or does not exist."""
    record = session_record.read(session_record.directory_of(name))
    return None if record is None else record.workspace


def find(name: str) -> SessionRecord:
    """Return the record of a kept sandbox, even while it is in use. Raises LayerError if it is missing."""
    record = session_record.read(session_record.directory_of(name))
    if record is None:
        raise persistent_store.unknown(name)
    return record


def policy_facts(policy: Policy) -> dict[str, object]:
    """Describe a policy for people, without the values of variables, which may be secrets."""
    return {
        "preset": policy.preset,
        **{name: list(getattr(policy, name)) for name in ("read", "write", "deny", "sockets", "pass_env")},
        "env": sorted(policy.env),
        "network": policy.network.as_dict(),
        "limits": policy.limits.as_dict(),
    }


# Shells of a kept sandbox: the state of each session at its end, and at each snapshot.
#
# The sandbox produced this text, and only a shell in the sandbox reads it again. The file is beside the
# record, readable by its owner only: variables may hold secrets. It omits variables that the sandbox was
# opened with and no command changed: the next sandbox has its own.


FILE = "shells.json"
FORMAT = 1
_MOST_BYTES = 128 << 20


class KeptShell:
    """State of one shell, without the variables of the sandbox, and those that it has unset."""

    def __init__(self, shell: SavedShell, unset: tuple[str, ...] = ()) -> None:
        self.shell, self.unset = shell, unset

    @classmethod
    def of(cls, shell: SavedShell, environment: Mapping[str, str]) -> KeptShell:
        """Save a shell of a sandbox that was opened with `environment`."""
        if shell.dump is None:
            return cls(shell)
        dump, given = shell.dump.without_variables(environment)
        unset = environment.keys() - {*given, *dump.variable_names()}
        return cls(SavedShell(dump, shell.status, shell.cwd), tuple(sorted(unset)))

    def with_environment(self, environment: Mapping[str, str]) -> SavedShell:
        """Return the shell for a sandbox opened with `environment`."""
        if self.shell.dump is None:
            return self.shell
        its_own = {*self.unset, *self.shell.dump.variable_names()}
        now = {name: value for name, value in environment.items() if name not in its_own}
        return SavedShell(self.shell.dump.with_exported(now), self.shell.status, self.shell.cwd)


class KeptShells:
    """Shells of a kept sandbox by session: `now`, and those of its snapshots by label."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{FILE}"
        self.now: dict[str, KeptShell] = {}
        self.points: dict[str, dict[str, KeptShell]] = {}
        self._read()

    def _read(self) -> None:
        """Read the file. If that fails there are no shells: the layers matter more."""
        import json

        try:
            with open(self._path, "rb") as file:
                facts = json.loads(file.read(_MOST_BYTES))
            if facts["format"] == FORMAT:
                now = _shells(facts["now"])
                self.points = {str(label): _shells(found) for label, found in facts["points"].items()}
                self.now = now
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            return

    def write(self) -> None:
        """Replace the file atomically."""
        import json

        facts = {
            "format": FORMAT,
            "now": _facts(self.now),
            "points": {label: _facts(found) for label, found in self.points.items()},
        }
        temporary = f"{self._path}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump(facts, file)
        os.replace(temporary, self._path)


def _facts(shells: dict[str, KeptShell]) -> dict[str, Any]:
    return {
        name: {"shell": shell_facts(kept.shell), "unset": list(kept.unset)} for name, kept in shells.items()
    }


def _shells(facts: Any) -> dict[str, KeptShell]:
    shells = read_shells({name: kept["shell"] for name, kept in facts.items()})
    return {
        name: KeptShell(shell, tuple(map(str, facts[name].get("unset", ()))))
        for name, shell in shells.items()
    }


# Record of a kept sandbox: converts trees and snapshots, and computes changes and size.
#
# Changes and size need only the record, so they work while the sandbox is in use.


def tree(store: Store, recorded: session_record.TreeRecord, layers: Mapping[str, Layer]) -> LayeredTree:
    """Return a recorded tree, to continue with."""
    top, *frozen = (layers[name] for name in recorded.layers)
    stack = Stack(store, base_paths(store.path, recorded.bases), frozen, top)
    return LayeredTree(recorded.root, recorded.places, stack)


def snapshot(
    store: Store, base: str, recorded: session_record.SnapshotRecord, layers: Mapping[str, Layer]
) -> Snapshot:
    """Return a recorded snapshot, without shells; `base` is below the layers of its workspace."""

    def frozen(names: Collection[str], below: Sequence[str], mounted_at: tuple[str, ...]) -> LayerSnapshot:
        return LayerSnapshot(store, below, [layers[name] for name in names], mounted_at)

    trees = {WORKSPACE_PATH: frozen(recorded.layers, [base], (WORKSPACE_PATH,))}
    for one in recorded.beside:
        trees[one.root] = frozen(one.layers, base_paths(store.path, one.bases), one.places)
    return Snapshot(recorded.label, "swap", trees, recorded.baseline, {}, created=recorded.created)


def tree_record(one: LayeredTree) -> session_record.TreeRecord:
    """Return the record of a tree."""
    layers = (one.stack.top, *one.stack.frozen)
    return session_record.TreeRecord(one.root, one.mounted_at, _bases(one.stack), layer_names(layers))


def snapshot_record(taken: Snapshot) -> session_record.SnapshotRecord:
    """Return the record of a snapshot."""
    others = tuple(
        session_record.TreeRecord(root, one.mounted_at, _bases(one), layer_names(one.layers))
        for root, one in taken._trees.items()
        if root != WORKSPACE_PATH
    )
    layers = layer_names(taken._trees[WORKSPACE_PATH].layers)
    return session_record.SnapshotRecord(taken.label, taken.created, layers, taken._baseline, others)


def base_paths(store: str, bases: Sequence[str]) -> list[str]:
    """Return the directories below a tree. Those in the store are recorded by name."""
    return [base if base.startswith("/") else f"{store}/{base}" for base in bases]


def _bases(stack: Stack | LayerSnapshot) -> tuple[str, ...]:
    within = f"{stack.store.path}/"
    return tuple(base.removeprefix(within) for base in stack.bases)


def layer_names(layers: Collection[Layer]) -> tuple[str, ...]:
    """Return the names of layers in a record."""
    return tuple(os.path.basename(layer.path) for layer in layers)


def changes(
    record: SessionRecord, paths: Collection[str] | None = None, *, everything: bool = False
) -> list[Change]:
    """Return the changes of a kept sandbox, even while in use; `everything` adds those outside the workspace.

    `paths`, as seen inside and relative to the workspace, limits them. Raises ValueError for a path in no
    tree.
    """
    from ...layers.changes import diff

    check_workspace(record)
    directory = f"{session_record.directory_of(record.name)}/{session_record.LAYERS}"
    base = record.workspace or f"{directory}/empty"

    def view(layers: tuple[str, ...], below: Sequence[str]) -> LayerView:
        return LayerView(tuple(f"{directory}/{name}/upper" for name in layers), tuple(below))

    mounted_at = {WORKSPACE_PATH: (WORKSPACE_PATH,), **{tree.root: tree.places for tree in record.beside}}
    chosen = None if paths is None else by_tree(paths, WORKSPACE_PATH, mounted_at)
    found = []
    try:
        if chosen is None or WORKSPACE_PATH in chosen:
            below = None if chosen is None else chosen[WORKSPACE_PATH]
            found += diff(view(record.layers, [base]), below, at=WORKSPACE_PATH, baseline=record.baseline)
        for tree in record.beside:
            if everything if chosen is None else tree.root in chosen:
                below = None if chosen is None else chosen[tree.root]
                layers = view(tree.layers, base_paths(directory, tree.bases))
                found += diff(layers, below, at=path_of(tree.root), elsewhere=True)
        return found
    except FileNotFoundError:
        raise LayerError(
            f"the layers of the kept sandbox {record.name!r} do not exist",
            why="another process has just replaced them, or they were deleted",
            fix="try again",
        ) from None


def size(record: SessionRecord) -> int:
    """Return the bytes that its layers occupy."""
    from ...layers.store import usage

    directory = f"{session_record.directory_of(record.name)}/{session_record.LAYERS}"
    names = record.every_layer | KeptPoints(session_record.directory_of(record.name)).layers
    return sum(usage(f"{directory}/{name}/upper") for name in names)


def check_workspace(record: SessionRecord) -> None:
    """Raise LayerError if the kept sandbox's directory is missing or is another one now."""
    if record.workspace is None:
        return
    try:
        inode = os.stat(record.workspace).st_ino if os.path.isdir(record.workspace) else -1
    except OSError:
        inode = -1
    if inode != record.inode:
        what = "does not exist" if inode == -1 else "is another directory than the one it was made for"
        raise LayerError(
            f"the kept sandbox {record.name!r} has lost its workspace",
            why=f"{record.workspace!r} {what}",
            fix=f"put it back, or let the changes go: staddle rm --force {record.name}",
        )
