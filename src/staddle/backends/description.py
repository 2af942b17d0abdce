"""Steps that several backends share, in the same words, for `staddle explain`."""

from __future__ import annotations

from ..display import shown
from ..enforcement import Step
from ..mounts.host import needs_translation
from ..mounts.operations import Bind
from .exec_spec import needed, rlimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..mounts.from_plan import Layout
    from ..policy.plan import Plan


def view(layout: Layout, as_root: bool) -> Iterator[Step]:
    """The operations that make the view."""
    for operation in needed(layout):
        text = str(operation)
        if as_root and isinstance(operation, Bind) and not operation.again:
            translated = needs_translation(operation.outside, operation.writable)
            text += ", its owner shown as the sandbox's user" if translated else ""
        yield Step(text, operation.origin)


def become(uid: int, ours: str) -> Step:
    """That root's sandbox takes an id of its own."""
    return Step(f"become uid and gid {uid}, which no account has: root's sandbox is not root", ours)


def last(plan: Plan, ours: str) -> Iterator[Step]:
    """The last steps of the command's own process, but for Landlock and the filter."""
    yield Step(f"working directory {shown(plan.cwd)}", "plan")
    for variable in plan.variables:
        value = "(secret)" if variable.secret else shown(variable.value)
        yield Step(f"variable {shown(variable.name)}={value}", variable.origin)
    for name, _, most in rlimits(plan.limits):
        yield Step(f"resource limit {name}={most}", "limits" if name in ("fsize", "nofile") else ours)
    yield Step("no capability, no_new_privs", ours)


def filter_steps(profile: str) -> Iterator[Step]:
    """The filter `profile`, call by call, with the reason for each."""
    from ..linux.seccomp import describe

    for row in describe(profile):
        when = f" when {row.condition}" if row.condition else ""
        yield Step(f"filter {profile}: {', '.join(row.calls)}{when}: {row.answer}", row.why)
