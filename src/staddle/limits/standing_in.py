"""What a sandbox is held to where its control groups do not: resource limits, and a supervisor inside."""

from __future__ import annotations

from . import here
from .rlimits import rlimits
from .where import HOLDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.limits import Limits
    from .where import Means

#: The limits that take a control group, or something that stands in for one.
GROUPED = ("memory", "cpu", "processes")
_FIX = "use backend='systemd', or start the program in a unit with Delegate=yes and DelegateSubgroup=program"


def asked(limits: Limits) -> bool:
    """Whether any of them is asked for: else nobody needs to look what this host has."""
    return any(getattr(limits, name) is not None for name in GROUPED)


def usable() -> Means:
    """The means of this host, as far as one command alone can be put there.

    It is in no scope that systemd would have to be asked for: its backend of that name has a unit.
    """
    found = here.means()
    if not found.scope:
        return found
    why = "no control group is delegated to this program"
    return found.replace(places=(), scope="", why_not=tuple((name, why, _FIX) for name in HOLDING))


def stand_ins(limits: Limits) -> tuple[tuple[tuple[str, int, int], ...], int, int]:
    """Of a session: resource limits, as `rlimits` has them; memory and processes to be watched, or 0."""
    if not asked(limits):
        return (), 0, 0
    means = here.means()
    memory = 0 if means.version("memory") else limits.memory or 0
    processes = 0 if means.version("pids") else limits.processes or 0
    return tuple(rlimits(limits, means)), memory, processes
