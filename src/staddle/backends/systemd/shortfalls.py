"""What systemd cannot hold of a plan, and why."""

from __future__ import annotations

from ...linux import landlock
from ..base import Gap
from .delegation import controllers
from .unit import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...layout.from_plan import Layout
    from ...policy.plan import Plan
    from .manager import Manager

_LIMITS = {"memory": "memory", "cpu": "cpu", "pids": "processes"}


def gaps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    for hidden in layout.unheld:
        yield Gap(
            "deny",
            f"{hidden.path!r} is denied and does not exist yet: what would be created there can be reached",
            "deny it in a policy that does not make it writable, or create it first",
        )
    yield from _network(plan)
    yield from _limits(plan, found)
    if found.stranger >= 0:
        from ...layout.owners import unwritable_grants

        for error in unwritable_grants(layout.operations, found.stranger):
            yield Gap("write", f"{error.what}: {error.why}", error.fix)


def _network(plan: Plan) -> Iterator[Gap]:
    mode = plan.network.mode
    if mode == "allow" or (mode == "loopback" and plan.network.ports):
        what = "a list of hosts" if mode == "allow" else "the host's loopback ports"
        yield Gap(
            "network", f"systemd cannot hold {what}: it has all of the network or none", "use Network.deny()"
        )
    if mode == "open" and not scopes():
        yield Gap(
            "sockets",
            "with the network open, abstract UNIX sockets of the host can be reached (Landlock is too old)",
            "deny the network, or use Linux 6.12 or newer",
        )


def scopes() -> frozenset[str]:
    """What Landlock keeps within the sandbox here."""
    return landlock.weaken(landlock.SCOPES, landlock.abi())[0]


def _limits(plan: Plan, found: Manager) -> Iterator[Gap]:
    asked = bounds(plan.limits)
    missing = asked.keys() - controllers(found.scope) if asked else ()
    for controller in asked:
        if controller in missing:
            yield Gap(
                f"limits.{_LIMITS[controller]}",
                f"the {found.scope} manager has no {controller} controller to limit it with",
                "delegate it (Delegate=yes for user@.service, on the unified hierarchy), or leave "
                f"limits.{_LIMITS[controller]} out",
            )
    if plan.limits.disk is not None:
        yield Gap("limits.disk", "systemd cannot limit how much is written", "leave limits.disk out")
