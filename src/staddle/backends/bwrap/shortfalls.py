"""What bwrap cannot hold of a plan, and why."""

from __future__ import annotations

from ...enforcement import Gap
from .. import shortfalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan
    from .launching import Starter

_FILES = ("file_size", "open_files")


def gaps(plan: Plan, layout: Layout, starter: Starter) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from shortfalls.of_a_fresh_root(plan, layout, starter.stranger, _scopes)
    yield from shortfalls.limits("bwrap", plan)
    for name in _FILES:
        if getattr(plan.limits, name) is not None and plan.access(starter.prlimit) == "none":
            yield Gap(
                f"limits.{name}",
                f"{starter.prlimit} sets it, and the policy hides that program",
                f"grant {starter.prlimit}, or leave limits.{name} out",
            )


def _scopes() -> bool:
    from . import scoping  # only where it matters

    return bool(scoping.prefix())
