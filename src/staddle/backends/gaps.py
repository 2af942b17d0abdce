"""Gaps that several backends have, in the same words.

A backend's own `gaps` picks from these and adds those that only it has. `who` is the backend
as it is called in a sentence.
"""

from __future__ import annotations

from ..enforcement import Gap
from . import gateways

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..mounts.from_plan import Layout
    from ..policy.plan import Plan

#: Limits that take control groups, or a file system of its own size.
NEED_MORE = ("memory", "cpu", "processes", "disk")
#: The first Landlock that can tell whose an abstract socket is.
_SCOPES_SINCE = 6


def of_a_fresh_root(
    plan: Plan, layout: Layout, unprivileged_uid: int | None, scopes: Callable[[], bool]
) -> Iterator[Gap]:
    """The gaps of a sandbox with a root and a network namespace of its own, and nothing else.

    `unprivileged_uid` is the id that root's sandbox runs as; `scopes` says whether Landlock is put on
    against abstract sockets where the network is shared.
    """
    yield from unheld(layout)
    yield from gateways.gaps(plan)
    if plan.network.mode == "open" and not scopes():
        yield Gap(
            "sockets",
            "with the network open, abstract UNIX sockets of the host can be reached on this kernel",
            "deny the network, or use Linux 6.12 or newer",
            documented=True,
        )
    if unprivileged_uid is not None:
        from ..mounts.host import unwritable_grants

        for error in unwritable_grants(layout.operations, unprivileged_uid):
            yield Gap("write", f"{error.what}: {error.why}", error.fix)


def unheld(layout: Layout) -> Iterator[Gap]:
    """Denied names that nothing keeps from being created."""
    for hidden in layout.unheld:
        yield Gap(
            "deny",
            f"{hidden.path!r} is denied and does not exist yet: what would be created there can be reached",
            "deny it in a policy that does not make it writable, or create it first",
        )


def identity(who: str, plan: Plan, *, documented: bool = False) -> Iterator[Gap]:
    """Names and numbers that `who` cannot give to a command."""
    if not plan.identity.is_usual:
        yield Gap(
            "identity",
            f"{who} changes neither the user nor the host's name: the command is who started it",
            "choose namespaces or bwrap, or leave the identity out",
            documented,
        )


def scopes_sockets() -> bool:
    """Whether Landlock can keep a command from the abstract sockets of others here."""
    from ..linux import landlock  # only where it matters

    return landlock.abi() >= _SCOPES_SINCE


def limits(who: str, plan: Plan, names: Iterable[str] = NEED_MORE) -> Iterator[Gap]:
    """Limits that `who` has no means for."""
    for name in names:
        if getattr(plan.limits, name) is not None:
            yield Gap(f"limits.{name}", f"{who} cannot limit {name}", f"leave limits.{name} out")
