"""Overlapping and contradictory rules become a few that say the same. Pure: no disk, no kernel.

* A grant at or below a deny is dead.
* A grant below another one that gives as much adds nothing.
* A deny hides something only if it lies below a grant.
* A private directory covers what is granted above it; what is granted below it shows through.
"""

from __future__ import annotations

from ..errors import PolicyError
from .paths import Ancestry
from .plan import Grant, Hidden, Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


def strongest(grants: Iterable[Grant]) -> dict[str, Grant]:
    """One grant for each path: write before read, then the first origin in alphabetical order."""
    best: dict[str, Grant] = {}
    for grant in grants:
        other = best.get(grant.path)
        if other is None or _rank(grant) < _rank(other):
            best[grant.path] = grant
    return best


def _rank(grant: Grant) -> tuple[bool, bool, str]:
    return grant.access != "write", grant.origin in ("system", "base"), grant.origin


def outermost(denies: Mapping[str, Hidden]) -> dict[str, Hidden]:
    """The denies that do not lie below another one."""
    others = Ancestry(denies)
    return {path: deny for path, deny in denies.items() if others.above(path) is None}


def without_dead(
    grants: Mapping[str, Grant], denies: Mapping[str, Hidden]
) -> tuple[dict[str, Grant], list[Note]]:
    """The grants that no deny removes as a whole, and a note for each removed one that would be missed."""
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
    """(the grants that add something, those that do not, notes about reads that do not)."""
    kept: dict[str, Grant] = {}
    covered: dict[str, Grant] = {}
    notes = []
    boundaries = Ancestry({*grants, *scratch})
    decisive: dict[str, Grant] = {}  # the grant that decides what may be done at each path
    for path in sorted(grants, key=len):  # what covers a path is shorter, so it is decided already
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
    """Through which grant a path of the host can be seen inside, deny rules aside."""

    def __init__(self, grants: Mapping[str, Grant], scratch: Collection[str]) -> None:
        self._grants = grants
        self._boundaries = Ancestry({*grants, *scratch})

    def through(self, path: str) -> Grant | None:
        """The innermost grant that shows `path`; None if nothing does."""
        return self._grants.get(self._boundaries.at_or_above(path) or "")


def hidden(denies: Mapping[str, Hidden], sight: Visibility, scratch: Collection[str]) -> dict[str, Hidden]:
    """The denies that have something to hide."""
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
