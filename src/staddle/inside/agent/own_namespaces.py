"""Set up the namespaces of one sandbox: its part of the view, its home layer, its network.

A child of the sandbox's first process makes the view (/proc, terminals, private directories, control files),
in the same namespaces and with the same rights, and then exits. The memory that it copied is freed with it.
The first process would have kept some hundred kilobytes of it for the sandbox's whole life.
"""

from __future__ import annotations

import _socket
import os

from ...errors import LaunchFailed
from ...files.remove_tree import remove
from ...ipc import namespace_spec
from ...ipc.wire import reason, receive, send
from ...linux import mounts, netlink, overlay
from ...linux.syscalls import call
from ...mounts.builder import Builder, mount_processes, outer_processes
from ...mounts.operations import decode_operations
from ...mounts.shared_view import ASIDE, BORROWED, CONTROL, OLD_PROCESSES, OLD_ROOT
from ...network.namespace import setup, socket_handoff
from ..child import live
from . import verify
from .mount_swap import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ...ipc.forkserver_messages import ForkServerConfig
    from ...ipc.namespace_spec import NetworkRow

_DONE = b"!"
_LONGEST = 4096
_CONTROL_SIZE = 64 << 20
#: Layers below this path are in memory and never written to a disk.
IN_MEMORY = b"/dev/shm/"


def made(config: ForkServerConfig, outside: verify.Outside, layer: bytes) -> int:
    """Make and verify the view; return the directory of the control files. Raises LaunchFailed or OSError."""
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
        raise LaunchFailed(
            said.decode("utf-8", "replace") or "its view was not made",
            why="a step of the setup failed inside",
            fix="`staddle doctor` tries what this host can do",
        )
    return found[0]


def _live(
    socket: _socket.socket, config: ForkServerConfig, outside: verify.Outside, layer: bytes
) -> NoReturn:
    """Be the child: make the view, verify it, and send the directory of the control files."""
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
    if config.outer_processes:
        _attach_processes()
    else:
        # Every process is listed, so `ps` and `pgrep` find root's processes. Ours show no path of the host.
        mount_processes("/proc", options="")
    if not config.network:
        setup.allow_low_ports()
    if layer:
        make_layer(config, layer)
    Builder.extending("/", owner=config.whose).build(decode_operations(config.own))
    quiet = mounts.MS_NOSUID | mounts.MS_NOEXEC
    mounts.mount("devpts", "/dev/pts", "devpts", flags=quiet, options="newinstance,ptmxmode=0666,mode=620")
    # This also unmounts the old root: from here on, nothing of the host can be reached. All at once, because
    # the kernel waits for every processor at each unmount.
    mounts.umount(ASIDE)
    control = _control()
    if config.host:
        call("sethostname", config.host, len(config.host))
    return control


def _set_aside(mounted: str, place: str) -> None:
    """Move a mount to a place that is unmounted with everything in it."""
    opened = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in (mounted, place)]
    try:
        mounts.attach(*opened)
    finally:
        for fd in opened:
            os.close(fd)


def _attach_processes() -> None:
    """Show the /proc of the outer container read-only; the one that is aside is writable."""
    tree = outer_processes(OLD_PROCESSES)
    place = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounts.attach(tree, place)
    finally:
        os.close(place)
        os.close(tree)


def _control() -> int:
    """Mount the control files: we can write them; inside they are read-only, except for pipes."""
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


class AgentNetwork:
    """Sockets of the sandbox's network namespace. Needs CAP_NET_ADMIN over it."""

    def __init__(self, rows: tuple[NetworkRow, ...]) -> None:
        """Bring loopback up, and create whatever else the policy needs."""
        self._ready: socket_handoff.PreparedSockets | None = None
        self._rows = rows
        if rows:
            self._ready = ready = setup.prepare(namespace_spec.decoded(rows))
            self._kind = ready.redirects, ready.tells, ready.v6
        else:  # the usual case, with little code: it stays in every sandbox's memory
            netlink.loopback_up()

    def hand_over(self, socket: int) -> None:
        """Send the prepared sockets to the other end, once."""
        ready, self._ready = self._ready, None
        if ready is not None:
            socket_handoff.hand_over(socket, ready)

    def answer(self, socket: int, wish: bytes) -> None:
        """Serve a request of the host program: a connection to a server inside, or more sockets."""
        if socket_handoff.is_forward_request(wish):
            socket_handoff.answer(socket, wish, self._make_again)

    def _make_again(self) -> socket_handoff.PreparedSockets | None:
        """Make the sockets again that were closed when their gateway was killed."""
        if not self._rows:
            return None
        redirects, tells, v6 = self._kind
        spec = namespace_spec.decoded(self._rows)
        return setup.sockets(spec, redirects=redirects, tells=tells, v6=v6)


# The layer of a sandbox's home tree. A spare that still sees the host makes it before the sandbox is
# requested. It is in the host program's store, next to the skeleton. The fork server chooses its name and
# sends it to the host program that takes the spare. That program then uses or removes the layer.


def new_layer(config: ForkServerConfig) -> bytes:
    """Create the directory of a layer and return its name; empty if no layer is to be prewarmed.

    The fork server runs this before it requests the spare. So a layer that is removed while the spare is
    being made does not come back.
    """
    if not config.skeleton:
        return b""
    name = b"prewarmed-" + os.urandom(6).hex().encode()
    os.mkdir(_path(config, name), 0o700)
    return name


def make_layer(config: ForkServerConfig, name: bytes) -> None:
    """Fill the layer's directory, and mount the home tree with it."""
    path = _path(config, name)
    upper, work = f"{path}/upper", f"{path}/work"
    # By name at every step: if the layer or the store is being removed, nothing more is created in it.
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o700)
    volatile = not config.skeleton.startswith(IN_MEMORY)
    tree = overlay.overlay([f"{OLD_ROOT}{os.fsdecode(config.skeleton)}"], upper, work, volatile=volatile)
    try:
        show(tree, tuple(map(os.fsdecode, config.places)), BORROWED)
    finally:
        os.close(tree)


def take_back_layer(config: ForkServerConfig, name: bytes) -> None:
    """Remove the layer of a spare that is not taken. Run by the fork server."""
    if name:
        remove((os.fsencode(_path(config, name)),))


def layer_store(config: ForkServerConfig) -> bytes:
    """Return the directory of such layers: a path of the host."""
    return os.path.dirname(config.skeleton)


def _path(config: ForkServerConfig, name: bytes) -> str:
    return f"{OLD_ROOT}{os.fsdecode(layer_store(config))}/{os.fsdecode(name)}"
