"""A workspace copied, where it cannot be shown in layers: the sandbox works in the copy, at whatever speed.

The same promises: the host's directory is not changed until a commit; diff, discard, snapshot,
restore and fork are there. Everything costs as much as there are files. The copy is by
reference where the file system can.

Layers show what the host has and what the sandbox changed; a copy only what it is. So of every
file it is remembered what it was when it was copied: one that is still that is no change, also
when the host has changed it, added it or deleted it since.
"""

from __future__ import annotations

import os
import stat
import threading

from ...errors import LayerError
from ...files.tree import LastDirectory, Tree, walk
from ...layers import removal
from ...layers.baseline import Baseline
from ...layers.condensing import condense
from ...layers.differences import Selection, differences
from ...layers.discarding import bring_back
from ...layers.exchanging import exchange
from ...layers.merged import Opened as OpenedView
from ...layers.merged import View
from ...layers.merging import copy_of, flatten
from ...layers.recovery import recover
from ...layers.scan import Watch
from ...layers.stack import Frozen, Stack
from ...layers.store import Store, home_for_copies, sweep
from ...policy.paths import covers
from ...policy.plan import COPY, Grant
from ...policy.workspace import PLACE, compile_session
from ...shell.shell_state import Remembered
from ...shell.state import Dump
from .layered_tree import by_tree
from .overlay import MOST_ENTRIES, Layering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ...layers.changes import Change
    from ...layers.differences import Difference
    from ...layers.store import Layer
    from ...policy import Policy
    from ...policy.plan import Plan


class OfCopy(Baseline):
    """What the host's files were when they were copied, and what the copies were then."""

    def outstanding(self, found: Iterable[Difference]) -> list[Difference]:
        """Those that the sandbox made: where it has touched nothing, only the host can have."""
        return [item for item in found if not self.is_as_settled(item)]


class Point(Frozen):
    """A copy that nobody works in. `unchanged` are the paths that are as the host had them: None for all."""

    plain = True

    def __init__(self, of: Copied, layer: Layer, unchanged: frozenset[str] | None) -> None:
        super().__init__(of.store, [of.workspace], (layer,))
        self._of, self._unchanged = of, unchanged
        #: Where it was seen.
        self.place = of.place

    def condensed(self, baseline: Baseline) -> Frozen:
        """The layer that it would have been, for an archive. `baseline` is what was known then."""
        view = View((self.layers[0].upper,), self.bases, True, self._of.hidden)
        layer = self.store.layer(like=self.bases[0]).hold()
        try:
            with OpenedView(view) as opened:
                found = [
                    item
                    for item in differences(opened)
                    if (
                        item.path not in (self._unchanged or ())
                        if item.new
                        else not baseline.is_as_settled(item)
                    )
                ]
            with OpenedView(view) as opened:
                condense(opened, found, layer.upper)
            return Frozen(self.store, self.bases, (layer,))
        finally:
            layer.drop()

    def stack(self) -> Copy:
        """The same again, to be put into the place that is worked in."""
        layer = self.store.layer().hold()
        try:
            copy_of(self.layers[0].upper, layer.upper, ours=True)
            return Copy(self._of, layer, self._unchanged)
        finally:
            layer.drop()

    def layering(self, baseline: Baseline) -> Copied:
        """A copy for another sandbox that goes on from here."""
        return Copied(self._of.workspace, self._of.hidden, self, baseline)


class Copy(Stack):
    """A copy that is worked in, or is about to be; see `Point`. `baseline` is what is known then."""

    def __init__(
        self, of: Copied, top: Layer, unchanged: frozenset[str] | None, baseline: Baseline | None = None
    ) -> None:
        super().__init__(of.store, [of.workspace], (), top)
        self._of, self.unchanged, self.baseline = of, unchanged, baseline

    def view(self) -> View:
        """What was changed, to be compared with the host's."""
        return View((self.top.upper,), self.bases, True, self._of.hidden)

    def copy(self) -> Point:
        """What is there now."""
        layer = self.store.layer().hold()
        try:
            copy_of(self.top.upper, layer.upper, ours=True)
            return Point(self._of, layer, self._of.untouched())
        finally:
            layer.drop()


class Copied(Layering):
    """The copy that one sandbox works in: what a `Layering` is where there are layers."""

    stack: Copy
    is_nobodys = stays = swaps = False

    def __init__(
        self,
        workspace: str,
        hidden: Collection[str] = (),
        point: Point | None = None,
        baseline: Baseline | None = None,
    ) -> None:
        """Copy `workspace` but for what is `hidden`; or begin where `point` was left, with its `baseline`."""
        self.workspace, self.hidden = workspace, tuple(hidden)
        self.store = _store(workspace) if point is None else point.store
        begun = self.fresh() if point is None else point.stack()
        begun._of = self
        self._start(workspace, begun, baseline or begun.baseline)
        self.seen_at(self.directory)

    @property
    def copy(self) -> str | None:
        """What is worked in."""
        return self.directory

    @property
    def directory(self) -> str:
        """The copy on the host."""
        return self.stack.top.upper

    def seen_at(self, place: str) -> None:
        """Changes are told by the path that is seen inside."""
        self.place = place
        self._watch = Watch(self.stack.view(), baseline=self.baseline, at=place, most=MOST_ENTRIES)

    def at_home(self, shell: Remembered, point: Frozen) -> Remembered:
        """What a shell remembered at `point`, with the directory that it was in as it is called here."""
        return renamed(shell, getattr(point, "place", self.place), self.place)

    @property
    def baseline(self) -> Baseline:
        """What the host had."""
        return self._baseline

    @baseline.setter
    def baseline(self, baseline: Baseline) -> None:
        self._baseline = baseline
        unchanged = self.stack.unchanged
        with Tree(self.directory, ours=True) as tree:
            for path, status in walk(tree):
                if unchanged is None or path in unchanged:
                    baseline.resettle(path, status)

    def untouched(self) -> frozenset[str]:
        """What is as the host had it."""
        with Tree(self.directory, ours=True) as tree:
            return frozenset(path for path, status in walk(tree) if self._baseline.is_settled(path, status))

    # ------------------------------------------------------------ copies

    def fresh(self) -> Copy:
        """The workspace as it is from now on."""
        baseline = OfCopy()
        layer = self.store.layer(like=self.workspace).hold()
        try:
            copy_of(self.workspace, layer.upper, without=Selection(self.hidden) if self.hidden else None)
            self._note(baseline, layer.upper, Selection(None))
            return Copy(self, layer, None, baseline)
        except PermissionError as error:
            raise LayerError(
                "the workspace cannot be copied",
                why=f"{error.filename!r} cannot be read",
                fix="deny it, let it be read, or use a backend that has layers",
            ) from None
        finally:
            layer.drop()

    def without(self, paths: Mapping[str, Collection[str]]) -> dict[str, Stack]:
        """The copy without the changes at and below the paths: there it is as the host is now."""
        chosen = Selection(paths[PLACE])
        if chosen.is_everything:
            return {PLACE: self.fresh()}
        layer = self.store.layer().hold()
        try:
            copy_of(self.directory, layer.upper, ours=True, without=chosen)
            bring_back(self.workspace, paths[PLACE], layer.upper, self.hidden)
            baseline = self._baseline.copy()
            baseline.forget(chosen)
            back = self._note(baseline, layer.upper, chosen)
            untouched = {path for path in self.untouched() if not chosen.has(path)}
            return {PLACE: Copy(self, layer, frozenset((*untouched, *back)), baseline)}
        finally:
            layer.drop()

    def _note(self, baseline: Baseline, copy: str, chosen: Selection) -> list[str]:
        """Keep what the host has where the copy has something now; where that is."""
        root = os.open(self.workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with Tree(copy, ours=True) as tree:
                found = [path for path, _ in walk(tree) if chosen.has(path)]
            baseline.note(root, found)
            return found
        finally:
            os.close(root)

    def flattened(self, point: Frozen) -> tuple[Point, Baseline]:
        """What the layers of `point` show over the workspace as it is now, as a copy; what is known of it."""
        baseline = OfCopy()
        layer = self.store.layer(like=self.workspace).hold()
        try:
            away = Selection(self.hidden) if self.hidden else None
            flatten([one.upper for one in point.layers], self.workspace, layer.upper, without=away)
            if point.store.owner is not None:  # who had the layers; a copy's are who has the workspace
                _give(layer.upper, point.store.owner[0], os.stat(self.workspace))
            there = set(self._note(baseline, layer.upper, Selection(None)))
            for one in point.layers:
                with Tree(one.upper, ours=True) as tree:
                    for path, status in walk(tree):
                        there.discard(path)
                        if stat.S_ISCHR(status.st_mode):  # a whiteout: it was there to be deleted
                            self._forgo(baseline, path)
            made = Point(self, layer, frozenset(there))
            made.place = PLACE  # where it is seen in layers
            return made, baseline
        finally:
            layer.drop()

    def _forgo(self, baseline: Baseline, path: str) -> None:
        """The sandbox has deleted what the host has at `path`, and below."""
        gone = [path]
        with Tree(self.workspace, ours=False) as tree:
            if (status := tree.status(path)) is not None and stat.S_ISDIR(status.st_mode):
                gone += [f"{path}/{below}" for below, _ in walk(tree, path)]
        baseline.expect(gone)

    def put(self, stacks: Mapping[str, Stack], *, alone: bool) -> bool:
        """Have in the copy what is in another one, while everything stands still."""
        with self.trees.stopped():
            exchange(self.directory, stacks[PLACE].top.upper)
        return True

    def replace(self, stacks: Mapping[str, Stack]) -> None:
        """What was put is what is worked in now; what was there before goes."""
        given = stacks[PLACE]
        if isinstance(given, Copy):
            self.stack.unchanged = given.unchanged
            self.baseline = given.baseline or self._baseline
        given.close()
        with self._watching:
            self._watch.follow(self.stack.view())

    # ------------------------------------------------------------ changes

    def diff(
        self, paths: Mapping[str, Collection[str]] | None = None, *, everything: bool = False
    ) -> list[Change]:
        """Every change by the sandbox, by the path that is seen inside. There is only the workspace."""
        from ...layers.changes import diff

        chosen = None if paths is None else paths[PLACE]
        return diff(self.stack.view(), chosen, at=self.place, baseline=self._baseline)

    def by_tree(self, paths: Collection[str], directory: str) -> dict[str, list[str]]:
        """Paths as they are seen inside, from `directory`; see `layered_tree`."""
        found = by_tree(paths, directory, {self.place: (self.place,)})
        return {PLACE: [path for several in found.values() for path in several]}


def _give(directory: str, uid: int, to: os.stat_result) -> None:
    """What belongs to `uid`, in a directory in which nobody works yet, gets another owner."""
    with Tree(directory, ours=True) as tree:
        found = [path for path, status in walk(tree) if status.st_uid == uid]
        last = LastDirectory(tree.root)
        for path in found:
            parent, _, name = path.rpartition("/")
            os.chown(name, to.st_uid, to.st_gid, dir_fd=last.at(parent), follow_symlinks=False)
        last.close()


def renamed(shell: Remembered, old: str, new: str) -> Remembered:
    """What a shell remembers, with another name of the directory that it works in."""
    if old == new:
        return shell
    before, after = os.fsencode(old), os.fsencode(new)
    dump = None
    if shell.dump is not None:
        pieces = shell.dump.pieces()
        dump = Dump.of_pieces({name: piece.replace(before, after) for name, piece in pieces.items()})
    return Remembered(dump, shell.status, shell.cwd.replace(before, after))


# ---------------------------------------------------------------- plans


def hidden(policy: Policy, workspace: str) -> tuple[str, ...]:
    """What is denied in a workspace, by paths below it: that is not even copied."""
    _, alone = compile_session(policy, workspace, access="read", moved=True)
    found = () if alone is None else alone.hidden
    return tuple(item.path[len(workspace) :].lstrip("/") for item in found if covers(workspace, item.path))


def shown(plan: Plan, copy: str, *, moved: bool) -> Plan:
    """The plan of a session with the copy in place of the workspace: there is nothing to protect in it."""
    place = PLACE if moved else copy
    ours = Grant(place, "write", True, COPY, copy if moved else "")
    grants = [grant for grant in plan.grants if not covers(place, grant.path)]
    return plan.replace(
        grants=tuple(sorted((*grants, ours), key=lambda grant: grant.path)),
        hidden=tuple(item for item in plan.hidden if not covers(place, item.path)),
        guards=tuple(item for item in plan.guards if not covers(place, item.path)),
        cwd=place,
    )


# ---------------------------------------------------------------- stores

_stores: dict[str, Store] = {}
_making = threading.Lock()


def _store(workspace: str) -> Store:
    home = home_for_copies(workspace, _can_be_shown)
    with _making:
        if home not in _stores:
            sweep(home)  # of processes of ours that were killed
            recover()
            owner = (os.geteuid(), os.getegid()) if os.geteuid() == 0 else None
            _stores[home] = Store(home, owner=owner)
        return _stores[home]


def _can_be_shown(place: str) -> bool:
    """Whether files there can be shown as somebody else's: root's sandbox is never root."""
    if os.geteuid() != 0 or not os.path.isdir(place):
        return os.path.isdir(place)
    from ...linux.idmaps import unused_ids_here
    from ...mounts.owners import untranslatable

    return not untranslatable(place, unused_ids_here()[0])


def close_stores() -> None:
    """Let the copies of all sandboxes of this process go, and wait for that."""
    while _stores:
        _stores.popitem()[1].close()
    removal.wait()


def _after_fork() -> None:
    """The stores are our parent's."""
    while _stores:
        _stores.popitem()[1].leave()


def _register() -> None:
    import atexit

    atexit.register(close_stores)
    os.register_at_fork(after_in_child=_after_fork)


_register()
