"""What our own namespaces cannot hold of a plan: limits beyond a process's own, on some kernels wildcards."""

from __future__ import annotations

from .. import shortfalls
from ..base import Gap
from .orders import reaches_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...layout.from_plan import Layout
    from ...policy.plan import Plan

_WHO = "the namespaces backend"


def gaps(plan: Plan, layout: Layout, stranger: int | None) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from shortfalls.of_a_fresh_root(
        _WHO, plan, layout, stranger, shortfalls.scopes_sockets, gateway=True
    )
    if reaches_out(plan):
        yield from _network(plan)
    yield from _limits(plan)


def _limits(plan: Plan) -> Iterator[Gap]:
    if all(getattr(plan.limits, name) is None for name in shortfalls.NEED_MORE):
        return  # nobody looks what this host has
    from ...limits.holding import held
    from ...limits.standing_in import usable

    yield from held(plan.limits, usable(), inside=False, layer="none")[1]


_redirects: list[bool] = []  # whether this kernel does, once it was asked


def _network(plan: Plan) -> Iterator[Gap]:
    """What a gateway cannot serve when the kernel does not deliver every port to it."""
    from ...network.arrangement import arrange

    unheld = arrange(plan.network).unheld
    if not unheld:
        return
    if not _redirects:
        from ...network.probing import probe

        _redirects.append(probe().redirects)
    if not _redirects[0]:
        for entry in unheld:
            yield Gap(
                "network",
                f"without nftables (tproxy) in this kernel, {entry}",
                "name single hosts with their ports, or load the module nft_tproxy",
            )
