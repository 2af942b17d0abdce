"""What was found out lately about plans, for the next sandbox of the same moment.

Plans are compared by identity. One holds for a moment only, since the host may change; whoever
opens many sandboxes at once has the same, and need not find out the same about it each time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...policy.plan import Plan

_MOST = 16
_found: list[tuple[Plan, object, object]] = []


def known(plan: Plan, question: object) -> Any:
    """The answer, if it is known; None else."""
    for other, asked, answer in _found:
        if other is plan and asked == question:
            return answer
    return None


def note(plan: Plan, question: object, answer: object) -> None:
    """Remember it for a while."""
    _found.insert(0, (plan, question, answer))
    del _found[_MOST:]
