"""Which system call filter a plan needs, and what a filter does."""

from __future__ import annotations

from ..enforcement import Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..policy.plan import Plan


def filter_profile(plan: Plan) -> str:
    """For a sandbox of namespaces: no setuid files where the host's directories can be written."""
    return "namespaces-nosuid" if any(grant.access == "write" for grant in plan.grants) else "namespaces"


def landlock_profile(plan: Plan) -> str:
    """The same without namespaces: sockets are decided about too."""
    profile = {"open": "landlock-open", "deny": "landlock"}.get(plan.network.mode, "landlock-tcp")
    # Where the host's directories can be written, no setuid file may be left there.
    return profile + ("-nosuid" if any(grant.access == "write" for grant in plan.grants) else "")


def filter_steps(profile: str) -> Iterator[Step]:
    """The filter `profile`, call by call, with the reason for each."""
    from ..linux.seccomp import describe

    for row in describe(profile):
        when = f" when {row.condition}" if row.condition else ""
        yield Step(f"filter {profile}: {', '.join(row.calls)}{when}: {row.answer}", row.why)
