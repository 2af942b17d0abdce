"""What bwrap cannot hold of a plan, and why."""

from __future__ import annotations

from ..base import Gap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...layout.from_plan import Layout
    from ...policy.plan import Plan
    from .launching import Starter

_NOT_YET = ("memory", "cpu", "processes", "disk")
_FILES = ("file_size", "open_files")


def gaps(plan: Plan, layout: Layout, starter: Starter) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    for hidden in layout.unheld:
        yield Gap(
            "deny",
            f"{hidden.path!r} is denied and does not exist yet: what would be created there can be reached",
            "deny it in a policy that does not make it writable, or create it first",
        )
    mode, ports = plan.network.mode, plan.network.ports
    if mode == "allow" or (mode == "loopback" and ports):
        what = "a list of hosts" if mode == "allow" else "the host's loopback ports"
        yield Gap(
            "network", f"bwrap cannot hold {what}: it has all of the network or none", "use Network.deny()"
        )
    if mode == "open":
        yield from _abstract_sockets()
    for name in _NOT_YET:
        if getattr(plan.limits, name) is not None:
            yield Gap(f"limits.{name}", f"bwrap cannot limit {name}", f"leave limits.{name} out")
    for name in _FILES:
        if getattr(plan.limits, name) is not None and plan.access(starter.prlimit) == "none":
            yield Gap(
                f"limits.{name}",
                f"{starter.prlimit} sets it, and the policy hides that program",
                f"grant {starter.prlimit}, or leave limits.{name} out",
            )
    if starter.stranger is not None:
        from ...layout.owners import unwritable_grants

        for error in unwritable_grants(layout.operations, starter.stranger):
            yield Gap("write", f"{error.what}: {error.why}", error.fix)


def _abstract_sockets() -> Iterator[Gap]:
    from . import scoping  # only where it matters

    if not scoping.prefix():
        yield Gap(
            "sockets",
            "with the network open, abstract UNIX sockets of the host can be reached on this kernel",
            "deny the network, or use Linux 6.12 or newer",
            documented=True,
        )
