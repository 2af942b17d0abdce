"""The mounts that a fork server makes: the shared part of the view once, and directories of each sandbox.

`make_template` moves the fork server into the shared part. Afterwards its root is the sandbox's, with the old
root aside. Workspaces are opened from there. As long as the host's /proc is visible there, the kernel allows
mounting a new /proc.

`take_all` opens or mounts the directories of one sandbox on the host: its workspace, and further trees of
layers. If the host program is root, it has opened the workspace for the fork server. The sandbox's first
process attaches the mounts, see `mount_swap`.
"""

from __future__ import annotations

import errno
import os

from ..ipc.descriptors import receive, send
from ..ipc.forkserver_messages import MAP, MAPPED, MOST_DESCRIPTORS, ROOT_OF_TEMPLATE
from ..linux import mounts, overlay, process, userns
from ..linux.openat2 import open_beneath
from ..linux.syscalls import call
from ..mounts.builder import Builder, place_for
from ..mounts.operations import Bind, decode_operations
from ..mounts.shared_view import ASIDE, BASE, BORROWED, OLD_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Sequence

    from ..ipc.forkserver_messages import ForkServerConfig, SandboxRequest


def make_template(config: ForkServerConfig, socket: _socket.socket) -> None:
    """Enter our own user namespace, at the root of the template."""
    _enter(config, socket)
    mounts.mount(None, "/", flags=mounts.MS_REC | mounts.MS_PRIVATE)
    operations = decode_operations(config.template)
    taken = _receive_trees(socket, operations) if config.base >= 0 else None
    place = place_for(operations)
    Builder(place, taken=taken).build(operations)
    os.chdir(place)
    call("pivot_root", b".", os.fsencode(OLD_ROOT[1:]))
    os.chdir("/")
    # Until a spare has its own.
    mounts.mount(f"{OLD_ROOT}/proc", "/proc", flags=mounts.MS_BIND | mounts.MS_REC)


def _enter(config: ForkServerConfig, socket: _socket.socket) -> None:
    """Enter a new user namespace, with every capability over it only; as root with unused ids."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", userns.CLONE_NEWUSER | mounts.CLONE_NEWNS)
    if config.base < 0:
        userns.map_ids(uid, gid, 0, 0)
        return
    send(socket, MAP)  # only a process outside may map ids that are not ours
    if socket.recv(16) != MAPPED:
        os._exit(1)
    process.become(0, 0)
    process.dumpable(True)  # the change of ids made us undumpable, and /proc/self root's


def _receive_trees(socket: _socket.socket, operations: tuple[object, ...]) -> dict[Bind, int | None]:
    """Receive the shared binds, because root's fork server may not open the host's files."""
    binds = [op for op in operations if isinstance(op, Bind) and not op.again]
    taken: dict[Bind, int | None] = {}
    while len(taken) < len(binds):
        present, trees = receive(socket, MOST_DESCRIPTORS)
        if not present:
            os._exit(1)
        for there in present:  # a byte for each: whether it exists
            taken[binds[len(taken)]] = trees.pop(0) if there else None
    return taken


class HostDirectories:
    """Directories of the host, by their paths there."""

    def __init__(self, config: ForkServerConfig, old_root: int) -> None:
        """Find the directories of a base in the template, if there is one."""
        self._old_root = old_root
        operations = decode_operations(config.template)
        bases = [op.outside for op in operations if isinstance(op, Bind) and op.path == BASE]
        self._base = os.fsencode(bases[0]) if bases else b""

    def open(self, path: bytes) -> int:
        """Open the directory at `path`."""
        if path == ROOT_OF_TEMPLATE:
            return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if not self._base or not path.startswith(self._base + b"/"):
            return open_beneath(self._old_root, os.fsdecode(path[1:]) or ".", os.O_PATH)
        place = os.open(BASE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return open_beneath(place, os.fsdecode(path[len(self._base) + 1 :]), os.O_PATH)
        finally:
            os.close(place)


class Moved(Exception):
    """Another directory is at this path: the host's mounts have changed since the fork server was started."""


def take_all(
    request: SandboxRequest, host: HostDirectories, borrowed: list[int], is_volatile: Callable[[bytes], bool]
) -> list[int]:
    """Return the requested detached mounts: the workspace first, then further trees.

    `is_volatile` tells whether a layer need not survive a crash of the machine. Removes the descriptors that
    it uses from `borrowed`, which root has opened.
    """
    found: list[int] = []
    try:
        if request.workspace:
            tree = borrowed.pop(0) if borrowed else None
            if request.upper:
                base = _found(request, host) if tree is None else tree
                above = (request.upper, request.work, is_volatile(request.upper))
                found.append(_layered(above, request.lowers, base, host, tree))
            else:
                found.append(_taken(request, host) if tree is None else tree)
        for _, upper, work, lowers in request.trees:
            above = (upper, work, is_volatile(upper))
            found.append(_layered(above, lowers.split(b"\0"), None, host, None))
        return found
    except BaseException:
        for fd in found:
            os.close(fd)
        raise


def _layered(
    top: tuple[bytes, bytes, bool],
    lowers: Sequence[bytes],
    base: int | None,
    host: HostDirectories,
    borrowed: int | None,
) -> int:
    """Return an overlay of layers of the host, and of `base` below them, which is closed.

    `top` is the upper and the work directory, and whether it is volatile.
    """
    upper, work, volatile = top
    opened = [] if base is None else [base]
    try:
        for path in (*lowers, upper, work):
            opened.append(host.open(path))
        *below, above, aside = opened if base is None else [*opened[1:-2], base, *opened[-2:]]
        if borrowed is None:
            return overlay.overlay(below, above, aside, volatile=volatile)
        # A layer must be mounted somewhere in our namespace.
        return _mounted_for(
            borrowed, lambda: overlay.overlay([*below[:-1], BORROWED], above, aside, volatile=volatile)
        )
    finally:
        for fd in opened:
            os.close(fd)


def _mounted_for(tree: int, work: Callable[[], int]) -> int:
    """Run `work` while `tree` is mounted at BORROWED. It stays there until `tidy`, or the next call."""
    tidy()
    place = os.open(BORROWED, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounts.attach(tree, place)
    finally:
        os.close(place)
    return work()


def tidy() -> None:
    """Unmount BORROWED. Slow: the kernel waits for every processor."""
    if os.stat(BORROWED).st_dev != os.stat(ASIDE).st_dev:
        mounts.umount(BORROWED)


def _found(request: SandboxRequest, host: HostDirectories) -> int:
    """Open the workspace on the host. Moved if it is another directory now."""
    try:
        source = host.open(request.workspace)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
            raise Moved from None
        raise
    status = os.fstat(source)
    if (status.st_dev, status.st_ino) != (request.device, request.inode):
        os.close(source)
        raise Moved
    return source


def _taken(request: SandboxRequest, host: HostDirectories) -> int:
    """Clone the workspace's mount, read-only unless it is granted for writing."""
    source = _found(request, host)
    try:
        tree = mounts.clone_tree(source)
    finally:
        os.close(source)
    try:
        writable = any(isinstance(op, Bind) and op.writable for op in request.operations()[:1])
        read_only = 0 if writable and not request.upper else mounts.ATTR_RDONLY
        mounts.set_attributes(tree, mounts.ATTR_NOSUID | mounts.ATTR_NODEV | read_only)
    except BaseException:
        os.close(tree)
        raise
    return tree
