"""Fold HTTP requests into rules, as few as describe the job and no wider than needed. Pure.

    fold([("GET", "/a/1"), ("GET", "/a/2"), ...])     {("GET", "/a/*"): [...]}

A part of a path that has many values becomes `*`. A tail whose length varies becomes `**`. HEAD counts as
GET, which allows it. Queries are left out: a rule without one allows any.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Values of a part of a path that are listed, each in a rule of its own; rules for one method of a host.
_MOST_VALUES, _MOST_RULES = 3, 8
_LONGEST = 1024


class _PathNode:
    """The parts of paths after one part. `requests` are those that end here."""

    def __init__(self) -> None:
        self.below: dict[str, _PathNode] = {}
        self.requests: list[str] = []

    def add(self, parts: list[str], path: str) -> None:
        here = self
        for part in parts:
            here = here.below.setdefault(part, _PathNode())
        here.requests.append(path)

    def all(self) -> list[str]:
        return [*self.requests, *(path for each in self.below.values() for path in each.all())]

    def depths(self) -> set[int]:
        found = {0} if self.requests else set()
        return found | {depth + 1 for each in self.below.values() for depth in each.depths()}

    def folded(self, most: int) -> dict[str, list[str]]:
        """Return the patterns of what is below, each with its paths."""
        found = {"": self.requests} if self.requests else {}
        below = self.below
        if len(below) > most:
            if len(self.depths() - {0}) > 1:
                return {**found, "/**": [path for each in below.values() for path in each.all()]}
            below = {"*": _merged(list(below.values()))}
        for part, each in below.items():
            found.update({f"/{part}{tail}": paths for tail, paths in each.folded(most).items()})
        return found


def _merged(trees: list[_PathNode]) -> _PathNode:
    made = _PathNode()
    made.requests = [path for tree in trees for path in tree.requests]
    for name in dict.fromkeys(name for tree in trees for name in tree.below):
        made.below[name] = _merged([tree.below[name] for tree in trees if name in tree.below])
    return made


def fold(requests: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Return (method, path of a rule) with the paths that need it."""
    trees: dict[str, _PathNode] = {}
    for method, target in requests:
        path = target.partition("?")[0]
        if not path.startswith("/"):
            continue  # a request about the whole server
        parts = [_part(part) for part in path[:_LONGEST].split("/")[1:]]
        if len(path) > _LONGEST:
            parts[-1] = "**"
        trees.setdefault("GET" if method == "HEAD" else method, _PathNode()).add(parts, path)
    found: dict[tuple[str, str], list[str]] = {}
    for method, tree in sorted(trees.items()):
        rules = tree.folded(_MOST_VALUES)
        if len(rules) > _MOST_RULES:
            rules = tree.folded(1)
        if len(rules) > _MOST_RULES:
            rules = {"/**": tree.all()}
        found.update({(method, path): paths for path, paths in rules.items()})
    return found


def _part(part: str) -> str:
    """Return a part of a path as a rule has it: `*` if a rule cannot spell it."""
    is_plain = part.isascii() and part.isprintable() and not set(part) & set(" #\\?*")
    return part if is_plain and part not in (".", "..") else "*"
