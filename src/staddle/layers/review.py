"""Review a commit before it is made: its steps, and the objections to it. Writes nothing.

Symbolic links are resolved in the tree as it will be after the commit (`LinkTargets`), from the layers and
the bases. No link is followed on the host. A sandbox chooses the targets of its links, so a chain of them has
the same limit as in the kernel.
"""

from __future__ import annotations

import os
import stat
from functools import partial

from .. import places
from .._value import Value
from ..errors import CommitRefused, InvalidCall, LayerError, PolicyError
from ..files.globs import Glob
from ..hostinfo.protected import (
    GIT,
    UNFINISHED,
    begins_protected,
    can_be_protected,
    folded,
    is_alias,
    pointer_name,
    protected_name,
)
from ..interrupts import interruptible
from ..paths import WORKSPACE_PATH, covers
from .baseline import Baseline
from .changes import change_of, in_order, with_renames
from .differences import Difference, Selection, differences
from .fingerprint import Fingerprint, digest_of, facts_of, fingerprints
from .frozen_base import signatures
from .merged_view import OpenLayers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Literal, Protocol, TypedDict, TypeVar, Unpack

    from .baseline import Copied
    from .changes import Change

    Answer = Literal["overwrite", "keep", "refuse"]
    OnConflict = Literal["refuse", "overwrite"] | Callable[["Conflict"], Answer]
    Choice = Callable[[OpenLayers, Sequence[Difference]], Iterable[Difference]]
    Shown = TypeVar("Shown", Difference, "Conflict", "NeedsApproval")

    class ReadableTree(Protocol):
        """A tree in which names are looked up: the `Tree` of a layer, or a tree object of git."""

        def status(self, path: str) -> os.stat_result | None: ...
        def names(self, path: str) -> Sequence[str]: ...
        def link_target(self, path: str) -> str: ...

    class MergedTrees(Protocol):
        """Trees, topmost first, as `OpenLayers` has them."""

        @property
        def layers(self) -> Sequence[ReadableTree]: ...
        @property
        def bases(self) -> Sequence[ReadableTree]: ...
        def give_back(self) -> None: ...

    class ApprovalOptions(TypedDict, total=False):
        """The options of a commit of a sandbox; see `commit`."""

        on_conflict: OnConflict
        allow_protected: bool
        allow: Collection[str]
        progress: Callable[[int, int], object] | None


#: The kernel gives up on a path with more links than this (path_resolution(7)).
_MOST_LINKS = 40


class LinkTargets:
    """Reads links in the merged tree of a view, each once."""

    def __init__(self, opened: MergedTrees) -> None:
        self._opened = opened
        self._targets: dict[str, str | None] = {}

    def target(self, path: str) -> str | None:
        """Return the target of the link at `path`; None if there is no link."""
        if path not in self._targets:
            self._targets[path] = self._read(path)
        return self._targets[path]

    def resolve(self, path: str) -> str | None:
        """Resolve `path` relative to the tree; None if it leads out of it."""
        todo, links = path.split("/")[::-1], 0
        done: list[str] = []
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                continue
            done.append(part)
            target = self.target("/".join(done))
            if target is None:
                continue
            links += 1
            if target.startswith("/") or links > _MOST_LINKS:
                return None
            done.pop()
            todo.extend(target.split("/")[::-1])
        return "/".join(done)

    def _read(self, path: str) -> str | None:
        for tree in (*self._opened.layers, *self._opened.bases):
            found = tree.status(path)
            if found is None:
                continue
            if not stat.S_ISLNK(found.st_mode):
                return None
            try:
                return tree.link_target(path)
            except OSError:
                return None  # replaced meanwhile
            finally:
                self._opened.give_back()
        return None


#: Files that git obeys in a repository, and entries by which it recognizes one.
_GIT_FILES = frozenset(name.removeprefix(".git/") for name in GIT)
_GIT_MARKS = frozenset(("head", "objects", "refs", "commondir"))
#: The kinds of change that put a new entry at a path, including `renamed` and `type`.
_BRINGING = frozenset(("added", "renamed", "type", "link"))


class Conflict(Value):
    """A path that was changed on both sides."""

    path: str
    kind: str
    why: str


class NeedsApproval(Value):
    """A change that needs approval: it can make a program outside the sandbox run something."""

    path: str
    kind: str
    why: str


class Committed(Value):
    """Result of a commit: the committed changes, paths that the host kept, and paths that are no files.

    `unused` are names in `allow` that matched no held change.
    """

    changes: tuple[Change, ...]
    kept: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


class Review(Value):
    """The changes that a commit would make, as they were at one moment.

    `changes` are those of `diff`, in order; their `text_diff` shows content only while it is the reviewed
    content. `conflicts` were changed on the host too, and `held` changes need approval. `refused` changes are
    never allowed, because staddle itself trusts these files. Each has its reason. `left_out` are no files.
    Paths in these four are below the workspace. `digest` identifies the review: two reviews that differ
    anywhere, even in content, have different digests.
    """

    taken: tuple[Difference, ...]
    left_out: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    held: tuple[NeedsApproval, ...]
    refused: tuple[NeedsApproval, ...] = ()
    changes: tuple[Change, ...] = ()
    #: The fingerprint of each change, by path; None for a review to which no commit is bound.
    seen: dict[str, Fingerprint] | None = None
    #: The requested paths (None: all).
    paths: tuple[str, ...] | None = None

    @property
    def digest(self) -> str:
        """A short text that differs if anything in the review differs."""
        found = sorted((path, each.facts, each.content) for path, each in (self.seen or {}).items())
        more = [each.as_dict() for each in (*self.conflicts, *self.held, *self.refused)]
        return digest_of(repr((found, more, self.left_out)).encode("utf-8", "surrogateescape"))

    @property
    def root(self) -> str:
        """The path inside of the workspace, below which are the other paths."""
        if not self.taken or not self.changes:
            return "/workspace"
        return self.changes[0].path[: -len(self.taken[0].path)].rstrip("/")

    def commit(self, paths: Collection[str] | None = None, **options: Unpack[ApprovalOptions]) -> Committed:
        """Write exactly the reviewed changes, or those at and below `paths`, to the host.

        CommitRefused lists the changes that differ since, inside or on the host, and nothing is written.
        Later changes stay in the sandbox. The options are those of `Sandbox.commit`.
        """
        commit: Callable[..., Committed] | None = self.__dict__.get("_commit")
        if commit is None:
            raise LayerError(
                "this review cannot be committed",
                why="it does not belong to an open sandbox",
                fix="use Sandbox.review()",
            )
        return commit(paths, review=self, **options)

    def __repr__(self) -> str:
        counts = [f"{len(self.changes)} changes"]
        for name in ("conflicts", "held", "refused", "left_out"):
            if getattr(self, name):
                counts.append(f"{len(getattr(self, name))} {name}")
        return f"<Review {self.digest[:12]}: {', '.join(counts)}>"

    def still(self, found: Review, selection: Selection, *, all_of_it: bool) -> Review:
        """Return `found`, a later review of the same paths, without new changes; CommitRefused if it differs.

        The content is not compared here, but after it has been copied (`SlotDigests`).
        """
        seen = self.seen or {}
        now = {item.path: facts_of(item) for item in found.taken}
        asked = [path for path in seen if all_of_it or selection.has(path)]
        changed = {
            path: "it changed since the review"
            for path, facts in now.items()
            if path in seen and seen[path].facts != facts
        }
        changed |= {path: "it was changed back since the review" for path in asked if path not in now}
        if not all_of_it:
            changed |= {path: "it was not in the review" for path in now if path not in seen}
        if changed:
            raise changed_since(changed)

        def kept(items: tuple[Shown, ...]) -> tuple[Shown, ...]:
            return tuple(item for item in items if item.path in seen)

        return found.replace(
            taken=kept(found.taken),
            conflicts=kept(found.conflicts),
            held=kept(found.held),
            refused=kept(found.refused),
        )


def changed_since(changed: Mapping[str, str]) -> CommitRefused:
    """Return the error for changes that differ from the review: `changed` has the reason by path."""
    items = tuple(Conflict(path, "modified", why) for path, why in sorted(changed.items()))
    return CommitRefused(
        f"{_count(items)} changed since the review",
        why=_listed(items),
        fix="nothing was written; review them again",
        conflicts=items,
    )


def review(
    opened: OpenLayers,
    paths: Collection[str] | None,
    baseline: Baseline | None,
    only: Choice | None = None,
    *,
    at: str | None = None,
) -> Review:
    """Review every change at and below `paths`, against the present host.

    `only` chooses among the changes one by one instead, and is responsible for missing parents. With `at`,
    the path of the tree inside, the review has `changes` and fingerprints, and a commit can be bound to it.
    """
    selection = Selection(paths)
    everything = list(differences(opened, Selection(None)))
    names = {item.path for item in everything}
    if opened.view.began_with:
        changed = _changed(opened)
        everything = [item for item in everything if item.path in changed or not _is_as_before(item)]
        names |= changed
    missing = selection.missing(names)
    if missing:
        raise InvalidCall(
            f"there is no change at {missing[0]!r}",
            why="it is not in the change list",
            fix="name paths as diff() does, relative to the workspace",
        )
    outstanding = baseline.outstanding(everything) if baseline is not None else everything
    if only is not None:
        chosen = in_order(only(opened, outstanding))
    else:
        listed = in_order(with_renames(opened, outstanding))
        chosen = _with_the_way([item for item in listed if _is_chosen(selection, item)], listed)
    taken, left_out = _only_files(chosen)
    found = Review(
        tuple(taken),
        tuple(left_out),
        _conflicts(taken, baseline, signatures(opened.view.began_with)),
        tuple(held_changes(opened, taken)),
        tuple(_own(opened, taken)),
        paths=None if paths is None else tuple(paths),
    )
    return found if at is None else _with_fingerprints(opened, found, at)


def _with_fingerprints(opened: OpenLayers, found: Review, at: str) -> Review:
    seen = fingerprints(opened, found.taken)
    conflicts = {item.path: item.why for item in found.conflicts}
    changes = []
    for item in found.taken:
        change = change_of(opened, item, at, conflicts.get(item.path, ""))
        if item.new is not None and stat.S_ISREG(item.new.st_mode):
            change._set("_reviewed", seen[item.path].content)
        changes.append(change)
    return found.replace(changes=tuple(changes), seen=seen)


def _own(opened: OpenLayers, found: Iterable[Difference]) -> Iterable[NeedsApproval]:
    """Yield changes at or below staddle's own places, and of directories above that would redirect them."""
    top = os.path.realpath(opened.bases[0].path) if opened.bases else "/"
    known = places.within(top)
    for item in found if known else ():
        paths = [f"{top.rstrip('/')}/{path}" for path in (item.path, item.old_path) if path]
        stays = item.new is not None and stat.S_ISDIR(item.new.st_mode) and not item.old_path
        for place in known:
            if any(covers(place, path) or (covers(path, place) and not stays) for path in paths):
                yield NeedsApproval(item.path, item.kind, f"{place} is staddle's own, and trusted later")
                break


def _changed(opened: OpenLayers) -> set[str]:
    """Return the paths at which the layers differ from the trees they were written over."""
    with OpenLayers(opened.view.replace(bases=opened.view.began_with, began_with=())) as began:
        return {item.path for item in differences(began)}


def _is_as_before(item: Difference) -> bool:
    """Whether an entry that the layers have not changed can stay as the host has it.

    Not an entry in a deleted directory, and not a directory that others need.
    """
    return item.new is not None and (item.old is not None or not stat.S_ISDIR(item.new.st_mode))


def _is_chosen(selection: Selection, item: Difference) -> bool:
    return selection.has(item.path) or bool(item.old_path and selection.has(item.old_path))


def _with_the_way(chosen: list[Difference], listed: list[Difference]) -> list[Difference]:
    """Return the chosen differences, with the new directories that they need."""
    if len(chosen) == len(listed):
        return chosen
    there = {item.path for item in chosen}
    for item in chosen:
        if item.new is not None:
            parts = item.path.split("/")
            there.update("/".join(parts[:count]) for count in range(1, len(parts)))
    kept = set(map(id, chosen))
    return [
        item
        for item in listed
        if id(item) in kept
        or (item.path in there and item.new is not None and item.kind in ("added", "type"))
    ]


class Allowed:
    """Names of held changes that are allowed this once: paths as reported, or globs of them."""

    def __init__(self, names: Collection[str] = ()) -> None:
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise InvalidCall(
                f"allow is {names!r}", why="it is not a list of names", fix="use allow=['NAME']"
            )
        #: Whether each name has matched so far.
        self._used = dict.fromkeys(names, False)
        self._globs = {name: _glob(name.removeprefix(f"{WORKSPACE_PATH}/")) for name in self._used}

    def has(self, path: str) -> bool:
        """Whether one of the names is `path`, or a glob that matches it."""
        found = False
        for name, glob in self._globs.items():
            if path == name.removeprefix(f"{WORKSPACE_PATH}/").rstrip("/") or (glob and glob.matches(path)):
                self._used[name] = found = True
        return found

    @property
    def unused(self) -> tuple[str, ...]:
        """Return the names that have matched nothing."""
        return tuple(name for name, used in self._used.items() if not used)


def _glob(text: str) -> Glob | None:
    try:
        return Glob(text)
    except PolicyError:
        return None  # then it is a literal path


def decided(
    found: Review, on_conflict: OnConflict, allow_protected: bool, allow: Allowed | None = None
) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """Return (differences to commit, paths the host keeps), or raise CommitRefused with all objections.

    Among held changes, `allow` permits those that it names, and `allow_protected` all.
    """
    allow = allow or Allowed()
    refused, kept = [], []
    for conflict in found.conflicts:
        ask = on_conflict
        answer = ask if isinstance(ask, str) else interruptible(partial(ask, conflict))
        if answer == "keep":
            kept.append(conflict.path)
        elif answer == "refuse":
            refused.append(conflict)
        elif answer != "overwrite":
            raise InvalidCall(
                f"on_conflict returned {answer!r}",
                fix="use 'overwrite', 'keep' or 'refuse' for each conflict",
                why="there is no such answer",
            )
    if found.refused:
        raise CommitRefused(
            f"{_count(found.refused)} cannot be committed",
            why=_listed(found.refused),
            fix="leave them out with paths=, or discard them",
            held=found.refused,
        )
    # Check all of them, so that unused names are known.
    held = tuple(item for item in found.held if not allow.has(item.path) and not allow_protected)
    if refused:
        raise CommitRefused(
            f"the host changed {_count(refused)} that the sandbox changed too",
            why=_listed(refused),
            fix="review them; on_conflict='overwrite' takes the sandbox's, a function decides one by one",
            conflicts=tuple(refused),
            held=held,
        )
    if held:
        raise CommitRefused(
            f"{_count(held)} would need a second look",
            why=_listed(held) + _unknown(allow.unused),
            fix=f"review them; allow=[{held[0].path!r}, ...] commits those that it names, "
            "allow_protected=True all, paths= leaves them out",
            held=held,
        )
    return _without(found.taken, kept), tuple(kept)


def _only_files(found: Iterable[Difference]) -> tuple[list[Difference], list[str]]:
    """Split off devices, pipes and sockets, which are left out; what they replaced stays."""
    taken: list[Difference] = []
    left_out: list[str] = []
    covered: str | None = None
    for item in found:
        if covered is not None and item.path.startswith(covered):
            continue
        covered = None
        if item.new is None or stat.S_IFMT(item.new.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            taken.append(item)
        else:
            left_out.append(item.path)
            covered = f"{item.path}/"
    return taken, left_out


def _conflicts(
    found: Iterable[Difference], baseline: Baseline | None, copied: Copied | None
) -> tuple[Conflict, ...]:
    if baseline is None:
        return ()
    conflicts: list[Conflict] = []
    for item in found:
        conflicts += [Conflict(path, item.kind, why) for path, why in baseline.conflicts(item, copied)]
    return tuple(conflicts)


def held_changes(opened: MergedTrees, found: Iterable[Difference]) -> Iterable[NeedsApproval]:
    """Yield the changes that need approval: protected names, links out of the tree, new executables."""
    names = Names(opened)
    for item in found:
        name = names.protected(item.path, item) or (item.old_path and names.protected(item.old_path, item))
        if name in UNFINISHED and item.new is None:
            continue  # a rebase that was finished or aborted
        if name:
            yield NeedsApproval(item.path, item.kind, f"{name} is a protected name")
        elif target := names.leads_out(item):
            yield NeedsApproval(
                item.path, item.kind, f"it is a link that points out of the tree, to {target!r}"
            )
        elif _can_be_run(item.new) and not _can_be_run(item.old):
            yield NeedsApproval(item.path, item.kind, "it is a new executable")


def _can_be_run(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)


class Names:
    """Lookup of protected paths. Each directory is checked once."""

    def __init__(self, opened: MergedTrees) -> None:
        self._opened = opened
        self._links = LinkTargets(opened)
        self._directories: dict[str, str | None] = {}
        self._repositories: dict[str, bool] = {}
        self._aliases: dict[str, tuple[tuple[str, str], ...]] = {}

    def protected(self, path: str, item: Difference) -> str | None:
        """Return the protected name that `path` is, or is below."""
        directory, _, name = path.rpartition("/")
        status = item.new or item.old
        low = folded(name)
        can_be = can_be_protected(low)
        pointer = pointer_name(path) if can_be else None
        if pointer and not (status and stat.S_ISDIR(status.st_mode)):
            return pointer  # the pointer of a worktree, or a link to another repository
        if low in _GIT_MARKS and item.kind in _BRINGING and self._is_repository(directory):
            return ".git"  # harmless files there are obeyed by git from now on
        is_link = item.new is not None and stat.S_ISLNK(item.new.st_mode)
        if is_link and (begun := begins_protected(f"/{path}")):
            return begun  # the link's target gets the protected name too
        itself = self._itself(path) if can_be else None
        return self._below(directory) or itself or self._through_a_link(path)

    def leads_out(self, item: Difference) -> str:
        """Return the target of a new or changed link that leaves the tree; else empty."""
        if item.new is None or not stat.S_ISLNK(item.new.st_mode) or item.kind not in _BRINGING:
            return ""
        return "" if self._links.resolve(item.path) is not None else self._links.target(item.path) or "?"

    def _through_a_link(self, path: str) -> str | None:
        """Return the protected name by which a link of the host's own tree leads to `path`."""
        for target, alias in self._aliases_above(path.rpartition("/")[0]):
            if path != target and not path.startswith(f"{target}/"):
                continue
            parts = f"{alias}{path[len(target) :]}".split("/")
            for count in range(1, len(parts) + 1):
                if name := protected_name("/" + "/".join(parts[:count])):
                    return name
        return None

    def _aliases_above(self, directory: str) -> tuple[tuple[str, str], ...]:
        """Return links with protected names in `directory` and above it, as (target, name).

        Only of the host's tree: such a link from the sandbox is itself held.
        """
        missing = []
        while directory not in self._aliases:
            missing.append(directory)
            if not directory:
                break
            directory = directory.rpartition("/")[0]
        found = self._aliases.get(directory, ())
        for directory in reversed(missing):
            for tree in self._opened.bases:
                for name in filter(is_alias, tree.names(directory)):
                    path = f"{directory}/{name}" if directory else name
                    target = self._links.resolve(path) if self._links.target(path) is not None else None
                    if target:
                        found = (*found, (target, name))
            self._aliases[directory] = found
        return found

    def _below(self, directory: str) -> str | None:
        missing = []
        while directory and directory not in self._directories:
            missing.append(directory)
            directory = directory.rpartition("/")[0]
        above = self._directories.get(directory)
        for directory in reversed(missing):
            above = self._directories[directory] = above or self._itself(directory)
        return above

    def _itself(self, path: str) -> str | None:
        last = path.rpartition("/")[2]
        if not can_be_protected(folded(last)):
            return None
        name = protected_name(f"/{path}")
        if name:
            return name
        # In a bare repository, or the directory of a submodule or worktree, they are at the top.
        parts = path.split("/")
        for count in (1, 2):
            inner = folded("/".join(parts[-count:]))
            if inner in _GIT_FILES and self._is_repository("/".join(parts[:-count])):
                return f".git/{inner}"
        return None

    def _is_repository(self, path: str) -> bool:
        """Whether git would recognize it as a repository, with the entries of all trees together."""
        if path not in self._repositories:
            trees = (*self._opened.layers, *self._opened.bases)

            def has(name: str) -> bool:
                place = f"{path}/{name}" if path else name
                return any(tree.status(place) is not None for tree in trees)

            self._repositories[path] = has("HEAD") and (has("commondir") or (has("objects") and has("refs")))
            self._opened.give_back()
        return self._repositories[path]


def _without(found: tuple[Difference, ...], kept: list[str]) -> tuple[Difference, ...]:
    """Return all differences except the kept paths, and those that would touch them."""
    if not kept:
        return found
    away = set(kept)
    for path in kept:
        parts = path.split("/")
        away.update("/".join(parts[:count]) for count in range(1, len(parts)))
    gone = {
        item.path
        for item in found
        if item.path in away and (item.path in kept or item.new is None or item.kind == "type")
    } | set(kept)

    def stays(item: Difference) -> bool:
        if item.path in gone or item.old_path in gone:
            return False
        # A new entry below a path that stays unchanged has no place.
        return item.new is None or not any(item.path.startswith(f"{path}/") for path in gone)

    return tuple(item for item in found if stays(item))


def _unknown(names: tuple[str, ...]) -> str:
    from ..display import shown

    several = ", ".join(repr(shown(name)) for name in names[:10])
    return f"; not among them is what allow= names: {several}" if names else ""


def _count(items: Collection[object]) -> str:
    return "one path" if len(items) == 1 else f"{len(items)} paths"


def _listed(items: Iterable[Conflict | NeedsApproval]) -> str:
    from ..display import shown

    several = [f"{shown(item.path)}: {item.why}" for item in items]
    more = f", and {len(several) - 10} more" if len(several) > 10 else ""
    return ", ".join(several[:10]) + more
