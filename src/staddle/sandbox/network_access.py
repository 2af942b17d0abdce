"""Access from the host to a sandbox's network: connections to servers inside, exposed ports."""

from __future__ import annotations

from ..errors import InvalidCall, PolicyNotEnforceable, StaddleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from ..policy.network import Network
    from .open.network import SandboxNetwork
    from .open_sandbox import OpenSandbox

#: Seconds for a connection to the host's own loopback.
_PATIENCE = 1.0


def is_hosts(inside: OpenSandbox) -> bool:
    """Whether the sandbox uses the host's network."""
    return inside.decided.plan.network.mode == "open"


def connect(inside: OpenSandbox, port: int) -> socket:
    """Connect to a server in the sandbox, on its 127.0.0.1 or ::1."""
    from socket import create_connection, socket

    if is_hosts(inside):
        return create_connection(("localhost", port))
    return socket(fileno=_reach(inside).connect(inside.agent, port))


def expose(inside: OpenSandbox, port: int, host_port: int) -> int:
    """Forward a port of the host's 127.0.0.1 to `port` inside; `port` itself on the host's network."""
    if is_hosts(inside):
        from ..network.host.forward import same_port

        return same_port(port, host_port)
    return _reach(inside).expose(inside.agent, port, host_port)


def change(inside: OpenSandbox, network: Network) -> None:
    """Apply another policy to a sandbox's gateway. Raises PolicyNotEnforceable if it cannot."""
    from ..network.namespace.from_policy import fits, network_spec
    from ..policy.network import Network

    if not isinstance(network, Network):
        raise InvalidCall(
            f"network is {network!r}", why="it is not a Network", fix="use Network.allow('example.com')"
        )
    plan, why = inside.decided.plan, ""
    if plan.package_cache:
        from ..packages.mirror import port_in, reaching

        network = reaching(network, port_in(plan))
    asks = bool(plan.asks)
    if not inside.decided.is_filtered or inside.network is None or not inside.network.has_gateway:
        if network == plan.network:
            return  # without a gateway the network cannot have changed
        why = f"it was opened with {plan.network}, and has no gateway"
    elif network.mode not in ("allow", "deny"):
        why = f"{network} does not go through the gateway that it has"
    elif network.is_inspected and inside.network.inspector is None:
        why = "it was opened without HTTP rules and secrets, so it has no HTTP inspector"
    elif not fits(network_spec(network), network_spec(plan.network, asks=asks)):
        why = "ports or networks are new, and are not routed inside"
    if why or inside.network is None:
        raise PolicyNotEnforceable(
            "the network of this sandbox cannot be changed so",
            why=why,
            fix="open it with an allow list that has these ports and HTTP rules, or with on_connect=; or "
            "open another one",
        )
    inside.network.change(network, plan.asks)


def has_port(inside: OpenSandbox, port: int) -> bool:
    """Whether a server inside listens on `port` of its loopback."""
    try:
        if not is_hosts(inside) and inside.network is not None:
            connect(inside, port).close()
            return True
    except (OSError, StaddleError):
        return False
    from socket import create_connection

    for address in ("127.0.0.1", "::1"):
        try:
            create_connection((address, port), _PATIENCE).close()
            return True
        except OSError:
            continue
    return False


def _reach(inside: OpenSandbox) -> SandboxNetwork:
    if inside.network is None:
        raise InvalidCall(
            "this sandbox accepts no connections",
            why=f"{inside.decided.enforced.backend} has no way into its network",
            fix="use the namespaces, bwrap or systemd backend",
        )
    return inside.network
