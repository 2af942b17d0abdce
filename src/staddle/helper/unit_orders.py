"""What the two ends of the systemd backend are to do, as bytes in a memory file. Pure.

One file serves both: the client outside the unit reads how to start it and hands the file
on; the process inside reads how to build the view, and passes `command` to the step that
confines and execs. Neither a path nor a variable of the policy is ever in a unit property or
on a command line.
"""

from __future__ import annotations

from .._value import Value
from .instructions import Malformed, _fits, _read, _write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"staddle-unit-orders-1\n"

#: Operations on the view, in the words of `backends.bwrap.operations`.
BIND, EMPTY, MASK, FILE, LINK, DEVICES, PROCESSES, SEAL = (
    *(b"bind", b"empty", b"mask", b"file"),
    *(b"link", b"devices", b"processes", b"seal"),
)
KINDS = frozenset({BIND, EMPTY, MASK, FILE, LINK, DEVICES, PROCESSES, SEAL})
#: Flags of an operation.
WRITABLE, BELOW, AGAIN, OPTIONAL, TRANSLATED = 1, 2, 4, 8, 16


class Orders(Value):
    """One confined start by way of a service manager."""

    #: The systemd-run command, whole; and the variables it needs to find the manager.
    starter: tuple[bytes, ...]
    starter_environment: tuple[bytes, ...]
    #: The descriptor on which the client tells a failure, and the process that asked for all this.
    status: int
    launcher: int
    #: (kind, path, flags, mode, size, data): mode and size for EMPTY, data for FILE (its content)
    #: and LINK (its target).
    view: tuple[tuple[bytes, bytes, int, int, int, bytes], ...]
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


_SHAPES: dict[str, Any] = {
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
    out = [MAGIC]
    _write(tuple(getattr(orders, name) for name in _SHAPES), out)
    return b"".join(out)


def decode(data: bytes) -> Orders:
    """The orders in `data`, or Malformed."""
    import struct

    if not data.startswith(MAGIC):
        raise Malformed("they do not begin as orders do")
    try:
        values, end = _read(data, len(MAGIC), depth=0)
    except (struct.error, IndexError) as error:
        raise Malformed("they are cut short") from error
    if end != len(data) or not isinstance(values, tuple) or len(values) != len(_SHAPES):
        raise Malformed("they have too few or too many fields")
    orders = Orders(*values)
    _check(orders)
    return orders


def _check(orders: Orders) -> None:
    for name, shape in _SHAPES.items():
        if not _fits(getattr(orders, name), shape):
            raise Malformed(f"{name} is not what it should be")
    if not orders.starter or not orders.starter[0].startswith(b"/"):
        raise Malformed("there is nothing to start the unit with")
    for kind, path, *_ in orders.view:
        if kind not in KINDS or not path.startswith(b"/") or b"\0" in path:
            raise Malformed(f"there is no operation {kind!r} at {path!r}")
