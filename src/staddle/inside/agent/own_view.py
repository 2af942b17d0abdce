"""Make the part of the view that is one sandbox's own: /proc, terminals, private directories, control files.

Done by a child of the sandbox's first process, in the same namespaces and with the same rights,
which ends afterwards. The memory that it has copied is freed with it; the first process would have
kept some hundred kilobytes of that for the sandbox's whole life.
"""

from __future__ import annotations

import _socket
import os

from ...errors import LaunchFailed
from ...ipc.descriptors import receive, send
from ...ipc.reasons import reason
from ...linux import mounts
from ...linux.syscalls import call
from ...mounts.builder import Builder, mount_processes
from ...mounts.rows import decoded
from ...mounts.shared_view import ASIDE, CONTROL, OLD_PROCESSES
from ..child import live
from . import home_layers, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ...ipc.forkserver_messages import ForkServerConfig

_DONE = b"!"
_LONGEST = 4096
_CONTROL_SIZE = 64 << 20


def made(config: ForkServerConfig, outside: verify.Outside, layer: bytes) -> int:
    """Have it made and verified; the directory of the control files. Raises LaunchFailed or OSError."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        _live(theirs, config, outside, layer)
    theirs.close()
    try:
        said, found = receive(ours, _LONGEST)
    finally:
        ours.close()
        os.waitpid(child, 0)
    if said != _DONE or len(found) != 1:
        raise LaunchFailed(said.decode("utf-8", "replace") or "its view was not made")
    return found[0]


def _live(
    socket: _socket.socket, config: ForkServerConfig, outside: verify.Outside, layer: bytes
) -> NoReturn:
    """Be the child: make it, verify it, and send the directory of the control files."""
    doing = "while its own part of the view was made"

    def work() -> int:
        nonlocal doing
        control = _make(config, layer)
        doing = "at a last look"
        verify.around(config, outside)
        send(socket, _DONE, (control,))
        return 0

    def failed(error: BaseException) -> int:
        send(socket, reason(error, doing))
        return 1

    live(work, failed)


def _make(config: ForkServerConfig, layer: bytes) -> int:
    _set_aside("/proc", OLD_PROCESSES)
    mount_processes("/proc")
    if layer:
        home_layers.make(config, layer)
    Builder.extending("/", owner=config.whose).build(decoded(config.own))
    quiet = mounts.MS_NOSUID | mounts.MS_NOEXEC
    mounts.mount("devpts", "/dev/pts", "devpts", flags=quiet, options="newinstance,ptmxmode=0666,mode=620")
    # With it goes the old root: from here on nothing of the host can be reached. All at once, since
    # the kernel waits for every processor before it lets go of a mount.
    mounts.umount(ASIDE)
    control = _control()
    call("sethostname", config.host, len(config.host))
    return control


def _set_aside(mounted: str, place: str) -> None:
    """Move a mount to a place that is unmounted with all that is in it."""
    opened = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in (mounted, place)]
    try:
        mounts.attach(*opened)
    finally:
        for fd in opened:
            os.close(fd)


def _control() -> int:
    """The control files: ours to write; inside they can only be read, or written as pipes."""
    options = f"mode=0755,size={_CONTROL_SIZE}"
    plain = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount("tmpfs", CONTROL, "tmpfs", flags=plain, options=options)
    control = os.open(CONTROL, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    cover = mounts.clone_tree(control)
    try:
        mounts.set_attributes(cover, mounts.ATTR_RDONLY)
        mounts.attach(cover, control)
    finally:
        os.close(cover)
    return control
