"""What the host program asks a zygote for: the workspace, its layers, and what is lent with that."""

from __future__ import annotations

import os
from functools import lru_cache

from .._value import Value
from ..ipc import forkserver_messages as records
from ..linux import idmaps
from ..mounts import rows
from ..mounts.building import not_built, take
from ..mounts.host import open_named
from ..mounts.operations import Bind
from ..policy.workspace import PLACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..mounts.operations import Operation
    from ..mounts.rows import Row


class Layers(Value):
    """Where the changes to a tree go: paths of the host, the layers below topmost first.

    Of a workspace the lowest layer, the directory itself, is not among them.
    """

    upper: str
    work: str
    lowers: tuple[str, ...] = ()


def in_order(roots: Iterable[str]) -> tuple[str, ...]:
    """The roots of trees in the order in which a zygote makes them."""
    return tuple(sorted(roots, key=lambda root: root != PLACE))


def request(
    view: Sequence[Operation],
    layers: Layers | None,
    others: Mapping[str, Layers],
) -> records.Request:
    """What is asked for, with a workspace or without one."""
    trees = tuple(
        (
            os.fsencode(root),
            os.fsencode(tree.upper),
            os.fsencode(tree.work),
            b"\0".join(_encoded(tree.lowers)),
        )
        for root, tree in others.items()
    )
    if not view:
        return records.Request(b"", 0, 0, b"", b"", (), (), trees=trees)
    place = view[0]
    if not isinstance(place, Bind):
        raise TypeError("a workspace begins with what is shown")
    device, inode = _found(place.outside)
    return records.Request(
        os.fsencode(place.outside),
        device,
        inode,
        os.fsencode(layers.upper) if layers else b"",
        os.fsencode(layers.work) if layers else b"",
        _encoded(layers.lowers) if layers else (),
        _rows(tuple(view), layers is not None),
        trees=trees,
    )


def lent(view: Sequence[Operation], blueprint: records.Blueprint) -> list[int]:
    """The descriptors that must come with it, to be closed: root's zygote is a stranger to the workspace."""
    if blueprint.base < 0 or not view or not isinstance(view[0], Bind):
        return []
    lent = taken_as_root(view[0], blueprint)
    return [] if lent is None else [lent]


def taken_as_root(operation: Bind, blueprint: records.Blueprint) -> int | None:
    """What a grant names, as root's sandbox is to see it."""
    stranger = blueprint.base + blueprint.whose
    try:
        return take(operation, lambda owner, group: idmaps.translation(owner, group, stranger), private=True)
    except OSError as error:
        raise not_built(f"{operation.outside!r}: {error.strerror or error}") from error


def _found(path: str) -> tuple[int, int]:
    """What is there: its device and its inode."""
    source = open_named(path)
    try:
        status = os.fstat(source)
        return status.st_dev, status.st_ino
    finally:
        os.close(source)


@lru_cache(maxsize=64)
def _rows(view: tuple[Operation, ...], writable: bool) -> tuple[Row, ...]:
    """The operations of a workspace, the first of which shows it: in layers that can be `writable`."""
    place, *rest = view
    if writable:
        place = place.replace(writable=True)
    return rows.encoded((place, *rest))


def _encoded(paths: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(map(os.fsencode, paths))
