"""The view of a command that systemd started for us: a fresh root with what the plan names.

Runs as the first process of the new namespaces, in a copy of the host's mounts that nobody
else sees, with the right to mount there: as root, or as an ordinary user in a user namespace.
The manager could bind paths too, but by name and through links, not all names, and a thousand
of them in twenty seconds.
"""

from __future__ import annotations

import os

from ..errors import StaddleError
from ..layout.building import Builder, place_for
from ..linux import mounts
from ..linux.syscalls import call
from .status import CONFINEMENT, NotStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..layout.operations import Operation


def build(operations: Sequence[Operation], owner: int, translations: Mapping[tuple[int, int], int]) -> None:
    """Make the new root and move into it; nothing of the old one can be reached afterwards.

    `owner` has the empty directories (-1: whoever we are), and is whom `translations` show, by
    owner and group.
    """
    try:
        place = place_for(operations)
        Builder(
            place,
            owner=owner,
            translation=(lambda *whose: translations.get(whose)) if owner >= 0 else None,
        ).build(operations)
    except StaddleError as error:
        raise NotStarted(CONFINEMENT, str(error)) from None
    # "." twice: the old root ends up on top of the new one, and is taken off at once.
    os.chdir(place)
    call("pivot_root", b".", b".")
    mounts.umount(".")
    os.chdir("/")
