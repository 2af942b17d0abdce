"""The zygote makes the part of the view that all its sandboxes share, once, and moves into it.

Afterwards its root is the sandbox's, with the old root aside: from there workspaces are taken,
and as long as the host's /proc can be seen there, the kernel lets a new one be mounted.
"""

from __future__ import annotations

import os

from ..ipc.descriptors import receive, send
from ..ipc.forkserver_messages import MAP, MAPPED, MOST_DESCRIPTORS
from ..linux import mounts, process, userns
from ..linux.syscalls import call
from ..mounts.building import Builder, place_for
from ..mounts.operations import Bind
from ..mounts.rows import decoded
from ..mounts.shared_view import OLD_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from ..ipc.forkserver_messages import Blueprint


def make(blueprint: Blueprint, line: _socket.socket) -> None:
    """Be in a user namespace of our own, at the root of the template."""
    _enter(blueprint, line)
    mounts.mount(None, "/", flags=mounts.MS_REC | mounts.MS_PRIVATE)
    operations = decoded(blueprint.template)
    taken = _receive_trees(line, operations) if blueprint.base >= 0 else None
    place = place_for(operations)
    Builder(place, taken=taken).build(operations)
    os.chdir(place)
    call("pivot_root", b".", os.fsencode(OLD_ROOT[1:]))
    os.chdir("/")
    mounts.mount(
        f"{OLD_ROOT}/proc", "/proc", flags=mounts.MS_BIND | mounts.MS_REC
    )  # until a spare has its own


def _enter(blueprint: Blueprint, line: _socket.socket) -> None:
    """Have every capability, over nothing but what we make: as root, by ids that nobody has."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", userns.CLONE_NEWUSER | mounts.CLONE_NEWNS)
    if blueprint.base < 0:
        userns.map_ids(uid, gid, 0, 0)
        return
    send(line, MAP)  # only somebody outside may map ids that are not ours
    if line.recv(16) != MAPPED:
        os._exit(1)
    process.become(0, 0)
    process.dumpable(True)  # changing ids took /proc/self away from us


def _receive_trees(line: _socket.socket, operations: tuple[object, ...]) -> dict[Bind, int | None]:
    """Root's zygote is a stranger to the host's files: what is shown is opened for it."""
    binds = [op for op in operations if isinstance(op, Bind) and not op.again]
    taken: dict[Bind, int | None] = {}
    while len(taken) < len(binds):
        present, trees = receive(line, MOST_DESCRIPTORS)
        if not present:
            os._exit(1)
        for there in present:  # a byte for each: whether it is there
            taken[binds[len(taken)]] = trees.pop(0) if there else None
    return taken
