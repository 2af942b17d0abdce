"""The next sandbox for a directory, made ahead while nobody waits."""

from __future__ import annotations

import os

from ...errors import LayerError
from ...forkserver.requests import OverlayDirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...forkserver.client import SandboxProcess
    from ...layers.stack import Stack


def fingerprint_of(directory: str) -> bytes:
    """What the root of a workspace takes over from the directory: a sandbox made ahead has it from before."""
    status = os.stat(directory)
    return b"%d %d %d %d" % (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)


def make_next(taken: SandboxProcess, stack: Stack) -> None:
    """Have the next sandbox for the same directory made ahead, if there are such. Never raises."""
    place = stack.bases[0]
    if not taken.is_usual:
        return
    try:
        fingerprint = fingerprint_of(place)
        layer = stack.store.layer(like=place).hold()
        if fingerprint == fingerprint_of(place):
            taken.make_next(OverlayDirs(layer.upper, layer.work), fingerprint, layer.drop)
        else:
            layer.drop()
        stack.store.make_ahead()  # in place of that one
    except (OSError, LayerError):
        pass  # whoever opens it is told
