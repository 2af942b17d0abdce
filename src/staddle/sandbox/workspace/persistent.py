"""A workspace of layers with a name, to go on with in another process: `Sandbox(keep="NAME")`.

It has the same layers as any sandbox, in a store that outlives the process. Processes end with the
sandbox; the workspace, the home and /tmp are there again, and the state of its shells (see `kept_shells`).
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
from ...policy.paths import WORKSPACE_PATH
from ...shell.state import SavedShell
from . import home_layer
from .overlay import OverlayWorkspace
from .snapshot import Snapshot, drift_after
from .snapshot_file import read_shells, shell_facts
from .stores import empty_directory
from .trees import LayeredTree, by_tree, path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any, Unpack

    from ...forkserver.client import HomeTree
    from ...layers.changes import Change
    from ...layers.commit import CommitOptions
    from ...layers.drift import Drift
    from ...layers.review import Committed, Review
    from ...layers.session_record import SessionRecord
    from ...layers.store import Layer, Store
    from ...mounts.operations import Operation
    from ...policy import Policy

#: More changes than this are not compared at every start; changes of the host are then found by the
#: time of the first start.
_MOST_TOUCHED = 20_000


class PersistentWorkspace(OverlayWorkspace):
    """The layers of a kept sandbox, claimed by this process until `close`."""

    def __init__(self, name: str, *, make: bool = False, workspace: str | None = None) -> None:
        """Claim the kept sandbox; `make` it for `workspace` if it is not there."""
        session_record.checked_name(name)
        if make:
            session_record.make_home(workspace)
        self._store = store = persistent_store.PersistentStore(name, make=make, owner=mounter())
        self._closed = False
        self._next: tuple[Stack, Baseline] | None = None
        self.snapshots: dict[str, Snapshot] = {}
        self._shells = KeptShells(store.home)
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
        self._store.sweep()  # a process was killed while it made it

    def _continue(self, record: SessionRecord) -> None:
        check_workspace(record)
        self.record = record
        self._store.recorded = record.every_layer
        self._store.sweep()
        place = HostDirectory.of(record.workspace) if record.workspace else empty_directory(self._store)
        try:
            layers = {name: self._store.existing(name) for name in record.every_layer}
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

    # ------------------------------------------------------------ for a sandbox

    def prepare(self, policy: Policy) -> None:
        """Make everything ready to be mounted, for a sandbox with this policy."""
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
                for base in self.record.every_base:
                    if "/" not in base:  # what is in it is the sandbox's own
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
        """The paths that are in the layers as they were committed."""
        found = [(path, self._in_the_layers(path)) for path in self.baseline.settled()]
        return [path for path, status in found if status and self.baseline.is_settled(path, status)]

    def _in_the_layers(self, path: str) -> os.stat_result | None:
        for layer in (self.stack.top, *self.stack.frozen):
            with Tree(layer.upper, ours=True) as tree:
                if (status := tree.status(path)) is not None:
                    return status
        return None

    def _begin_again(self) -> None:
        """The sandbox will see the host's files as they are now, but for those that it has changed."""
        try:
            with OpenLayers(self.stack.view()) as opened:
                touched = []
                for item in differences(opened):
                    touched.append(item.path)
                    if len(touched) > _MOST_TOUCHED:
                        return
                self.baseline.begin_again(opened.bases[0].root, touched)
        except OSError:
            return  # a file of the host that we may not look at: the older time is the stricter one

    def _replaced(self) -> None:
        if self._next is not None and self._next[0] is self.stack:
            self.baseline = self._next[1]
        self._next = None
        self.save()  # before anything is deleted

    def _home(self, mount_points: tuple[str, ...], operations: Sequence[Operation]) -> HomeTree | None:
        """The home tree to be mounted: as it was left, over the home layer of the present plan."""
        if HOME_TREE in self.trees:
            below = home_layer.home_layer(self._store, operations, self.root_uid)
            self.rebase({HOME_TREE: [below]}, mount_points)
        found = super()._home(mount_points, operations)
        self.save()
        home_layer.sweep(self._store, self.record.every_base)
        return found

    def _anew(self) -> Stack:
        """A stack in which nothing has been changed; the workspace as it is from now on."""
        made = Stack.new(self._store, self.stack.bases)
        self._next = (made, Baseline())  # when it is mounted, and not before
        return made

    def commit(
        self,
        paths: Collection[str] | None,
        to: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Committed:
        """Take changes over to the host; see layers.commit."""
        done = super().commit(paths, to, **options)
        self.save()
        return done

    keeps_shells = True

    def kept_shells(self, environment: Mapping[str, str]) -> Mapping[str, SavedShell]:
        """The shells as they were at the end, by session."""
        return {name: kept.with_environment(environment) for name, kept in self._shells.now.items()}

    def keep_shells(self, shells: Mapping[str, SavedShell], environment: Mapping[str, str]) -> None:
        """Keep the shells of a sandbox at its end."""
        self._shells.now = {name: KeptShell.of(shell, environment) for name, shell in shells.items()}
        self._shells.write()

    def abandon(self) -> None:
        """No sandbox came to be: a kept sandbox that was made for it goes again."""
        if self.is_new and not self._closed:
            self._closed = True
            self._store.remove()
        else:
            self.close()

    def close(self) -> None:
        """Write the record, and let other processes use the kept sandbox. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.save()
        except OSError as error:
            if error.errno not in trash.FULL:
                raise
            # The last record stays, which is as good: every change of layers was recorded.
            warnings.warn(f"{self.record.name}: {no_room(error, self._store.home)}", stacklevel=2)
        finally:
            for tree in self.trees.values():
                tree.squash.close()
                tree.stack.close()
            for taken in self.snapshots.values():
                taken.close()
            self._store.end()

    def save(self) -> None:
        """Write the record as everything is now."""
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

    # ------------------------------------------------------------ without a sandbox

    def review(self, paths: Collection[str] | None) -> Review:
        """Review a commit: what it would do, and the objections to it."""
        from ...layers.review import review

        with OpenLayers(self.stack.view()) as opened:
            return review(opened, paths, self.baseline, at=WORKSPACE_PATH)

    def take_over(self, paths: Collection[str] | None = None, **options: Unpack[CommitOptions]) -> Committed:
        """Commit while no sandbox has it. After a whole commit it begins anew, with the host as it is."""
        done = self.commit(paths, **options)
        if paths is None and not done.kept and not done.left_out:
            self.replace(self.without(None))
        return done

    def drop(self, paths: Mapping[str, Collection[str]] | None = None) -> None:
        """Discard changes to the workspace, or at `paths`, by tree, while no sandbox has it."""
        self.replace(self.without(paths))

    def snapshot(self, label: str) -> None:
        """Keep this moment under a label, while no sandbox has it."""
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
        """Be as at that snapshot, while no sandbox has it; see `become`."""
        drift = self.become(self._snapshot(label))
        self._shells.now = dict(self._shells.points.get(label, {}))
        self._shells.write()
        return drift

    def become(self, snapshot: Snapshot) -> Drift:
        """Be as at a snapshot of it, or one that was loaded, while no sandbox has it.

        Returns what the host has changed since.
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
        """A snapshot of it, or it as it is now, to be saved to a file, while no sandbox has it."""
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
        """Delete a snapshot; layers that others need stay."""
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


def claim_workspace(name: str, workspace: str | None, policy: Policy) -> PersistentWorkspace:
    """The kept sandbox `name` for a sandbox, made if it is not there."""
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
    """The workspace of a kept sandbox that is there already; None when it has none, or is not there."""
    record = session_record.read(session_record.directory_of(name))
    return None if record is None else record.workspace


def find(name: str) -> SessionRecord:
    """The record of a kept sandbox, also while it is in use. LayerError when it is not there."""
    record = session_record.read(session_record.directory_of(name))
    if record is None:
        raise persistent_store.unknown(name)
    return record


def policy_facts(policy: Policy) -> dict[str, object]:
    """A policy for people to look at, without the values of variables: those may be secrets."""
    return {
        "preset": policy.preset,
        **{name: list(getattr(policy, name)) for name in ("read", "write", "deny", "sockets", "pass_env")},
        "env": sorted(policy.env),
        "network": policy.network.as_dict(),
        "limits": policy.limits.as_dict(),
    }


# The shells of a kept sandbox: the state of each session as it was at the end, and at each snapshot.
#
# It is text of the sandbox, which only a shell of the sandbox reads again. The file lies beside the record,
# for its owner only: a shell's variables may hold secrets. Variables that the sandbox was opened with, and
# that no command has changed, are not in it: the next sandbox has its own.


FILE = "shells.json"
FORMAT = 1
_MOST_BYTES = 128 << 20


class KeptShell:
    """The state of one shell, and the names of the variables that it had from the sandbox."""

    def __init__(self, shell: SavedShell, given: tuple[str, ...] = ()) -> None:
        self.shell, self.given = shell, given

    @classmethod
    def of(cls, shell: SavedShell, environment: Mapping[str, str]) -> KeptShell:
        """Keep a shell of a sandbox that was opened with `environment`."""
        if shell.dump is None:
            return cls(shell)
        dump, given = shell.dump.without_variables(environment)
        return cls(SavedShell(dump, shell.status, shell.cwd), given)

    def with_environment(self, environment: Mapping[str, str]) -> SavedShell:
        """The shell for a sandbox that is opened with `environment`."""
        if self.shell.dump is None:
            return self.shell
        now = {name: environment[name] for name in self.given if name in environment}
        return SavedShell(self.shell.dump.with_exported(now), self.shell.status, self.shell.cwd)


class KeptShells:
    """The shells of a kept sandbox by session: `now`, and those of its snapshots by label."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{FILE}"
        self.now: dict[str, KeptShell] = {}
        self.points: dict[str, dict[str, KeptShell]] = {}
        self._read()

    def _read(self) -> None:
        """Read the file; no shells if it cannot be read: the layers are worth more than a shell's state."""
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
        """Replace the file, whole or not at all."""
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
        name: {"shell": shell_facts(kept.shell), "given": list(kept.given)} for name, kept in shells.items()
    }


def _shells(facts: Any) -> dict[str, KeptShell]:
    shells = read_shells({name: kept["shell"] for name, kept in facts.items()})
    return {name: KeptShell(shell, tuple(map(str, facts[name]["given"]))) for name, shell in shells.items()}


# The record of a kept sandbox: trees and snapshots to and from it, and the changes and size that it tells.
#
# The latter by the record alone, also while the sandbox is in use.


def tree(store: Store, recorded: session_record.TreeRecord, layers: Mapping[str, Layer]) -> LayeredTree:
    """A recorded tree, to go on with."""
    top, *frozen = (layers[name] for name in recorded.layers)
    stack = Stack(store, base_paths(store.path, recorded.bases), frozen, top)
    return LayeredTree(recorded.root, recorded.places, stack)


def snapshot(
    store: Store, base: str, recorded: session_record.SnapshotRecord, layers: Mapping[str, Layer]
) -> Snapshot:
    """A recorded snapshot; `base` is what the layers of its workspace are over. It has no shells."""

    def frozen(names: Collection[str], below: Sequence[str], mounted_at: tuple[str, ...]) -> LayerSnapshot:
        return LayerSnapshot(store, below, [layers[name] for name in names], mounted_at)

    trees = {WORKSPACE_PATH: frozen(recorded.layers, [base], (WORKSPACE_PATH,))}
    for one in recorded.beside:
        trees[one.root] = frozen(one.layers, base_paths(store.path, one.bases), one.places)
    return Snapshot(recorded.label, "swap", trees, recorded.baseline, {}, created=recorded.created)


def tree_record(one: LayeredTree) -> session_record.TreeRecord:
    """The record of a tree."""
    layers = (one.stack.top, *one.stack.frozen)
    return session_record.TreeRecord(one.root, one.mounted_at, _bases(one.stack), layer_names(layers))


def snapshot_record(taken: Snapshot) -> session_record.SnapshotRecord:
    """The record of a snapshot."""
    others = tuple(
        session_record.TreeRecord(root, one.mounted_at, _bases(one), layer_names(one.layers))
        for root, one in taken._trees.items()
        if root != WORKSPACE_PATH
    )
    layers = layer_names(taken._trees[WORKSPACE_PATH].layers)
    return session_record.SnapshotRecord(taken.label, taken.created, layers, taken._baseline, others)


def base_paths(store: str, bases: Sequence[str]) -> list[str]:
    """The directories below a tree. One that is in the store is recorded by its name there."""
    return [base if base.startswith("/") else f"{store}/{base}" for base in bases]


def _bases(stack: Stack | LayerSnapshot) -> tuple[str, ...]:
    within = f"{stack.store.path}/"
    return tuple(base.removeprefix(within) for base in stack.bases)


def layer_names(layers: Collection[Layer]) -> tuple[str, ...]:
    """The names of layers in a record."""
    return tuple(os.path.basename(layer.path) for layer in layers)


def changes(
    record: SessionRecord, paths: Collection[str] | None = None, *, everything: bool = False
) -> list[Change]:
    """The changes of a kept sandbox, also while it is in use; with `everything`, also outside the workspace.

    Only at and below `paths` when given, as they are seen inside, from the workspace; ValueError for
    one that cannot be told about.
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
    """The bytes that its layers take."""
    from ...layers.store import usage

    directory = f"{session_record.directory_of(record.name)}/{session_record.LAYERS}"
    return sum(usage(f"{directory}/{name}/upper") for name in record.every_layer)


def check_workspace(record: SessionRecord) -> None:
    """LayerError when the directory that a kept sandbox is of is not the one that is there now."""
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
