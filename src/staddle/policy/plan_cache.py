"""Cache of values derived from a Plan, by plan identity and a key of each deriver; the last 64.

The layout, the fork server's configuration, the decision about a sandbox and the path of bash are kept here.
A compiled plan is reused for a moment only (see policy.workspace), since the host may change. A program that
opens many sandboxes at once has the same plan for them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .plan import Plan

_MOST = 64
#: An entry holds its plan, so that no other plan can have the same id meanwhile.
_entries: dict[tuple[int, object], tuple[Plan, Any]] = {}


def get(plan: Plan, key: object) -> Any:
    """The value for `plan` and `key`; None if there is none."""
    found = _entries.get((id(plan), key))
    return None if found is None else found[1]


def put(plan: Plan, key: object, value: object) -> None:
    """Cache a value, and forget the oldest ones."""
    _entries[id(plan), key] = (plan, value)
    while len(_entries) > _MOST:
        _entries.pop(next(iter(_entries), (0, None)), None)


def forget(plan: Plan, key: object) -> None:
    """Forget a value, if there is one."""
    _entries.pop((id(plan), key), None)


def every(key: object) -> list[tuple[Plan, Any]]:
    """The plans that have a value for `key`, and these values; the newest first."""
    return [entry for (_, known), entry in reversed(tuple(_entries.items())) if known == key]
