"""What will be done, in words, for `staddle explain`."""

from __future__ import annotations

from ...display import shown
from ...enforcement import Step
from ...mounts.operations import Bind
from ...mounts.owners import needs_translation
from .. import gateways
from ..filters import filter_profile, filter_steps
from . import arguments, rlimits, scoping
from .launching import is_staged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan
    from .launching import Starter

_OURS = "bwrap"


def steps(plan: Plan, layout: Layout, starter: Starter) -> Iterator[Step]:
    """Each thing that is set up, in the order in which it is."""
    stranger = starter.stranger
    yield from gateways.started(_OURS, plan)
    if gateways.reaches_out(plan):
        yield Step("a network of its own, with nothing but a loopback", "plan")
    yield from gateways.reached(plan)
    if plan.network.mode == "open" and scoping.prefix():
        yield Step("Landlock: abstract UNIX sockets of others are out of reach", _OURS)
    if stranger is not None:
        yield Step(f"become uid and gid {stranger}, which no account has: root's sandbox is not root", _OURS)
    if is_staged(layout, stranger):
        yield Step("build the filesystem below in a mount namespace of its own", _OURS)
    for option in rlimits.outside(rlimits.hard_limit):
        yield Step(f"resource limit {option.removeprefix('--').split(':')[0]}", _OURS)
    yield Step(f"start {shown(starter.bwrap)} with an empty environment: {_flags(plan)}", _OURS)
    for operation in layout.operations:
        owner = ""
        if stranger is not None and isinstance(operation, Bind) and not operation.again:
            translated = needs_translation(operation.outside, operation.writable)
            owner = ", its owner as the sandbox's user" if translated else ""
        yield Step(f"{operation}{owner}", operation.origin)
    yield Step(f"working directory {shown(plan.cwd)}", "plan")
    for variable in plan.variables:
        value = "(secret)" if variable.secret else shown(variable.value)
        yield Step(f"variable {shown(variable.name)}={value}", variable.origin)
    yield from filter_steps(filter_profile(plan))
    for option in rlimits.inside(plan.limits, rlimits.hard_limit):
        yield Step(f"resource limit {option.removeprefix('--').split(':')[0]}", "limits")


def _flags(plan: Plan) -> str:
    return " ".join(shown(word) for word in arguments.confinement(plan))
