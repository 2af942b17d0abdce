"""The layer of a sandbox's home tree, made before the sandbox is asked for.

Run by a spare while it still sees the host: the layer lies in the host program's store, beside
the skeleton. The fork server chooses its name and sends it to the host program that takes the spare;
that program then uses or removes the layer.
"""

from __future__ import annotations

import os

from ...files.remove_tree import remove
from ...linux import overlay
from ...mounts.shared_view import BORROWED, OLD_ROOT
from .mount_swap import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.forkserver_messages import ForkServerConfig


def new_name(config: ForkServerConfig) -> bytes:
    """A name for a layer that no other has; empty when none is to be prewarmed."""
    return b"ahead-" + os.urandom(6).hex().encode() if config.skeleton else b""


def make(config: ForkServerConfig, name: bytes) -> None:
    """Make the layer, and mount the home tree with it."""
    path = _path(config, name)
    upper, work = f"{path}/upper", f"{path}/work"
    # By name, at every step: when the store is being removed, nothing more is made in it.
    os.mkdir(path, 0o700)
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o700)
    tree = overlay.overlay([f"{OLD_ROOT}{os.fsdecode(config.skeleton)}"], upper, work)
    try:
        show(tree, tuple(map(os.fsdecode, config.places)), BORROWED)
    finally:
        os.close(tree)


def take_back(config: ForkServerConfig, name: bytes) -> None:
    """Remove the layer of a spare that is not taken. Run by the fork server."""
    if name:
        remove((os.fsencode(_path(config, name)),))


def store_of(config: ForkServerConfig) -> bytes:
    """The directory of such layers: a path of the host."""
    return os.path.dirname(config.skeleton)


def _path(config: ForkServerConfig, name: bytes) -> str:
    return f"{OLD_ROOT}{os.fsdecode(store_of(config))}/{os.fsdecode(name)}"
