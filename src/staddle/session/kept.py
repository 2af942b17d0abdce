"""A sandbox's layers under a name, to go on with in another process: `Sandbox(keep="NAME")`.

The same layers that any sandbox has, on a store that stays. What runs in the sandbox ends with
it, and what a shell remembers goes; the workspace as it was left is there again.
"""

from __future__ import annotations

import os
import time

from ..errors import InvalidCall, LayerError
from ..layers import keeping, kept
from ..layers.baseline import Baseline
from ..layers.differences import differences
from ..layers.merged import Opened, View
from ..layers.stack import Frozen, Stack
from ..layers.tree import Tree
from ..zygote.client import mounter
from .layering import Layering, empty_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..layers.changes import Change
    from ..layers.commit import Committed
    from ..layers.kept import Record
    from ..layers.review import OnConflict, Review
    from ..policy import Policy

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
        self.points: dict[str, tuple[Frozen, float, Baseline]] = {}
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
                f"the session {record.name!r} is damaged",
                why=f"{error.filename!r}: {error.strerror}",
                fix=f"`staddle sessions rm {record.name}`",
            ) from None
        top, *frozen = (layers[name] for name in record.layers)
        self._start(place, Stack(self._store, [place], frozen, top), record.baseline)
        for point in record.points:
            held = Frozen(self._store, [place], [layers[name] for name in point.layers])
            self.points[point.label] = (held, point.created, point.baseline)

    # ------------------------------------------------------------ for a sandbox

    @property
    def stays(self) -> bool:
        """It is there for others after this process."""
        return True

    def prepare(self, policy: Policy) -> None:
        """Make everything ready to be mounted, for a sandbox with this policy."""
        owner = self._store.owner
        if not self.is_new:
            layers = {layer.path: layer for layer in (self.stack.top, *self.stack.frozen)}
            for held, _, _ in self.points.values():
                layers.update({layer.path: layer for layer in held.layers})
            settled = self._settled_paths()
            for layer in layers.values():
                keeping.prepare(layer, owner)
            for path in settled:
                if (status := self._in_the_layers(path)) is not None:
                    self.baseline.resettle(path, status)
            if owner is not None and self.is_nobodys:
                os.chown(self.workspace, *owner)
            self._begin_again()
            with self._watching:  # what was done to them just now is no change
                self._watch.follow(self.stack.view())
        self.record = self.record.replace(policy=described(policy))
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
            self.stack.close()
            for held, _, _ in self.points.values():
                held.close()
            self._store.end()

    def save(self) -> None:
        """Replace the record by what is true now."""
        points = tuple(
            kept.Point(label, created, _names(held.layers), baseline)
            for label, (held, created, baseline) in self.points.items()
        )
        self.record = self.record.replace(
            used=time.time(),
            layers=_names((self.stack.top, *self.stack.frozen)),
            baseline=self.baseline,
            points=points,
        )
        kept.write(self._store.home, self.record)
        self._store.recorded = self.record.every_layer

    # ------------------------------------------------------------ without a sandbox

    def review(self, paths: Collection[str] | None) -> Review:
        """What a commit would do, and what speaks against it."""
        from ..layers.review import review

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
            self.replace(self.fresh())
        return done

    def drop(self, paths: tuple[str, ...] | None = None) -> None:
        """Discard changes while no sandbox has it."""
        self.replace(self.fresh() if paths is None else self.without(paths))

    def snapshot(self, label: str) -> None:
        """Keep this moment under a label, while no sandbox has it."""
        try:
            kept.checked_label(label)
        except ValueError as error:
            raise InvalidCall(f"the label {label!r} cannot be used", why=str(error)) from None
        if label in self.points:
            raise InvalidCall(
                f"the session {self.record.name!r} has a snapshot {label!r} already",
                fix=f"choose another label, or delete it: staddle snapshot {self.record.name} --delete ...",
            )
        if self.stack.is_deep:
            self.stack.squash()
        untouched = self.stack.is_untouched()
        point = self.stack.below() if untouched else self.stack.freeze()
        self.points[label] = (point, time.time(), self.baseline.copy())
        if untouched:
            self.save()
        else:
            self.replace(point.stack())

    def restore(self, label: str) -> None:
        """Be as at that snapshot, while no sandbox has it."""
        point, _, baseline = self._point(label)
        following = point.stack()
        self._next = (following, baseline.with_commits_of(self.baseline))
        self.replace(following)

    def forget(self, label: str) -> None:
        """Delete a snapshot; layers that others need stay."""
        point = self._point(label)[0]
        del self.points[label]
        self.save()
        point.close()

    def _point(self, label: str) -> tuple[Frozen, float, Baseline]:
        if label not in self.points:
            known = ", ".join(map(repr, self.points)) or "it has none"
            raise InvalidCall(
                f"the session {self.record.name!r} has no snapshot {label!r}", why=f"there is: {known}"
            )
        return self.points[label]


def opened(name: str, workspace: str | None, policy: Policy) -> Kept:
    """The session `name` for a sandbox, made if it is not there."""
    made = Kept(name, make=True, workspace=workspace)
    try:
        if made.record.workspace != workspace:
            raise InvalidCall(
                f"the session {name!r} is of another workspace",
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


def changes(record: Record, paths: Collection[str] | None = None) -> list[Change]:
    """What a session has changed, also while somebody works in it."""
    from ..layers.changes import diff
    from ..policy.workspace import PLACE

    check_workspace(record)
    directory = f"{kept.directory_of(record.name)}/{kept.LAYERS}"
    base = record.workspace or f"{directory}/empty"
    view = View(tuple(f"{directory}/{name}/upper" for name in record.layers), (base,))
    try:
        return diff(view, paths, at=PLACE, baseline=record.baseline)
    except FileNotFoundError:
        raise LayerError(
            f"the layers of the session {record.name!r} are not there",
            why="whoever works in it has just put others in their place, or they were deleted",
            fix="try again",
        ) from None


def size(record: Record) -> int:
    """The bytes that its layers take."""
    from ..layers.store import usage

    directory = f"{kept.directory_of(record.name)}/{kept.LAYERS}"
    return sum(usage(f"{directory}/{name}/upper") for name in record.every_layer)


def check_workspace(record: Record) -> None:
    """LayerError when the directory that a session is of is not the one that is there now."""
    if record.workspace is None:
        return
    try:
        inode = os.stat(record.workspace).st_ino if os.path.isdir(record.workspace) else -1
    except OSError:
        inode = -1
    if inode != record.inode:
        what = "is not there" if inode == -1 else "is another directory than the one it was made for"
        raise LayerError(
            f"the session {record.name!r} has lost its workspace",
            why=f"{record.workspace!r} {what}",
            fix=f"put it back, or let the changes go: staddle sessions rm {record.name}",
        )


def described(policy: Policy) -> dict[str, object]:
    """A policy for people to look at, without the values of variables: those may be secrets."""
    return {
        "preset": policy.preset,
        **{name: list(getattr(policy, name)) for name in ("read", "write", "deny", "sockets", "pass_env")},
        "env": sorted(policy.env),
        "network": policy.network.as_dict(),
        "limits": policy.limits.as_dict(),
    }


def _names(layers: Collection[object]) -> tuple[str, ...]:
    return tuple(os.path.basename(getattr(layer, "path", "")) for layer in layers)
