"""A sandbox's layers under a name, to go on with in another process: `Sandbox(keep="NAME")`.

The same layers that any sandbox has, on a store that stays. What runs in the sandbox ends with
it, and what a shell remembers goes; the workspace, the home and /tmp as they were left are there again.
"""

from __future__ import annotations

import os
import time

from ...errors import InvalidCall, LayerError
from ...files.tree import Tree
from ...forkserver.client import mounter
from ...inside.agent.mount_swap import HOME_TREE
from ...layers import keeping, kept
from ...layers.baseline import Baseline
from ...layers.differences import differences
from ...layers.merged import Opened
from ...layers.stack import Frozen, Stack
from ...policy.workspace import PLACE
from . import home_layer, kept_snapshot
from .inspect import check_workspace
from .layered_tree import Point
from .overlay import Layering, empty_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ...forkserver.client import HomeTree
    from ...layers.commit import Committed
    from ...layers.kept import Record
    from ...layers.review import OnConflict, Review
    from ...mounts.operations import Operation
    from ...policy import Policy
    from .snapshots import Snapshot

#: More changes than this are not looked through at every start; what the host changes is then told by
#: the time of the first one.
_MOST_TOUCHED = 20_000


class Kept(Layering):
    """The layers of a kept session, claimed by this process until `close`."""

    def __init__(self, name: str, *, make: bool = False, workspace: str | None = None) -> None:
        """Claim the session; `make` it for `workspace` if it is not there."""
        kept.checked_name(name)
        if make:
            kept.make_home(workspace)
        self._store = store = keeping.KeptStore(name, make=make, owner=mounter())
        self._closed = False
        self._next: tuple[Stack, Baseline] | None = None
        self.points: dict[str, kept_snapshot.Held] = {}
        try:
            keeping.sweep_grave(os.path.dirname(kept.home()))
            record = kept.read(store.home)
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
        place = workspace or empty_directory(self._store)
        self._start(place, Stack.new(self._store, [place]), None)
        now = time.time()
        inode = os.stat(self.workspace).st_ino
        self.record = kept.Record(name, workspace, inode, now, now, {}, (), self.baseline)
        self.save()
        self._store.sweep()  # somebody was killed while they made it

    def _continue(self, record: Record) -> None:
        check_workspace(record)
        self.record = record
        self._store.recorded = record.every_layer
        self._store.sweep()
        place = record.workspace or empty_directory(self._store)
        try:
            layers = {name: self._store.existing(name) for name in record.every_layer}
        except OSError as error:
            raise LayerError(
                f"the kept sandbox {record.name!r} is damaged",
                why=f"{error.filename!r}: {error.strerror}",
                fix=f"`staddle rm {record.name}`",
            ) from None
        top, *frozen = (layers[name] for name in record.layers)
        self._start(place, Stack(self._store, [place], frozen, top), record.baseline)
        for recorded in record.beside:
            self.beside[recorded.root] = kept_snapshot.tree(self._store, recorded, layers)
        for point in record.points:
            self.points[point.label] = kept_snapshot.snapshot(self._store, place, point, layers)

    # ------------------------------------------------------------ for a sandbox

    @property
    def stays(self) -> bool:
        """It is there for others after this process."""
        return True

    def prepare(self, policy: Policy) -> None:
        """Make everything ready to be mounted, for a sandbox with this policy."""
        owner = self._store.owner
        if not self.is_new:
            every = [layer for stack in self.stacks().values() for layer in (stack.top, *stack.frozen)]
            every += [layer for point in self.points.values() for layer in point.layers()]
            layers = {layer.path: layer for layer in every}
            settled = self._settled_paths()
            for layer in layers.values():
                keeping.prepare(layer, owner, self.record.mounter)
            if owner is not None:
                for base in self.record.every_base:
                    if "/" not in base:  # what is in it is the sandbox's own
                        keeping.give(f"{self._store.path}/{base}", owner, self.record.mounter)
            for path in settled:
                if (status := self._in_the_layers(path)) is not None:
                    self.baseline.resettle(path, status)
            if owner is not None and self.is_nobodys:
                os.chown(self.workspace, *owner)
            self._begin_again()
            with self._watching:  # what was done to them just now is no change
                self._watch.follow(self.stack.view())
        self.record = self.record.replace(policy=described(policy), mounter=-1 if owner is None else owner[0])
        self.save()

    def _settled_paths(self) -> list[str]:
        """What is in the layers as it was committed."""
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
            with Opened(self.stack.view()) as opened:
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

    def world(self, places: tuple[str, ...], operations: Sequence[Operation]) -> HomeTree | None:
        """What the home and the like are made of: as they were left, over what is there at first by now."""
        if HOME_TREE in self.beside:
            self.rebase({HOME_TREE: [home_layer.made(self._store, operations)]}, places)
        found = super().world(places, operations)
        self.save()
        home_layer.sweep(self._store, self.record.every_base)
        return found

    def fresh(self) -> Stack:
        """A stack in which nothing has been changed; the workspace as it is from now on."""
        made = Stack.new(self._store, self.stack.bases)
        self._next = (made, Baseline())  # when it is mounted, and not before
        return made

    def commit(
        self,
        paths: Collection[str] | None,
        on_conflict: OnConflict,
        allow_protected: bool,
        progress: Callable[[int, int], object] | None,
    ) -> Committed:
        """Take changes over to the host; see layers.commit."""
        done = super().commit(paths, on_conflict, allow_protected, progress)
        self.save()
        return done

    def never_used(self) -> None:
        """No sandbox came to be: one that was made for it goes again."""
        if self.is_new and not self._closed:
            self._closed = True
            self._store.remove()
        else:
            self.close()

    def close(self) -> None:
        """Write down what is known, and let others use it. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.save()
        finally:
            for stack in self.stacks().values():
                stack.close()
            for point in self.points.values():
                point.close()
            self._store.end()

    def save(self) -> None:
        """Replace the record by what is true now."""
        self.record = self.record.replace(
            used=time.time(),
            layers=kept_snapshot.names((self.stack.top, *self.stack.frozen)),
            baseline=self.baseline,
            points=tuple(kept_snapshot.snapshot_record(label, point) for label, point in self.points.items()),
            beside=tuple(map(kept_snapshot.tree_record, self.beside.values())),
        )
        kept.write(self._store.home, self.record)
        self._store.recorded = self.record.every_layer

    # ------------------------------------------------------------ without a sandbox

    def review(self, paths: Collection[str] | None) -> Review:
        """What a commit would do, and what speaks against it."""
        from ...layers.review import review

        with Opened(self.stack.view()) as opened:
            return review(opened, paths, self.baseline)

    def take_over(
        self,
        paths: Collection[str] | None = None,
        *,
        on_conflict: OnConflict = "refuse",
        allow_protected: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Committed:
        """Commit while no sandbox has it. After a whole commit it begins anew, with the host as it is."""
        done = self.commit(paths, on_conflict, allow_protected, progress)
        if paths is None and not done.kept and not done.left_out:
            self.replace({PLACE: self.fresh()})
        return done

    def drop(self, paths: Mapping[str, Collection[str]] | None = None) -> None:
        """Discard changes to the workspace, or at `paths`, by tree, while no sandbox has it."""
        self.replace({PLACE: self.fresh()} if paths is None else self.without(paths))

    def snapshot(self, label: str) -> None:
        """Keep this moment under a label, while no sandbox has it."""
        try:
            kept.checked_label(label)
        except ValueError as error:
            raise InvalidCall(f"the label {label!r} cannot be used", why=str(error)) from None
        if label in self.points:
            raise InvalidCall(
                f"the kept sandbox {self.record.name!r} has a snapshot {label!r} already",
                fix=f"choose another label, or delete it: staddle snapshot {self.record.name} --delete ...",
            )
        points: dict[str, Frozen] = {}
        following: dict[str, Stack] = {}
        for root, stack in self.stacks().items():
            if stack.is_deep:
                stack.squash()
            if stack.is_untouched():
                points[root] = stack.below()
            else:
                points[root] = stack.freeze()
                following[root] = points[root].stack()
        workspace = points.pop(PLACE)
        beside = {root: Point(self.beside[root].places, point) for root, point in points.items()}
        self.points[label] = kept_snapshot.Held(workspace, time.time(), self.baseline.copy(), beside)
        if following:
            self.replace(following)
        else:
            self.save()

    def restore(self, label: str) -> None:
        """Be as at that snapshot, while no sandbox has it."""
        point = self._point(label)
        following = {PLACE: point.point.stack()}
        for root, tree in self.beside.items():
            known = point.beside.get(root)
            following[root] = tree.fresh() if known is None else known.frozen.stack()
        self._next = (following[PLACE], point.baseline.with_commits_of(self.baseline))
        self.replace(following)

    def saved(self, label: str | None) -> Snapshot:
        """A snapshot of it, or it as it is now, to be saved to a file, while no sandbox has it."""
        from .snapshots import Snapshot

        if label is None:
            workspace, baseline = self.stack.freeze(), self.baseline
            beside = {root: Point(tree.places, tree.stack.freeze()) for root, tree in self.beside.items()}
        else:
            known = self._point(label)
            workspace, baseline = known.point.again(), known.baseline
            beside = {root: Point(one.places, one.frozen.again()) for root, one in known.beside.items()}
        return Snapshot(label or "", "swap", workspace, baseline.copy(), {}, beside=beside)

    def become(self, snapshot: Snapshot) -> None:
        """Be as at a snapshot that was loaded, while no sandbox has it. Shells are not kept."""
        fitting = snapshot.on(self)
        following = {root: point.frozen.stack() for root, point in fitting._beside.items()}
        following[PLACE] = fitting._point.stack()
        self._next = (following[PLACE], fitting._baseline.with_commits_of(self.baseline))
        self.replace(following)

    def forget(self, label: str) -> None:
        """Delete a snapshot; layers that others need stay."""
        point = self._point(label)
        del self.points[label]
        self.save()
        point.close()

    def _point(self, label: str) -> kept_snapshot.Held:
        if label not in self.points:
            known = ", ".join(map(repr, self.points)) or "it has none"
            raise InvalidCall(
                f"the kept sandbox {self.record.name!r} has no snapshot {label!r}", why=f"there is: {known}"
            )
        return self.points[label]


def opened(name: str, workspace: str | None, policy: Policy) -> Kept:
    """The session `name` for a sandbox, made if it is not there."""
    made = Kept(name, make=True, workspace=workspace)
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
        made.never_used()
        raise


def workspace_of(name: str) -> str | None:
    """The workspace of a session that is there already; None when it has none, or is not there."""
    record = kept.read(kept.directory_of(name))
    return None if record is None else record.workspace


def find(name: str) -> Record:
    """The record of a session, whoever uses it. LayerError when it is not there."""
    record = kept.read(kept.directory_of(name))
    if record is None:
        raise keeping.unknown(name)
    return record


def described(policy: Policy) -> dict[str, object]:
    """A policy for people to look at, without the values of variables: those may be secrets."""
    return {
        "preset": policy.preset,
        **{name: list(getattr(policy, name)) for name in ("read", "write", "deny", "sockets", "pass_env")},
        "env": sorted(policy.env),
        "network": policy.network.as_dict(),
        "limits": policy.limits.as_dict(),
    }
