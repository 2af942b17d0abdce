"""What will be done, in words, for `staddle explain`."""

from __future__ import annotations

from ...display import shown
from ..base import Step
from ..bwrap import staging
from ..bwrap.launching import filter_profile
from ..bwrap.operations import Bind, Empty
from . import unit
from .orders import rlimits
from .shortfalls import scopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...policy.plan import Plan
    from ..bwrap.layout import Layout
    from .manager import Manager

_OURS = "systemd"
_LIMITS = {"MemoryMax", "MemorySwapMax", "CPUQuota", "TasksMax"}


def steps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Step]:
    """Each thing that is set up, in the order in which it is."""
    yield Step(f"ask the {found.scope} manager for a transient unit, with {shown(found.systemd_run)}", _OURS)
    for setting in unit.properties(plan, found.scope):
        yield Step(f"unit property {setting}", "limits" if setting.split("=")[0] in _LIMITS else _OURS)
    yield Step(
        "inside the unit: see that the properties hold, then make pid, mount and host name namespaces", _OURS
    )
    for operation in layout.operations:
        if isinstance(operation, Empty) and operation.path == "/proc/1":
            continue
        text = str(operation)
        shown_anew = isinstance(operation, Bind) and not operation.again
        if shown_anew and found.stranger >= 0 and staging.needs_translation(operation.path):
            text += ", its owner shown as the sandbox's user"
        yield Step(text, operation.origin)
    yield Step("leave the old root for good", _OURS)
    if found.stranger >= 0:
        yield Step(
            f"become uid and gid {found.stranger}, which no account has: root's sandbox is not root", _OURS
        )
    yield Step(
        f"be uid {plan.identity.uid} and gid {plan.identity.gid} in a user namespace of its own", _OURS
    )
    yield Step(f"working directory {shown(plan.cwd)}", "plan")
    for variable in plan.variables:
        value = "(secret)" if variable.secret else shown(variable.value)
        yield Step(f"variable {shown(variable.name)}={value}", variable.origin)
    for name, _, most in rlimits(plan.limits):
        yield Step(f"resource limit {name}={most}", "limits" if name in ("fsize", "nofile") else _OURS)
    yield Step("no capability, no_new_privs", _OURS)
    if scopes():
        yield Step(f"Landlock keeps within the sandbox: {', '.join(sorted(scopes()))}", _OURS)
    yield Step(f"system call filter {filter_profile(plan)!r}", _OURS)
