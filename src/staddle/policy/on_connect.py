"""Change a plan so that `on_connect` decides about destinations that the policy leaves open. Pure."""

from __future__ import annotations

from ..errors import PolicyError
from .system import RESOLV_CONF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .plan import Plan

#: Seconds that a connection waits for an answer, and as many as can be asked for.
PATIENCE, MOST_PATIENCE = 5.0, 3600.0


def asking(plan: Plan, seconds: int) -> Plan:
    """The same plan, with `seconds` for each decision of `on_connect`; 0 does not ask.

    Names are asked of our own resolver then, which knows every name: whether it may be reached is
    decided when it is known at which port.
    """
    if not seconds:
        return plan
    if plan.network.mode == "open":
        raise PolicyError(
            "on_connect has nothing to decide",
            why="the network is open: everything can be reached",
            fix="use Network.deny() or Network.allow(...), which leave something open",
        )
    texts = tuple(
        text.replace(content=RESOLV_CONF) if text.path == "/etc/resolv.conf" else text for text in plan.texts
    )
    return plan.replace(texts=texts, asks=seconds)


def whole_seconds(patience: object) -> int:
    """A time that a decision may take, checked and rounded up."""
    if isinstance(patience, bool) or not isinstance(patience, int | float):
        raise PolicyError(f"on_connect_timeout is {patience!r}", why="it is not a number of seconds")
    if not 0 < patience <= MOST_PATIENCE:  # nor NaN
        raise PolicyError(
            f"on_connect_timeout is {patience!r}", why=f"it is more than 0 and at most {MOST_PATIENCE:.0f}"
        )
    return -int(-patience // 1)
