"""Which protected names a plan guards."""

from __future__ import annotations

from ..errors import PathEscape, PolicyError
from .merge_grants import Visibility
from .paths import above, covers
from .plan import Grant, Guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .protected import ProtectedName
    from .resolution import HostPaths


def guard(
    grants: Mapping[str, Grant],
    covered: Mapping[str, Grant],
    unseen: Collection[str],
    unprotect: Collection[str],
    host: HostPaths,
) -> tuple[dict[str, Guard], dict[str, Grant]]:
    """(what is guarded below the write grants, covered grants that are needed after all).

    A write grant for a protected name, or for something inside one, was meant: it stays a
    grant of its own. `unseen` are hidden and private paths.
    """
    guards: dict[str, Guard] = {}
    kept = dict(grants)
    meant = {path: grant for path, grant in {**covered, **grants}.items() if grant.access == "write"}
    roots = [path for path, grant in grants.items() if grant.access == "write" and grant.directory]
    if not roots:
        return {}, {}
    from .protected import walk

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
            why="a repository's configuration says so",
            fix=f"change that, or say unprotect=[{finding.name!r}]",
        )
    return Guard(place.path, place.kind == "directory", origin)


def _replaceable(link: str, name: str) -> PathEscape:
    return PathEscape(
        f"{link!r} is a link, and leads to the protected name {name}",
        why="what it leads to could be held, but the link itself could be replaced",
        fix=f"put the real thing there, or say unprotect=[{name!r}]",
    )


def _outermost(guards: Mapping[str, Guard], grants: Mapping[str, Grant]) -> dict[str, Guard]:
    """Without those that another guard holds already."""
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
