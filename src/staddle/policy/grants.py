"""Reduce overlapping rules to an equivalent minimum, and guard protected names below them.

* A grant at or below a deny has no effect.
* A grant below another one that gives as much adds nothing.
* A deny hides something only below a grant.
* A private directory covers grants above it; grants below it are visible in it.
"""

from __future__ import annotations

from ..errors import PathEscape, PolicyError
from ..paths import Ancestry, above, covers
from .plan import Grant, Guard, Hidden, Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ..hostinfo.protected import ProtectedName
    from ..hostinfo.resolution import HostPaths


def strongest(grants: Iterable[Grant]) -> dict[str, Grant]:
    """Keep one grant for each path: write before read, then the first origin in alphabetical order."""
    best: dict[str, Grant] = {}
    for grant in grants:
        other = best.get(grant.path)
        if other is None or _rank(grant) < _rank(other):
            best[grant.path] = grant
    return best


def _rank(grant: Grant) -> tuple[bool, bool, str]:
    return grant.access != "write", grant.origin in ("system", "base"), grant.origin


def outermost(denies: Mapping[str, Hidden]) -> dict[str, Hidden]:
    """Return the denies that are not below another deny."""
    others = Ancestry(denies)
    return {path: deny for path, deny in denies.items() if others.above(path) is None}


def without_dead(
    grants: Mapping[str, Grant], denies: Mapping[str, Hidden]
) -> tuple[dict[str, Grant], list[Note]]:
    """Return the grants that no deny covers completely, and a note for each covered one."""
    live: dict[str, Grant] = {}
    notes = []
    denied = Ancestry(denies)
    for path, grant in grants.items():
        deny = denied.at_or_above(path)
        if deny is None:
            live[path] = grant
        elif grant.origin != "system":
            origin = denies[deny].origin
            notes.append(Note(f"{grant.access} {path!r} has no effect: {origin} wins", grant.origin))
    return live, notes


def without_covered(
    grants: Mapping[str, Grant], scratch: Collection[str]
) -> tuple[dict[str, Grant], dict[str, Grant], list[Note]]:
    """Return the grants that add something, the grants that do not, and notes about reads without effect."""
    kept: dict[str, Grant] = {}
    covered: dict[str, Grant] = {}
    notes = []
    boundaries = Ancestry({*grants, *scratch})
    decisive: dict[str, Grant] = {}  # the grant that decides about each path
    for path in sorted(grants, key=len):  # shortest first: a covering path is shorter
        grant = grants[path]
        above = decisive.get(boundaries.above(path) or "")
        if above is None or (above.access == "read" and grant.access == "write"):
            kept[path] = decisive[path] = grant
            continue
        covered[path], decisive[path] = grant, above
        if above.access != grant.access and grant.origin != "system":
            notes.append(
                Note(f"read {path!r} has no effect: {above.path!r} above it may be written", grant.origin)
            )
    return kept, covered, notes


class Visibility:
    """Finds the grant through which a path of the host is visible inside, ignoring denies."""

    def __init__(self, grants: Mapping[str, Grant], scratch: Collection[str]) -> None:
        self._grants = grants
        self._boundaries = Ancestry({*grants, *scratch})

    def through(self, path: str) -> Grant | None:
        """Return the innermost grant that shows `path`, or None."""
        return self._grants.get(self._boundaries.at_or_above(path) or "")


def hidden(denies: Mapping[str, Hidden], sight: Visibility, scratch: Collection[str]) -> dict[str, Hidden]:
    """Return the denies that hide something."""
    found = {path: deny for path, deny in denies.items() if sight.through(path) is not None}
    concealed = Ancestry(found)
    for place in scratch:
        deny = concealed.above(place)
        if deny is not None:
            raise PolicyError(
                f"{found[deny].origin} hides {deny!r}",
                why=f"the private directory {place!r} lies in it",
                fix="deny what lies beside it, or grant less above it",
            )
    return found


def guard(
    grants: Mapping[str, Grant],
    covered: Mapping[str, Grant],
    unseen: Collection[str],
    unprotect: Collection[str],
    host: HostPaths,
) -> tuple[dict[str, Guard], dict[str, Grant]]:
    """Return the guards below the write grants, and covered grants that are still needed.

    A write grant for a protected name, or for a path inside one, is intended, so it stays a separate grant.
    `unseen` are hidden and private paths.
    """
    guards: dict[str, Guard] = {}
    kept = dict(grants)
    meant = {path: grant for path, grant in {**covered, **grants}.items() if grant.access == "write"}
    roots = [path for path, grant in grants.items() if grant.access == "write" and grant.directory]
    if not roots:
        return {}, {}
    from ..hostinfo.protected import walk

    while roots:
        sight = Visibility(kept, unseen)
        for finding in walk(roots, unprotect=unprotect, skip=unseen):
            where = host.find(finding.path).path if finding.kind == "named" else finding.path
            if where in meant and not covers(where, finding.by):
                kept[where] = meant[where]
            elif (held := _held(finding, sight, host)) is not None:
                guards[held.path] = held
        inside = [path for path in meant if path not in kept and any(up in guards for up in above(path))]
        kept.update((path, meant[path]) for path in inside)
        roots = [path for path in inside if meant[path].directory]
    return _outermost(guards, kept), {path: grant for path, grant in kept.items() if path not in grants}


def _held(finding: ProtectedName, sight: Visibility, host: HostPaths) -> Guard | None:
    origin = f"protected {finding.name}"
    if finding.kind == "link":
        raise _replaceable(finding.path, finding.name)
    if finding.kind != "named":
        return Guard(finding.path, finding.kind == "directory", origin)
    place = host.find(finding.path)
    seen = sight.through(place.path)
    if place.kind not in ("directory", "file") or seen is None or seen.access != "write":
        return None
    for link, _ in place.links:
        through = sight.through(link)
        if through is not None and through.access == "write":
            raise _replaceable(link, finding.name)
    if covers(place.path, finding.by):
        raise PolicyError(
            f"{place.path!r} may be written, but git takes it for {finding.name}",
            why="a repository's configuration contains it",
            fix=f"change that, or use unprotect=[{finding.name!r}]",
        )
    return Guard(place.path, place.kind == "directory", origin)


def _replaceable(link: str, name: str) -> PathEscape:
    return PathEscape(
        f"{link!r} is a link, and points to the protected name {name}",
        why="its target could be protected, but the link itself could be replaced",
        fix=f"put the real thing there, or use unprotect=[{name!r}]",
    )


def _outermost(guards: Mapping[str, Guard], grants: Mapping[str, Grant]) -> dict[str, Guard]:
    """Remove guards that are below another guard."""
    kept = {}
    for path, item in guards.items():
        for place in above(path):
            if place in guards:
                break
            if place in grants:
                kept[path] = item
                break
        else:
            kept[path] = item
    return kept
