"""What the two ends of the systemd backend are to do, as bytes in a memory file. Pure.

One file serves both: the client outside the unit reads how to start it and hands the file
on; the process inside reads how to build the view, and passes `command` to the step that
confines and execs. Neither a path nor a variable of the policy is ever in a unit property or
on a command line.
"""

from __future__ import annotations

from .._value import Value
from ..layout.rows import decoded
from . import wire
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..layout.operations import Operation
    from ..layout.rows import Row
    from .wire import Shape

MAGIC = b"staddle-unit-orders-1\n"


class Orders(Value):
    """One confined start by way of a service manager."""

    #: The systemd-run command, whole; and the variables it needs to find the manager.
    starter: tuple[bytes, ...]
    starter_environment: tuple[bytes, ...]
    #: The descriptor on which the client tells a failure, and the process that asked for all this.
    status: int
    launcher: int
    #: The operations that make the view, as `layout.rows` has them.
    view: tuple[Row, ...]
    #: Who the command is inside, and the machine's name there.
    uid: int
    gid: int
    host: bytes
    #: An id that nobody has, to become in the place of root; -1 where we are nobody special anyway.
    stranger: int
    #: (name, inode) of the namespaces that the unit must not be in.
    foreign: tuple[tuple[bytes, int], ...]
    #: (file, most): what the unit's control group must say at most.
    bounds: tuple[tuple[bytes, int], ...]
    #: `Instructions`, encoded.
    command: bytes

    def operations(self) -> tuple[Operation, ...]:
        """The operations that make the view."""
        return decoded(self.view)


_SHAPES: dict[str, Shape] = {
    "starter": [bytes],
    "starter_environment": [bytes],
    "status": int,
    "launcher": int,
    "view": [(bytes, bytes, int, int, int, bytes)],
    "uid": int,
    "gid": int,
    "host": bytes,
    "stranger": int,
    "foreign": [(bytes, int)],
    "bounds": [(bytes, int)],
    "command": bytes,
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
    wire.check(orders, _SHAPES)
    if not orders.starter or not orders.starter[0].startswith(b"/"):
        raise Malformed("there is nothing to start the unit with")
    try:
        orders.operations()
    except ValueError as error:
        raise Malformed(str(error)) from None
