"""The view of a command: a fresh root with only what the plan names. Run by the sandbox's first process.

It runs in a private copy of the host's mounts, with the right to mount there: as root, or as an
ordinary user in a user namespace.
"""

from __future__ import annotations

import os

from ..errors import StaddleError
from ..ipc.status import CONFINEMENT, NotStarted
from ..linux import mounts
from ..linux.syscalls import call
from ..mounts.builder import Builder, place_for
from ..mounts.host import needs_translation
from ..mounts.operations import Bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..mounts.operations import Operation


def translations(operations: Sequence[Operation], unprivileged_uid: int) -> dict[tuple[int, int], int]:
    """As root: user namespaces that show the owners of granted trees as the unused id we become."""
    from ..linux import idmaps

    made: dict[tuple[int, int], int] = {}
    for operation in operations:
        if not isinstance(operation, Bind) or operation.again:
            continue
        if needs_translation(operation.outside, operation.writable):
            try:
                status = os.lstat(operation.outside)
            except FileNotFoundError:
                continue  # optional, or refused when it is to be shown
            owner = (status.st_uid, status.st_gid)
            if owner not in made:
                made[owner] = idmaps.translation(*owner, unprivileged_uid)
    return made


def enter(operations: Sequence[Operation], owner: int, translated: Mapping[tuple[int, int], int]) -> None:
    """Make the new root and move into it; nothing of the old one can be reached afterwards.

    `owner` owns the empty directories (-1: our own id), and is whom `translated` show, by owner and group.
    """
    try:
        place = place_for(operations)
        Builder(
            place,
            owner=owner,
            translation=(lambda *whose: translated.get(whose)) if owner >= 0 else None,
        ).build(operations)
    except StaddleError as error:
        raise NotStarted(CONFINEMENT, str(error)) from None
    # "." twice: the old root ends up on top of the new one, and is taken off at once.
    os.chdir(place)
    call("pivot_root", b".", b".")
    mounts.umount(".")
    os.chdir("/")
