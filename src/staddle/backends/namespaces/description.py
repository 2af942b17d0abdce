"""The steps of our own namespaces in words, for `staddle explain`, and the gaps of a plan."""

from __future__ import annotations

from ...enforcement import Step
from .. import gaps as common
from .. import gateways
from ..exec_spec import filter_profile
from .launching import namespaces, scopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...enforcement import Gap
    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan


_OURS = "namespaces"


def steps(plan: Plan, layout: Layout, unprivileged_uid: int | None) -> Iterator[Step]:
    """Each thing that is set up, in the order in which it is."""
    from ..description import become, filter_steps, last, view  # not for `gaps`

    yield from gateways.started(_OURS, plan)
    yield from _groups(plan)
    if unprivileged_uid is None:
        yield from _user(plan)
    names = ", ".join(("pid", "mnt", *namespaces(plan)))
    yield Step(f"make namespaces ({names}) that end with whoever started this", _OURS)
    yield Step(f"be called {plan.identity.host!r}", "plan")
    if "net" in namespaces(plan):
        yield Step("a network of its own, with nothing but a loopback", "plan")
    yield from gateways.reached(plan)
    yield from view(layout, unprivileged_uid is not None)
    yield Step("leave the old root for good", _OURS)
    if unprivileged_uid is not None:
        yield become(unprivileged_uid, _OURS)
        yield from _user(plan)
    yield Step("the first process sees that all this is so; it is hidden, reaps, passes signals on", _OURS)
    yield from last(plan, _OURS)
    for scope in scopes(plan):
        yield Step(f"Landlock keeps within the sandbox: {scope}", _OURS)
    yield from filter_steps(filter_profile(plan))


def _groups(plan: Plan) -> Iterator[Step]:
    """The control groups that the first process enters, where limits ask for some and they can be had."""
    asked = {name: getattr(plan.limits, name) for name in ("memory", "cpu", "processes")}
    if not any(asked.values()):
        return
    from ...limits.enforced import enforced_limits, usable

    for item in enforced_limits(plan.limits, usable(), inside=True, layer="none")[0]:
        if asked.get(item.limit):
            yield Step(f"{item.by} holds {item.limit} to {asked[item.limit]}", "limits")


def _user(plan: Plan) -> Iterator[Step]:
    who = plan.identity
    yield Step(f"be uid {who.uid} and gid {who.gid} in a user namespace of its own", _OURS)


def gaps(plan: Plan, layout: Layout, unprivileged_uid: int | None) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from common.of_a_fresh_root(plan, layout, unprivileged_uid, common.scopes_sockets)
    yield from _limits(plan)


def _limits(plan: Plan) -> Iterator[Gap]:
    if all(getattr(plan.limits, name) is None for name in common.NEED_MORE):
        return  # nothing is asked for: what this host has need not be looked up
    from ...limits.enforced import enforced_limits, usable

    yield from enforced_limits(plan.limits, usable(), inside=True, layer="none")[1]
