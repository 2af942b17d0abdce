"""Whether what a connection says first agrees with where it goes. Pure."""

from __future__ import annotations

from .rules import refused_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...policy.network import Network
    from .sniff import Seen


def objection(seen: Seen, name: str | None, network: Network) -> str:
    """Why it does not; empty when it does. `name` is what was asked for, None where it was an address."""
    if seen.protocol == "other" and not seen.problem:
        return ""
    what = "TLS" if seen.protocol == "tls" else "HTTP"
    if seen.name is not None:
        rule = refused_name(seen.name, network)
        if rule is not None:
            return f"{what} names {seen.name}, refused by {rule}"
    if name is None:
        return ""  # the address itself is allowed, whatever is spoken with it
    if seen.problem:
        return f"{what}: {seen.problem}"
    if seen.name is None:
        return f"{what} does not say which host it is for"
    return "" if seen.name == name else f"{what} is for {seen.name}, not for {name}"
