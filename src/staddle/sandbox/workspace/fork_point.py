"""`ForkPoint`: the files of a sandbox when it was forked, kept by the fork: the base of a later merge."""

from __future__ import annotations

from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol
    from weakref import ReferenceType

    from ...layers.stack import LayerSnapshot

    class ForkedWorkspace(Protocol):
        """A workspace, and the points at which it and its parents were forked."""

        lineage: tuple[ForkPoint, ...]


_numbers = count()


class ForkPoint:
    """One fork: the parent's workspace, and `tree`, which belongs to the fork. Later forks are greater."""

    def __init__(self, parent: ReferenceType[Any], tree: LayerSnapshot, number: int | None = None) -> None:
        self.parent, self.tree = parent, tree.again()
        self.number = next(_numbers) if number is None else number

    def again(self) -> ForkPoint:
        """Return the same point for a fork of the fork."""
        return ForkPoint(self.parent, self.tree, self.number)


def common_point(one: ForkedWorkspace, other: ForkedWorkspace) -> LayerSnapshot | None:
    """Return the files from which both sandboxes continued; None if no fork connects them."""
    for parent, child in ((one, other), (other, one)):
        for point in child.lineage:
            if point.parent() is parent:
                return point.tree
    known = {point.parent: point for point in one.lineage}
    for point in reversed(other.lineage):
        if (found := known.get(point.parent)) is not None:
            return min(found, point, key=lambda each: each.number).tree
    return None
