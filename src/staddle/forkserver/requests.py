"""Make requests to a fork server: the workspace, its layers, and mounts opened for it by root."""

from __future__ import annotations

import os
from functools import lru_cache

from .._value import Value
from ..ipc import forkserver_messages as records
from ..linux import idmaps
from ..mounts import rows
from ..mounts.builder import not_built, take
from ..mounts.host import open_named
from ..mounts.operations import Bind
from ..policy.paths import WORKSPACE_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..mounts.operations import Operation
    from ..mounts.rows import Row


class OverlayDirs(Value):
    """The directories of one overlay mount: paths of the host, lower ones topmost first.

    Of a workspace the lowest one, the directory itself, is not among them.
    """

    upper: str
    work: str
    lowers: tuple[str, ...] = ()


def in_order(roots: Iterable[str]) -> tuple[str, ...]:
    """The roots of trees in the order in which a fork server makes them."""
    return tuple(sorted(roots, key=lambda root: root != WORKSPACE_PATH))


def request(
    view: Sequence[Operation],
    layers: OverlayDirs | None,
    others: Mapping[str, OverlayDirs],
) -> records.SandboxRequest:
    """The request for a sandbox, with a workspace or without one."""
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
        return records.SandboxRequest(b"", 0, 0, b"", b"", (), (), trees=trees)
    place = view[0]
    if not isinstance(place, Bind):
        raise TypeError("a workspace begins with what is shown")
    device, inode = _found(place.outside)
    return records.SandboxRequest(
        os.fsencode(place.outside),
        device,
        inode,
        os.fsencode(layers.upper) if layers else b"",
        os.fsencode(layers.work) if layers else b"",
        _encoded(layers.lowers) if layers else (),
        _rows(tuple(view), layers is not None),
        trees=trees,
    )


def borrowed(view: Sequence[Operation], config: records.ForkServerConfig) -> list[int]:
    """Open the workspace for root's fork server, which cannot. The caller closes the descriptors."""
    if config.base < 0 or not view or not isinstance(view[0], Bind):
        return []
    borrowed = taken_as_root(view[0], config)
    return [] if borrowed is None else [borrowed]


def taken_as_root(operation: Bind, config: records.ForkServerConfig) -> int | None:
    """Open the source of a bind with its owner mapped to the sandbox's user. Run by root's host program."""
    unprivileged_uid = config.base + config.whose
    try:
        return take(
            operation, lambda owner, group: idmaps.translation(owner, group, unprivileged_uid), private=True
        )
    except OSError as error:
        raise not_built(f"{operation.outside!r}: {error.strerror or error}") from error


def _found(path: str) -> tuple[int, int]:
    """Device and inode of the directory at `path`."""
    source = open_named(path)
    try:
        status = os.fstat(source)
        return status.st_dev, status.st_ino
    finally:
        os.close(source)


@lru_cache(maxsize=64)
def _rows(view: tuple[Operation, ...], writable: bool) -> tuple[Row, ...]:
    """The operations of a workspace as rows; the first one shows it, `writable` if it is layered."""
    place, *rest = view
    if writable:
        place = place.replace(writable=True)
    return rows.encoded((place, *rest))


def _encoded(paths: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(map(os.fsencode, paths))
