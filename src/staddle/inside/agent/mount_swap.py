"""The trees of one sandbox that can be replaced while it runs: its workspace and other layered trees.

A tree is identified by the path of its root inside. Most trees are mounted there: the workspace, and
directories of the system once they become writable. The home tree, whose root is "/", is mounted in parts:
each of its places is one of its directories. A tree may be inside another. ROOT_TREE is the root that
contains all of them. The sandbox's first process runs this, with the right to mount.
"""

from __future__ import annotations

import errno
import os

from ...linux import mounts, overlay
from ...linux.openat2 import open_beneath
from ...linux.process import mount_id
from ...linux.syscalls import call
from ...mounts.builder import Builder
from ...mounts.operations import Bind
from ...mounts.shared_view import carried
from ...paths import ROOT_TREE, WORKSPACE_PATH
from ..child import live
from .root_swap import RootMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import TypeAlias

    from ...mounts.operations import Operation

    Swap: TypeAlias = Callable[[Collection[str], bool, Callable[[], Mapping[str, int]]], list[int]]

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
HOME_TREE = "/"
#: Names in our directory: the directory of numbered places where new trees are prepared, and where old trees
#: are moved; and an empty one, mounted over all of these.
_HOLDER, _ASIDE, _COVER = "holder", "aside", "cover"
#: With so many places in use, the old trees are unmounted before the next exchange.
_MOST_PLACES = 64
_COPIED = "/etc"


class TreeMounts:
    """The mounted trees of one sandbox. No process inside can open our directory `aside`.

    `places` are the mount points of the home tree; `operations` returns the operations of the view. `on_fork`
    is called when we start a short-lived process of our own.
    """

    def __init__(
        self,
        owner: int,
        aside: int = -1,
        places: Sequence[str] = (),
        operations: Callable[[], Sequence[Operation]] = tuple,
    ) -> None:
        self._owner, self._aside = owner, aside
        self._places, self._operations = tuple(places), operations
        self._statics: dict[str, dict[str, bool]] = {}
        self._workspace: Sequence[Operation] = ()
        self._also: tuple[str, ...] = ()  # further paths of the workspace
        self._root = RootMount()
        self._added: set[str] = set()  # roots other than the workspace's and the home tree's
        self._room = self._used = 0  # the number of places, and of those in use
        self._beneath_aside = -1  # the directory itself, under the mount there
        self._mounted_aside = -1  # root of the mount with the old trees, while there are any
        self._places_aside = -1  # the directory in that mount, under the cover
        self.on_fork: Callable[[], None] = lambda: None
        self._hiding: list[str] = []  # old trees in which a mount covers something

    def begin(self, aside: int) -> None:
        """Set the directory of a sandbox that did not exist yet."""
        self._aside = aside

    def mount(self, operations: Sequence[Operation], tree: int) -> None:
        """Mount `tree`, and close it, as the workspace, and carry out the other operations."""
        place = operations[0]
        if not isinstance(place, Bind):
            raise ValueError("a workspace starts with what is shown")
        self._also = tuple(
            each.path for each in operations if not f"{each.path}/".startswith(f"{place.path}/")
        )
        self._workspace = [each for each in operations if each.path not in self._also]
        if len(self._workspace) > 1:
            Builder.extending("/", owner=self._owner, taken={place: tree}).build(self._workspace)
        else:  # the usual case, without loading more code into every sandbox's memory
            _attach(tree, place.path)
            os.close(tree)
        for path in self._also:
            directory = os.open(place.path, _DIRECTORY)
            try:
                again = mounts.clone_tree(directory)
            finally:
                os.close(directory)
            try:
                _attach(again, path)
            finally:
                os.close(again)

    def swap(self, roots: Collection[str], alone: bool, come: Callable[[], Mapping[str, int]]) -> list[int]:
        """Replace the trees with these roots: all of them, or none.

        `come` is called for the new trees once everything is prepared. If a root is a directory of the
        system, its tree stays mounted there. With `alone`, raise EBUSY if a file in a tree is open for
        writing. The returned descriptors keep the old trees together. These stay mounted where no process
        inside can see them, until `tidy`.
        """
        if self._used >= _MOST_PLACES:
            self.tidy()
            if self._mounted_aside >= 0:
                raise OSError(errno.EBUSY, "the files of before cannot be taken away")
        shown = {path: root for root in roots if root != ROOT_TREE for path in self._shown_at(root)}
        old: dict[str, int] = {}
        closed: list[int] = []
        made: list[int] = []
        has_root = ROOT_TREE in roots
        try:
            for path in sorted({*shown, *self._within(shown, shown)}):
                try:
                    old[path] = os.open(path, _DIRECTORY)
                except FileNotFoundError:
                    if not any(_is_in(path, other) for other in shown):
                        raise  # otherwise it is part of an outer tree
            if alone:
                for path in (
                    path for path in shown if shown[path] in (WORKSPACE_PATH, HOME_TREE, *self._added)
                ):
                    mounts.set_attributes(old[path], mounts.ATTR_RDONLY, recursive=False)
                    closed.append(old[path])
                if has_root:
                    self._root.seal(closed, made)
            self._make_places_aside(len(old) + len(shown) + has_root)
            trees = come()
            if has_root:
                self._root.check(trees[ROOT_TREE], self._aside)
            self._exchange(self._parts(trees, shown, old, made), shown, old)
            if has_root:
                self._exchange_root(trees[ROOT_TREE], old)
        except BaseException:
            self.tidy()
            for fd in closed:
                mounts.clear_attributes(fd, mounts.ATTR_RDONLY)
            for fd in old.values():
                os.close(fd)
            raise
        finally:
            for fd in made:
                os.close(fd)
        self._added |= {*roots} - {WORKSPACE_PATH, HOME_TREE, ROOT_TREE}
        return list(old.values())

    def tidy(self) -> None:
        """Unmount the old trees. Slow: the kernel synchronizes with every processor."""
        if self._mounted_aside >= 0 and (not self._hiding or self._take_away_whole()):
            # Unmount the holder: if the cover were on the same place, umount2(2) would remove only the cover.
            mounts.umount(mounts.path_of(self._mounted_aside))
            for fd in filter(lambda fd: fd >= 0, (self._mounted_aside, self._places_aside)):
                os.close(fd)
            self._mounted_aside = self._places_aside = -1
            self._used = 0
            self._hiding.clear()

    def _take_away_whole(self) -> bool:
        """Unmount old trees together with the mounts in them. False: they stay mounted, covered.

        umount2(2) with MNT_DETACH separates every mount of a tree from its place. A payload that kept a
        directory of the tree open would then see files that a mask had hidden, and could write to read-only
        mounts. If the directory under the mount is removed instead, the kernel leaves the mounts connected. A
        process in whose mount namespace it is not mounted has to remove it (__detach_mounts, fs/namespace.c).
        """
        try:
            child = os.fork()
        except OSError:
            return False
        self.on_fork()
        if child == 0:
            live(self._remove_places, lambda _: 1)
        gone = os.waitpid(child, 0)[1] == 0
        there = os.listdir(mounts.path_of(self._beneath_aside))
        for name in {*self._hiding}.difference(there):
            os.mkdir(name, 0o700, dir_fd=self._beneath_aside)
        return gone

    def _remove_places(self) -> int:
        """Be the child of `_take_away_whole`."""
        os.fchdir(self._mounted_aside)
        call("unshare", mounts.CLONE_NEWNS)  # our directory is now in this namespace's copy of the mount
        mounts.umount(".")
        for name in self._hiding:
            os.rmdir(name, dir_fd=self._beneath_aside)
        return 0

    def _shown_at(self, root: str) -> tuple[str, ...]:
        if root == WORKSPACE_PATH and not self._workspace:
            raise OSError(errno.EINVAL, "this sandbox has no workspace")
        return self._places if root == HOME_TREE else (root, *(self._also if root == WORKSPACE_PATH else ()))

    def _within(self, paths: Collection[str], new: Collection[str] = ()) -> list[str]:
        """Return the paths in these trees at which other trees are mounted, outer paths first."""
        every = sorted({*self._places, *self._added, *self._also, *new})
        return [other for other in every if any(_is_in(other, path) for path in paths)]

    # ------------------------------------------------------------ making ready

    def _parts(
        self, trees: Mapping[str, int], shown: Mapping[str, str], old: Mapping[str, int], made: list[int]
    ) -> dict[str, int]:
        """Return the mount for each path, with all mounts inside it. Adds descriptors to close to `made`."""
        parts: dict[str, int] = {}
        attached: set[str] = set()
        for path in sorted(shown, reverse=True):  # inner trees before outer trees
            root = shown[path]
            tree = trees[root]
            inner, static = self._within([path], shown), self._static(path, old.get(path))
            if root == WORKSPACE_PATH and tree in parts.values():
                made.append(mounts.clone_tree(tree))
                parts[path] = made[-1]
            elif root == WORKSPACE_PATH:
                parts[path] = self._workspace_part(tree)
            elif path == root and not inner and not static:
                parts[path] = tree
            else:
                if root not in attached:
                    attached.add(root)
                    _attach(tree, self._place_aside(self._next_place()))
                part = open_beneath(tree, os.path.relpath(path, root), os.O_PATH | os.O_DIRECTORY)
                made.append(part)
                for below, needed in static.items():
                    if not any(_is_in(below, other) for other in inner):
                        _carry(old[path], part, below[len(path) + 1 :], needed)
                for below in inner:
                    if below in self._also:
                        _make_way(part, below[len(path) + 1 :], self._owner)
                    _mount_in(part, below[len(path) + 1 :], parts.get(below), old.get(below, -1))
                made.append(mounts.clone_tree(part))
                parts[path] = made[-1]
        return parts

    def _workspace_part(self, tree: int) -> int:
        below = [op.replace(path=op.path[len(WORKSPACE_PATH) :]) for op in self._workspace[1:]]
        if below:
            place = self._place_aside(self._next_place())
            _attach(tree, place)
            Builder.extending(place, owner=self._owner).build(below)
        return tree

    def _static(self, path: str, old: int | None) -> dict[str, bool]:
        """Return paths in the directory with mounts that belong to the view and stay.

        A tree over /etc already contains copies of the visible files, which can be changed like the rest.
        """
        if old is None:
            return {}
        if path not in self._statics:
            view = () if path in (WORKSPACE_PATH, *self._also) else self._operations()
            self._statics[path] = carried(view, path, copied=path == _COPIED)
        return self._statics[path]

    def _is_mounted(self, path: str, old: int) -> bool:
        """Whether `path`, open as `old`, is a mount point."""
        known = (WORKSPACE_PATH, *self._also, *self._places, *self._added)
        return path in known or _is_mount(old, path)

    # ------------------------------------------------------------ mounting

    def _exchange(self, parts: Mapping[str, int], shown: Collection[str], old: Mapping[str, int]) -> None:
        outermost = [path for path in shown if not any(_is_in(path, other) for other in shown)]
        there = [path for path in outermost if self._is_mounted(path, old[path])]
        covered: list[str] = []
        try:
            for path in outermost:
                if path not in there:
                    _attach(parts[path], path)
                    covered.append(path)
            overlay.exchange_together([(parts[path], path, self._aside_for(path, old)) for path in there])
        except BaseException:
            for path in covered:
                mounts.umount(path)
            raise
        for path in self._within(covered, shown):
            if path in old and path in (
                *self._places,
                *self._added,
                *self._also,
            ):  # it is visible in the new tree
                _attach(old[path], self._aside_for(path, old))

    def _exchange_root(self, tree: int, old: dict[str, int]) -> None:
        """Make `tree` the root; move the old root aside, and add it to `old`."""
        before, left = self._root.exchange(tree, self._aside)
        name = self._next_place()
        old["/"] = before
        if left:
            self._hiding.append(name)
        _attach(before, self._place_aside(name))

    def _aside_for(self, path: str, old: Mapping[str, int]) -> str:
        """Return the path to which the old tree at `path` is moved."""
        name = self._next_place()
        ours = path in (WORKSPACE_PATH, *self._also)
        hides = len(self._workspace) > 1 if ours else bool(self._static(path, old[path]))
        if hides:
            self._hiding.append(name)
        return self._place_aside(name)

    def _make_places_aside(self, count: int) -> None:
        """Make `count` more places in a directory of ours, mounted so that all can be unmounted at once.

        A cover hides them. A payload that kept a directory open could otherwise walk up with ".." to the
        place where it is mounted now. It would find the new trees mounted once more and writable, even if a
        snapshot has frozen their layers.
        """
        if self._beneath_aside < 0:
            for path in (_HOLDER, f"{_HOLDER}/{_ASIDE}"):
                os.mkdir(path, 0o700, dir_fd=self._aside)
            os.mkdir(_COVER, 0, dir_fd=self._aside)
            self._beneath_aside = os.open(f"{_HOLDER}/{_ASIDE}", _DIRECTORY, dir_fd=self._aside)
        while self._room < self._used + count:
            os.mkdir(str(self._room), 0o700, dir_fd=self._beneath_aside)
            self._room += 1
        if self._mounted_aside < 0:
            self._mounted_aside = self._mount_read_only(_HOLDER)
            self._places_aside = os.open(_ASIDE, _DIRECTORY, dir_fd=self._mounted_aside)
            os.close(self._mount_read_only(_COVER, self._places_aside))

    def _mount_read_only(self, name: str, over: int = -1) -> int:
        """Mount a directory of ours over `over` (default: itself).

        It is read-only, because payloads can reach its root past the cover.
        """
        directory = os.open(name, _DIRECTORY, dir_fd=self._aside)
        try:
            tree = mounts.clone_tree(directory)
            try:
                mounts.set_attributes(tree, mounts.ATTR_RDONLY)
                mounts.attach(tree, directory if over < 0 else over)
            except BaseException:
                os.close(tree)
                raise
            return tree
        finally:
            os.close(directory)

    def _next_place(self) -> str:
        self._used += 1
        return str(self._used - 1)

    def _place_aside(self, name: str) -> str:
        return f"{mounts.path_of(self._places_aside)}/{name}"


def show(tree: int, places: Sequence[str], aside: str) -> None:
    """Mount the directories of a home tree at their places for the first time.

    The whole tree is then mounted at `aside`, from where the caller unmounts everything at once.
    """
    _attach(tree, aside)
    for path in places:
        part = open_beneath(tree, path[1:], os.O_PATH | os.O_DIRECTORY)
        try:
            shown = mounts.clone_tree(part)
        finally:
            os.close(part)
        try:
            _attach(shown, path)
        finally:
            os.close(shown)


def _attach(tree: int, path: str) -> None:
    target = os.open(path, _DIRECTORY)
    try:
        mounts.attach(tree, target)
    finally:
        os.close(target)


def _carry(old: int, new: int, path: str, needed: bool) -> None:
    """Mount in `new` what is mounted in `old`, at the same path below both."""
    try:
        source = open_beneath(old, path, os.O_PATH)
    except FileNotFoundError:
        return  # it was optional, and is missing
    try:
        _mount_in(new, path, None, source)
    except FileNotFoundError:
        if needed:
            raise
    finally:
        os.close(source)


def _make_way(directory: int, path: str, owner: int) -> None:
    """Create the directories on the way to a mount point, if a process inside has moved them away."""
    names = path.split("/")
    for count in range(1, len(names) + 1):
        above = open_beneath(directory, "/".join(names[: count - 1]) or ".", _DIRECTORY)
        try:
            os.mkdir(names[count - 1], 0o755, dir_fd=above)
            os.chown(names[count - 1], owner, owner, dir_fd=above, follow_symlinks=False)
        except FileExistsError:
            pass
        finally:
            os.close(above)


def _mount_in(directory: int, path: str, tree: int | None, source: int) -> None:
    """Mount `tree`, or the tree at `source`, at a path in a directory."""
    opened: list[int] = []
    try:
        opened.append(open_beneath(directory, path, os.O_PATH))
        if tree is None:
            opened.append(mounts.clone_tree(source))
        mounts.attach(opened[1] if tree is None else tree, opened[0])
    finally:
        for fd in opened:
            os.close(fd)


def _is_in(path: str, directory: str) -> bool:
    return path.startswith(f"{directory}/")


def _is_mount(opened: int, path: str) -> bool:
    """Whether `opened`, which was found at `path`, is the root of a mount."""
    above = os.open(os.path.dirname(path), _DIRECTORY)
    try:
        return mount_id(opened) != mount_id(above)
    finally:
        os.close(above)
