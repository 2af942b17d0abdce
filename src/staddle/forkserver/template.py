"""Make the part of the view that all sandboxes of a fork server share, once, and move into it.

Run by the fork server. Afterwards its root is the sandbox's, with the old root aside: from there
workspaces are opened, and as long as the host's /proc can be seen there, the kernel lets a new one be
mounted.
"""

from __future__ import annotations

import os

from ..ipc.descriptors import receive, send
from ..ipc.forkserver_messages import MAP, MAPPED, MOST_DESCRIPTORS
from ..linux import mounts, process, userns
from ..linux.syscalls import call
from ..mounts.builder import Builder, place_for
from ..mounts.operations import Bind
from ..mounts.rows import decoded
from ..mounts.shared_view import OLD_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from ..ipc.forkserver_messages import ForkServerConfig


def make(config: ForkServerConfig, socket: _socket.socket) -> None:
    """Be in a user namespace of our own, at the root of the template."""
    _enter(config, socket)
    mounts.mount(None, "/", flags=mounts.MS_REC | mounts.MS_PRIVATE)
    operations = decoded(config.template)
    taken = _receive_trees(socket, operations) if config.base >= 0 else None
    place = place_for(operations)
    Builder(place, taken=taken).build(operations)
    os.chdir(place)
    call("pivot_root", b".", os.fsencode(OLD_ROOT[1:]))
    os.chdir("/")
    mounts.mount(
        f"{OLD_ROOT}/proc", "/proc", flags=mounts.MS_BIND | mounts.MS_REC
    )  # until a spare has its own


def _enter(config: ForkServerConfig, socket: _socket.socket) -> None:
    """Enter a new user namespace with every capability over it and no other; as root with unused ids."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", userns.CLONE_NEWUSER | mounts.CLONE_NEWNS)
    if config.base < 0:
        userns.map_ids(uid, gid, 0, 0)
        return
    send(socket, MAP)  # only a process outside may map ids that are not ours
    if socket.recv(16) != MAPPED:
        os._exit(1)
    process.become(0, 0)
    process.dumpable(True)  # changing ids took /proc/self away from us


def _receive_trees(socket: _socket.socket, operations: tuple[object, ...]) -> dict[Bind, int | None]:
    """Receive the shared binds: root's fork server may not open the host's files."""
    binds = [op for op in operations if isinstance(op, Bind) and not op.again]
    taken: dict[Bind, int | None] = {}
    while len(taken) < len(binds):
        present, trees = receive(socket, MOST_DESCRIPTORS)
        if not present:
            os._exit(1)
        for there in present:  # a byte for each: whether it is there
            taken[binds[len(taken)]] = trees.pop(0) if there else None
    return taken
