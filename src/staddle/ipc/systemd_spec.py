"""What the two ends of the systemd backend are to do, as bytes in a memory file. Pure.

One file serves both: the client outside the unit reads how to start it and hands the file
on; the process inside reads what to make around the command. Neither a path nor a variable
of the policy is ever in a unit property or on a command line.
"""

from __future__ import annotations

from . import namespace_spec, wire
from .namespace_spec import Surroundings
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Shape

MAGIC = b"staddle-unit-orders-1\n"


class Orders(Surroundings):
    """One confined start by way of a service manager."""

    #: The systemd-run command, whole; and the variables it needs to find the manager.
    starter: tuple[bytes, ...] = ()
    starter_environment: tuple[bytes, ...] = ()
    #: (file, most): what the unit's control group must say at most.
    bounds: tuple[tuple[bytes, int], ...] = ()


_SHAPES: dict[str, Shape] = {
    **namespace_spec.SHAPES,
    "starter": [bytes],
    "starter_environment": [bytes],
    "bounds": [(bytes, int)],
}


def encode(orders: Orders) -> bytes:
    """The bytes for the memory file. Raises Malformed for what decode would refuse."""
    _check(orders)
    return wire.encode(MAGIC, tuple(getattr(orders, name) for name in _SHAPES))


def decode(data: bytes) -> Orders:
    """The orders in `data`, or Malformed."""
    orders = Orders(*wire.decode(MAGIC, data, len(_SHAPES)))
    _check(orders)
    return orders


def _check(orders: Orders) -> None:
    namespace_spec.check(orders, _SHAPES)
    if not orders.starter or not orders.starter[0].startswith(b"/"):
        raise Malformed("there is nothing to start the unit with")
