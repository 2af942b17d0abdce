"""The layout of a plan on this host, cached: see policy.plan_cache.

One plan is asked about several times while a sandbox is opened: for its gaps, for the fork server's
configuration, for the layers of the system. A caller that opens many sandboxes uses one plan.
"""

from __future__ import annotations

from ..policy import plan_cache
from .from_plan import lay_out
from .host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.plan import Plan
    from .from_plan import Layout

_KEY = "layout"
#: Parts of a plan that a layout is made of, where it is made without a look at the host.
_PARTS = ("grants", "outside", "links", "texts", "scratch", "sockets", "closed", "layers", "identity")


class PlanLayout:
    """The layout of one plan, and values that others have derived from it, by a key of their own."""

    __slots__ = ("derived", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.derived: dict[object, object] = {}


def entry_of(plan: Plan) -> PlanLayout:
    """The entry of this plan, made if there is none."""
    known: PlanLayout | None = plan_cache.get(plan, _KEY)
    if known is not None:
        return known
    alike = next((entry for other, entry in plan_cache.every(_KEY) if _are_alike(other, plan)), None)
    made = PlanLayout(lay_out(plan, Host()) if alike is None else alike.layout)
    plan_cache.put(plan, _KEY, made)
    return made


def layout_of(plan: Plan) -> Layout:
    """The layout of this plan: the last one, unless it was forgotten since."""
    return entry_of(plan).layout


def forget(plan: Plan) -> None:
    """A command is started with it. If the layout depends on the host, the next start looks there anew."""
    if plan.hidden or plan.guards:
        plan_cache.forget(plan, _KEY)


def _are_alike(one: Plan, other: Plan) -> bool:
    """Whether the layout of one is the other's too: made without a look at the host, of the same parts."""
    if one.hidden or one.guards or other.hidden or other.guards:
        return False
    return all(getattr(one, part) == getattr(other, part) for part in _PARTS)
