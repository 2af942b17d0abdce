"""The steps of a launch by bwrap in words, for `staddle explain`, and the gaps of a plan."""

from __future__ import annotations

from ...display import shown
from ...enforcement import Gap, Step
from ...mounts.host import needs_translation
from ...mounts.operations import Bind
from .. import gaps as common
from .. import gateways
from ..exec_spec import filter_profile
from . import abstract_sockets, arguments, rlimits
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
    from ..description import become, filter_steps  # not for `gaps`

    unprivileged_uid = starter.unprivileged_uid
    yield from gateways.started(_OURS, plan)
    if gateways.reaches_out(plan):
        yield Step("a network of its own, with nothing but a loopback", "plan")
    yield from gateways.reached(plan)
    if plan.network.mode == "open" and abstract_sockets.prefix():
        yield Step("Landlock: abstract UNIX sockets of others are out of reach", _OURS)
    if unprivileged_uid is not None:
        yield become(unprivileged_uid, _OURS)
    if is_staged(layout, unprivileged_uid):
        yield Step("build the filesystem below in a mount namespace of its own", _OURS)
    for option in rlimits.outside(rlimits.hard_limit):
        yield Step(f"resource limit {option.removeprefix('--').split(':')[0]}", _OURS)
    yield Step(f"start {shown(starter.bwrap)} with an empty environment: {_flags(plan)}", _OURS)
    for operation in layout.operations:
        owner = ""
        if unprivileged_uid is not None and isinstance(operation, Bind) and not operation.again:
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


_FILES = ("file_size", "open_files")


def gaps(plan: Plan, layout: Layout, starter: Starter) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from common.of_a_fresh_root(plan, layout, starter.unprivileged_uid, _scopes)
    yield from common.limits("bwrap", plan)
    for name in _FILES:
        if getattr(plan.limits, name) is not None and plan.access(starter.prlimit) == "none":
            yield Gap(
                f"limits.{name}",
                f"{starter.prlimit} sets it, and the policy hides that program",
                f"grant {starter.prlimit}, or leave limits.{name} out",
            )


def _scopes() -> bool:
    from . import abstract_sockets  # only where it matters

    return bool(abstract_sockets.prefix())
