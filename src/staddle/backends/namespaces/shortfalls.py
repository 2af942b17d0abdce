"""What our own namespaces cannot hold of a plan: limits beyond a process's own, and parts of a network."""

from __future__ import annotations

from .. import shortfalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...layout.from_plan import Layout
    from ...policy.plan import Plan
    from ..base import Gap

_WHO = "the namespaces backend"


def gaps(plan: Plan, layout: Layout, stranger: int | None) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from shortfalls.of_a_fresh_root(_WHO, plan, layout, stranger, shortfalls.scopes_sockets)
    yield from shortfalls.limits(_WHO, plan)
