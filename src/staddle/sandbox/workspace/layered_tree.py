"""What a sandbox has in layers beside its workspace: trees, each known by the path of its root inside.

The world, whose root is "/", is the home and /tmp and /var/tmp in one. Nothing of these trees is
ever committed; they are part of every snapshot, fork and kept session.
"""

from __future__ import annotations

import os

from ..._value import Value
from ...forkserver.requests import OverlayDirs
from ...layers.stack import Stack
from ...policy.paths import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ...layers.changes import Change
    from ...layers.stack import Frozen


class Point(Value):
    """A tree at one moment, to come back to."""

    places: tuple[str, ...]
    frozen: Frozen


class Beside:
    """A tree that is worked on: where its changes go, and the places where it is seen."""

    def __init__(self, root: str, places: tuple[str, ...], stack: Stack) -> None:
        self.root, self.places, self.stack = root, places, stack

    def fresh(self) -> Stack:
        """A stack in which nothing has been changed."""
        return Stack.new(self.stack.store, self.stack.bases)

    def diff(self, paths: Collection[str] | None = None) -> list[Change]:
        """Every change since it was fresh, by the path that is seen inside; of some paths in it only."""
        from ...layers.changes import diff

        return diff(self.stack.view(), paths, at=self.root)


def by_tree(
    paths: Iterable[str], directory: str, places: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """Paths as they are seen inside, from `directory`, as paths below the roots of their trees.

    `places` are those of each tree, by root. ValueError for a path that is in none.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        whole = os.path.normpath(os.path.join(directory, path))
        roots = [root for root, shown in places.items() if any(covers(place, whole) for place in shown)]
        if not roots:
            first, *others = (place for shown in places.values() for place in shown)
            rest = f", nor in {', '.join(others)}" if others else ""
            raise ValueError(f"{path!r} is not in the workspace, which is {first}{rest}")
        found.setdefault(roots[0], []).append(whole[len(roots[0]) :].lstrip("/"))
    return found


def layers_of(stack: Stack) -> OverlayDirs:
    """What has to be mounted for the stack of such a tree."""
    return OverlayDirs(stack.top.upper, stack.top.work, stack.lowers)
