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
from ...layers.merged_view import OpenLayers
from ...layers.squash import deep
from ...layers.stack import Stack
from ...layers.store import no_room
from ...policy.paths import WORKSPACE_PATH
from . import home_layer, kept_record
from .kept_record import check_workspace
from .kept_shells import KeptShell, KeptShells
from .overlay import OverlayWorkspace
from .snapshot import Snapshot, drift_after
from .stores import empty_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Unpack

    from ...forkserver.client import HomeTree
    from ...layers.commit import CommitOptions
    from ...layers.drift import Drift
    from ...layers.review import Committed, Review
    from ...layers.session_record import SessionRecord
    from ...mounts.operations import Operation
    from ...policy import Policy
    from ...shell.state import SavedShell

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
            self.trees[recorded.root] = kept_record.tree(self._store, recorded, layers)
        for point in record.points:
            self.snapshots[point.label] = kept_record.snapshot(self._store, place, point, layers)

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
            layers=kept_record.layer_names((self.stack.top, *self.stack.frozen)),
            baseline=self.baseline,
            points=tuple(map(kept_record.snapshot_record, self.snapshots.values())),
            beside=tuple(map(kept_record.tree_record, others)),
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
