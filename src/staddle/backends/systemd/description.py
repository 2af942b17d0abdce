"""The steps of a systemd unit in words, for `staddle explain`, and the gaps of a plan."""

from __future__ import annotations

from ...display import shown
from ...enforcement import Gap, Step
from ...linux import landlock
from ...linux.systemd_manager import delegated_controllers
from .. import gaps as common
from .. import gateways
from ..exec_spec import filter_profile
from . import unit
from .unit import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...linux.systemd_manager import Manager
    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan


_OURS = "systemd"
_LIMIT_PROPERTIES = {"MemoryMax", "MemorySwapMax", "CPUQuota", "TasksMax"}


def steps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Step]:
    """Each thing that is set up, in the order in which it is."""
    from ..description import become, filter_steps, last, view  # not for `gaps`

    yield from gateways.started(_OURS, plan)
    yield Step(f"ask the {found.scope} manager for a transient unit, with {shown(found.systemd_run)}", _OURS)
    for setting in unit.properties(plan, found.scope):
        yield Step(
            f"unit property {setting}", "limits" if setting.split("=")[0] in _LIMIT_PROPERTIES else _OURS
        )
    yield Step(
        "inside the unit: see that the properties hold, then make pid, mount and host name namespaces", _OURS
    )
    yield from gateways.reached(plan)
    yield from view(layout, found.unprivileged_uid >= 0)
    yield Step("leave the old root for good", _OURS)
    if found.unprivileged_uid >= 0:
        yield become(found.unprivileged_uid, _OURS)
    yield Step(
        f"be uid {plan.identity.uid} and gid {plan.identity.gid} in a user namespace of its own", _OURS
    )
    yield from last(plan, _OURS)
    if scopes():
        yield Step(f"Landlock keeps within the sandbox: {', '.join(sorted(scopes()))}", _OURS)
    yield from filter_steps(filter_profile(plan))


_LIMITS = {"memory": "memory", "cpu": "cpu", "pids": "processes"}


def gaps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    unprivileged_uid = found.unprivileged_uid if found.unprivileged_uid >= 0 else None
    yield from common.of_a_fresh_root(plan, layout, unprivileged_uid, common.scopes_sockets)
    yield from _limits(plan, found)


def scopes() -> frozenset[str]:
    """Landlock's scopes in the sandbox here."""
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
    yield from common.limits("systemd", plan, ("disk",))
