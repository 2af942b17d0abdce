"""Set up the namespaces of one sandbox: its part of the view, its home layer, its network.

A child of the sandbox's first process makes the view (/proc, terminals, private directories, control files),
in the same namespaces and with the same rights, and then exits. The memory that it copied is freed with it.
The first process would have kept some hundred kilobytes of it for the sandbox's whole life.
"""

from __future__ import annotations

import os

from ...files.remove_tree import remove
from ...ipc import namespace_spec
from ...linux import netlink
from ...mounts.shared_view import OLD_ROOT
from ...network.namespace import setup, socket_handoff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.forkserver_messages import ForkServerConfig
    from ...ipc.namespace_spec import NetworkRow

_DONE = b"!"
_LONGEST = 4096
_CONTROL_SIZE = 64 << 20
#: Layers below this path are in memory and never written to a disk.
IN_MEMORY = b"/dev/shm/"


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


def take_back_layer(config: ForkServerConfig, name: bytes) -> None:
    """Remove the layer of a spare that is not taken. Run by the fork server."""
    if name:
        remove((os.fsencode(_path(config, name)),))


def layer_store(config: ForkServerConfig) -> bytes:
    """Return the directory of such layers: a path of the host."""
    return os.path.dirname(config.skeleton)


def _path(config: ForkServerConfig, name: bytes) -> str:
    return f"{OLD_ROOT}{os.fsdecode(layer_store(config))}/{os.fsdecode(name)}"
