"""Cache of facts derived from a Plan (the decision, the path of bash), by plan identity; the last 16.

A compiled plan is reused for a moment only (see policy.workspace), since the host may change. A program
that opens many sandboxes at once has the same plan for them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...policy.plan import Plan

_MOST = 16
_entries: list[tuple[Plan, object, object]] = []


def get(plan: Plan, key: object) -> Any:
    """The value for `plan` and `key`; None if there is none."""
    for other, known, value in _entries:
        if other is plan and known == key:
            return value
    return None


def put(plan: Plan, key: object, value: object) -> None:
    """Cache a value, and forget the oldest."""
    _entries.insert(0, (plan, key, value))
    del _entries[_MOST:]
