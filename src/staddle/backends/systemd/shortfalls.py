"""What systemd cannot hold of a plan, and why."""

from __future__ import annotations

from ...enforcement import Gap
from ...linux import landlock
from ...linux.systemd_manager import delegated_controllers
from .. import shortfalls
from .unit import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...linux.systemd_manager import Manager
    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan

_LIMITS = {"memory": "memory", "cpu": "cpu", "pids": "processes"}


def gaps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    stranger = found.stranger if found.stranger >= 0 else None
    yield from shortfalls.of_a_fresh_root(plan, layout, stranger, shortfalls.scopes_sockets)
    yield from _limits(plan, found)


def scopes() -> frozenset[str]:
    """What Landlock keeps within the sandbox here."""
    return landlock.weaken(landlock.SCOPES, landlock.abi())[0]


def _limits(plan: Plan, found: Manager) -> Iterator[Gap]:
    asked = bounds(plan.limits)
    missing = asked.keys() - delegated_controllers(found.scope) if asked else ()
    for controller in asked:
        if controller in missing:
            yield Gap(
                f"limits.{_LIMITS[controller]}",
                f"the {found.scope} manager has no {controller} controller to limit it with",
                "delegate it (Delegate=yes for user@.service, on the unified hierarchy), or leave "
                f"limits.{_LIMITS[controller]} out",
            )
    yield from shortfalls.limits("systemd", plan, ("disk",))
