"""Cache of layouts on this host, by identity of the plan; the last few.

One plan is asked about several times while a sandbox is opened: for its gaps, for the fork server's
configuration, for the layers of the system. A caller that opens many sandboxes uses one plan.
"""

from __future__ import annotations

from .from_plan import lay_out
from .host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.plan import Plan
    from .from_plan import Layout

_MOST = 8
#: Parts of a plan that a layout is made of, where it is made without a look at the host.
_PARTS = ("grants", "outside", "links", "texts", "scratch", "sockets", "closed", "layers", "identity")


class PlanLayout:
    """The layout of one plan, and values that others have derived from it, by a key of their own."""

    __slots__ = ("derived", "layout", "plan")

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self.plan, self.layout = plan, layout
        self.derived: dict[object, object] = {}


#: Every thread has the same: decide on a copy.
_recent: list[PlanLayout] = []


def entry_of(plan: Plan) -> PlanLayout:
    """The entry of this plan, made if there is none."""
    entries = tuple(_recent)
    for entry in entries:
        if entry.plan is plan:
            return entry
    alike = next((entry for entry in entries if _are_alike(entry.plan, plan)), None)
    made = PlanLayout(plan, lay_out(plan, Host()) if alike is None else alike.layout)
    _recent.insert(0, made)
    del _recent[_MOST:]
    return made


def layout_of(plan: Plan) -> Layout:
    """The layout of this plan: the last one, unless it was forgotten since."""
    return entry_of(plan).layout


def forget(plan: Plan) -> None:
    """A command is started with it. If the layout depends on the host, the next start looks there anew."""
    if plan.hidden or plan.guards:
        _recent[:] = [entry for entry in tuple(_recent) if entry.plan is not plan]


def _are_alike(one: Plan, other: Plan) -> bool:
    """Whether the layout of one is the other's too: made without a look at the host, of the same parts."""
    if one.hidden or one.guards or other.hidden or other.guards:
        return False
    return all(getattr(one, part) == getattr(other, part) for part in _PARTS)
