"""Whether a sandbox has to work in a copy of its workspace, instead of in layers on it."""

from __future__ import annotations

import os

from ... import backends
from ...enforcement import Gap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..open.settings import Settings

#: The backend that mounts layers.
LAYERED = "namespaces"
MAY_BE_LAYERED = ("auto", LAYERED)
#: Whether a file system can show its files as another's: by device.
_TRANSLATES: dict[int, bool] = {}


def copies(asked: Settings, name: str) -> bool:
    """Whether the workspace has to be copied on the backend `name`."""
    if asked.mode != "overlay" or asked.workspace is None or asked.keep is not None:
        return False
    if name not in MAY_BE_LAYERED or not backends.get(LAYERED).probe().usable:
        return True
    return os.geteuid() == 0 and not _translates(asked.workspace)


def _translates(workspace: str) -> bool:
    """Root's sandbox is not root: what it is to change must be shown as its own."""
    device = os.stat(workspace).st_dev
    if device not in _TRANSLATES:
        from ...linux.idmaps import unused_ids_here
        from ...mounts.owners import untranslatable

        _TRANSLATES[device] = not untranslatable(workspace, unused_ids_here()[0])
    return _TRANSLATES[device]


def told(backend: str) -> Gap:
    """How `enforced` says it."""
    why, fix = f"{backend} has no layers", f"use the {LAYERED} backend"
    if backend == LAYERED:
        why = "the file system of the workspace cannot show root's files as somebody else's"
        fix = "use a directory on ext4, xfs, btrfs or tmpfs, or do not be root"
    why += ": the workspace is a copy, and whatever is done with it copies"
    return Gap("layers", why, fix, documented=True)
