"""What will be done, in words, for `staddle explain`."""

from __future__ import annotations

from ...display import shown
from ...enforcement import Step
from .. import gateways
from ..description import last, view
from ..filters import filter_profile, filter_steps
from . import unit
from .shortfalls import scopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...linux.systemd_manager import Manager
    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan

_OURS = "systemd"
_LIMITS = {"MemoryMax", "MemorySwapMax", "CPUQuota", "TasksMax"}


def steps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Step]:
    """Each thing that is set up, in the order in which it is."""
    yield from gateways.started(_OURS, plan)
    yield Step(f"ask the {found.scope} manager for a transient unit, with {shown(found.systemd_run)}", _OURS)
    for setting in unit.properties(plan, found.scope):
        yield Step(f"unit property {setting}", "limits" if setting.split("=")[0] in _LIMITS else _OURS)
    yield Step(
        "inside the unit: see that the properties hold, then make pid, mount and host name namespaces", _OURS
    )
    yield from gateways.reached(plan)
    yield from view(layout, found.stranger >= 0)
    yield Step("leave the old root for good", _OURS)
    if found.stranger >= 0:
        yield Step(
            f"become uid and gid {found.stranger}, which no account has: root's sandbox is not root", _OURS
        )
    yield Step(
        f"be uid {plan.identity.uid} and gid {plan.identity.gid} in a user namespace of its own", _OURS
    )
    yield from last(plan, _OURS)
    if scopes():
        yield Step(f"Landlock keeps within the sandbox: {', '.join(sorted(scopes()))}", _OURS)
    yield from filter_steps(filter_profile(plan))
