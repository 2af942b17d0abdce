"""What our own namespaces cannot hold of a plan: limits beyond a process's own, on some kernels wildcards."""

from __future__ import annotations

from .. import shortfalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...enforcement import Gap
    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan


def gaps(plan: Plan, layout: Layout, stranger: int | None) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from shortfalls.of_a_fresh_root(plan, layout, stranger, shortfalls.scopes_sockets)
    yield from _limits(plan)


def _limits(plan: Plan) -> Iterator[Gap]:
    if all(getattr(plan.limits, name) is None for name in shortfalls.NEED_MORE):
        return  # nobody looks what this host has
    from ...limits.holding import held
    from ...limits.standing_in import usable

    yield from held(plan.limits, usable(), inside=True, layer="none")[1]
