"""The network gateway of a launch, for every backend with a network namespace.

A policy that allows no host, or every host, imports nothing of the network.
"""

from __future__ import annotations

import os

from ..enforcement import Gap, Step
from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..ipc.namespace_spec import NetworkRow, NetworkSpec
    from ..network.host.gateway_log import GatewayLog
    from ..policy.plan import Plan
    from .launching import Descriptors


def reaches_out(plan: Plan) -> bool:
    """Whether the plan needs a gateway: it allows some hosts, or on_connect may allow them."""
    if plan.asks:
        return True
    if plan.network.mode in ("deny", "open"):
        return False
    from ..network.namespace.from_policy import needs_gateway

    return needs_gateway(plan.network)


def open_socket(
    plan: Plan, give: Descriptors, command: Sequence[str], *, lasting: bool = False, copies: bool = False
) -> tuple[GatewayLog | None, tuple[int, ...]]:
    """Open the socket pair of the gateway that the launcher will start: (its log, the ends to pass).

    `lasting` is for a launcher that does not keep our end open; see `gateway_process.new_socket`. With
    `copies` the launcher also sends the gateway's sockets to us through a third end, and the log keeps them.
    """
    if not reaches_out(plan):
        return None, ()
    from ..network.host.gateway_log import GatewayLog
    from ..network.host.gateway_process import GatewayBounds, inspected, new_socket

    bounds = GatewayBounds(asks=plan.asks, inspected=inspected(plan, plan.network))
    ours, theirs = new_socket(plan.network, bounds, lasting=lasting)
    told = GatewayLog(ours, os.path.basename(command[0]))
    ends = [give.keep(theirs.detach()), give.keep(os.dup(ours.fileno()))]
    if copies:
        ends.append(give.keep(told.keep_copies()))
    return told, tuple(ends)


def rows(plan: Plan) -> tuple[NetworkRow, ...]:
    """The network setup inside the sandbox's network namespace."""
    from ..ipc.namespace_spec import encoded

    return encoded(_arrangement(plan))


def started(who: str, plan: Plan) -> Iterator[Step]:
    """The step that starts the gateway."""
    if reaches_out(plan):
        yield Step("start the network gateway on the host: confined, it dials what the policy allows", who)


def reached(plan: Plan) -> Iterator[Step]:
    """The steps that set up the sandbox's network and give it to the gateway."""
    if not reaches_out(plan):
        return
    from ..network.namespace.from_policy import RESOLVER

    made = _arrangement(plan)
    if plan.asks:
        yield Step(f"ask on_connect, for {plan.asks} seconds, about what no entry speaks of", "on_connect")
    if made.resolver:
        yield Step(
            f"a resolver at {RESOLVER} that knows the allowed names and asks no other resolver", "plan"
        )
    for _, port in made.forwards:
        yield Step(f"port {port} of its loopback forwards to port {port} of the host's", "plan")
    for rule in plan.network.rules:
        yield Step(f"{'refuse' if rule.deny else 'route to the gateway'}: {str(rule).lstrip('!')}", "plan")


_redirects: list[bool] = []  # whether this kernel redirects ports, once probed


def gaps(plan: Plan) -> Iterator[Gap]:
    """The gap of a gateway on a kernel that does not redirect every port to it."""
    if not reaches_out(plan):
        return
    unheld = _arrangement(plan).unheld
    if not unheld:
        return
    if not _redirects:
        from ..network.host.probe import probe

        _redirects.append(probe().redirects)
    if not _redirects[0]:
        for entry in unheld:
            yield Gap(
                "network",
                f"without nftables (tproxy) in this kernel, {entry}",
                "name single hosts with their ports, or load the module nft_tproxy",
            )


def nobody_asks(who: str, plan: Plan) -> Iterator[Gap]:
    """The gaps of a backend without a gateway: it never calls on_connect, and inspects no request."""
    if plan.is_inspected:
        yield Gap(
            "network",
            f"{who} has no gateway, so HTTP rules are not enforced, and no secret is put into requests",
            "use the namespaces, bwrap or systemd backend, or leave HTTP rules and secrets out",
        )
    if plan.asks:
        yield Gap(
            "network",
            f"{who} has no gateway, so on_connect would never be asked",
            "use the namespaces, bwrap or systemd backend, or leave on_connect out",
        )


def _arrangement(plan: Plan) -> NetworkSpec:
    from ..network.namespace.from_policy import network_spec

    return network_spec(plan.network, asks=bool(plan.asks))


# The HTTP proxy of a launch, for backends whose sandboxes have no network of their own.


#: Every system can buffer this much in a pipe.
_LONGEST_SETTINGS = 8192


class LaunchProxy:
    """The HTTP proxy that the launcher will start: its port, password and settings.

    `variables` make programs use it. See `network.gateway.http_proxy`.
    """

    def __init__(self, plan: Plan) -> None:
        """Does nothing for a policy without a list of hosts."""
        self.port, self.word = 0, ""
        self.variables: dict[str, str] = {}
        self.descriptors: tuple[int, ...] = ()
        if plan.network.mode != "allow":
            return
        import _socket

        self.word = word = os.urandom(16).hex()
        settings = "\n".join([word, " ".join(plan.network.dns), *map(str, plan.network.rules)]).encode()
        if len(settings) > _LONGEST_SETTINGS:
            raise PolicyError(
                "the allow list is too long for the proxy",
                why=f"its {len(plan.network.rules)} entries have more than {_LONGEST_SETTINGS} bytes",
                fix="use wildcards and networks",
            )
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        read, write = os.pipe()
        os.write(write, settings)
        os.close(write)
        self.descriptors = (listener.detach(), read)
        address = f"http://staddle:{word}@127.0.0.1:{self.port}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        self.variables = {spelling: address for name in names for spelling in (name, name.lower())}

    def close(self) -> None:
        """Close our copies."""
        descriptors, self.descriptors = self.descriptors, ()
        for fd in descriptors:
            try:
                os.close(fd)
            except OSError:
                continue
