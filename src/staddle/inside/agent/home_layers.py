"""The layer of a sandbox's world, made before anybody asks for the sandbox.

Run by a spare while it still sees the host: the layer lies in the host program's store, beside
the skeleton. The zygote chooses its name, and says it to whoever takes the spare; the layer is
that program's then, to be used or to be removed.
"""

from __future__ import annotations

import os

from ...files.remove_tree import remove
from ...linux import overlay
from ...mounts.shared_view import LENT, OLD_ROOT
from .mount_swap import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.forkserver_messages import Blueprint


def new_name(blueprint: Blueprint) -> bytes:
    """A name for a layer that no other has; empty when none is to be made ahead."""
    return b"ahead-" + os.urandom(6).hex().encode() if blueprint.skeleton else b""


def make(blueprint: Blueprint, name: bytes) -> None:
    """Make the layer, and show the world with it."""
    path = _path(blueprint, name)
    upper, work = f"{path}/upper", f"{path}/work"
    # By name, at every step: when the store is being removed, nothing more is made in it.
    os.mkdir(path, 0o700)
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o700)
    tree = overlay.overlay([f"{OLD_ROOT}{os.fsdecode(blueprint.skeleton)}"], upper, work)
    try:
        show(tree, tuple(map(os.fsdecode, blueprint.places)), LENT)
    finally:
        os.close(tree)


def take_back(blueprint: Blueprint, name: bytes) -> None:
    """Remove the layer of a spare that nobody gets. Run by the zygote."""
    if name:
        remove((os.fsencode(_path(blueprint, name)),))


def store_of(blueprint: Blueprint) -> bytes:
    """Where such layers lie: a path of the host."""
    return os.path.dirname(blueprint.skeleton)


def _path(blueprint: Blueprint, name: bytes) -> str:
    return f"{OLD_ROOT}{os.fsdecode(store_of(blueprint))}/{os.fsdecode(name)}"
