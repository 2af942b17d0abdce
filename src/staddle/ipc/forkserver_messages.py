"""Messages between the host program and a fork server, as bytes: configuration, requests, replies. Pure."""

from __future__ import annotations

from .._value import Value
from ..mounts.operations import ROW_SHAPE, decode_operations
from . import wire
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..mounts.operations import Operation, Row

#: Replies of a fork server.
#: It can be asked.
READY = b"r"
#: To it: the host program closes the socket and lives on. Without this, it has ended.
GOODBYE = b"g"
#: A sandbox, with its agent's socket. After the letter: how many spares lack cgroups, in one byte, and the
#: name of its home layer. Or, alone: trees were sent.
TAKEN = b"t"
#: As TAKEN, but it was cloned for this request: it did not wait as a spare.
MADE = b"m"
#: It cannot be had here, because the host's mounts have changed; a new fork server may have it.
STALE = b"s"
#: To it, with a number, and back: every reply before is to a request whose caller was interrupted.
SYNC = b"y"
#: It cannot be had; a sentence follows.
REFUSED = b"x"
#: The request has to be repeated, with cgroup descriptors.
NEED_CGROUPS = b"w"
#: While root's fork server starts. From it: write my id maps. To it: they are written.
MAP, MAPPED = b"map", b"mapped"
#: As long as a message may be, and as many descriptors as may come with one.
LONGEST, MOST_DESCRIPTORS = 1 << 18, 64
#: Among the layers of a tree, in the place of a path of the host: the root of the fork server's template.
ROOT_OF_TEMPLATE = b""

#: Of root's unused ids, the one of the sandbox's user, whatever number it has inside: layers
#: that are kept belong to it.
OWNER = 1000


class ForkServerConfig(Value):
    """Configuration that the sandboxes of one fork server share: everything but their workspaces."""

    #: The shared part of the view and each sandbox's own, as rows (`mounts.operations`).
    template: tuple[Row, ...]
    own: tuple[Row, ...]
    #: The ids of the sandbox's processes inside, and the machine's name there.
    uid: int
    gid: int
    host: bytes
    #: The host's ids that are 0, 1, 2 ... for the fork server; -1: only our own, as 0.
    base: int
    count: int
    #: Whether the host's network is shared; if not, what its own has besides a loopback.
    network: int
    reach: tuple[tuple[bytes, bytes, int, bytes], ...]
    #: What Landlock keeps within the sandbox: where the network is shared, its abstract sockets are.
    scoped: int
    #: For every process: resource limits and the filter.
    rlimits: tuple[tuple[int, int, int], ...]
    filter: bytes
    #: The shell of a spare, with its variables and where it starts.
    bash: bytes
    environment: tuple[bytes, ...]
    directory: bytes
    #: How many sandboxes are kept ready.
    spares: int
    #: Limits on everything in a sandbox that no control group holds, and its agent does: bytes of
    #: memory, processes; 0 is none.
    memory: int = 0
    processes: int = 0
    #: How many processors its processes are on; 0 is all.
    processors: int = 0
    #: How many cgroup descriptors each sandbox has; 0 is none. Those of a sandbox that is to be made come
    #: with a request for another.
    cgroup_fds: int = 0
    #: What these cgroups can limit.
    controllers: tuple[bytes, ...] = ()
    #: Where the world is seen, the tree of layers that holds what can be written beside the workspace.
    places: tuple[bytes, ...] = ()
    #: What is in it at first: a directory of the host, beside which each sandbox's layer is prewarmed.
    #: Empty: the world comes with the request, if there is one.
    skeleton: bytes = b""
    #: Whether /proc is that of the container around us, because no other can be mounted.
    outer_processes: int = 0

    @property
    def whose(self) -> int:
        """The fork server's name for the id of the sandbox's processes: its own, where it has no other."""
        return OWNER if self.count > OWNER else 0


class SandboxRequest(Value):
    """A request for one sandbox. An ordinary user's workspace is named; root's comes as a descriptor."""

    #: The workspace on the host, empty for none, and the inode that it must be.
    workspace: bytes
    device: int
    inode: int
    #: Where changes go, if not to the workspace itself: a layer, its work directory, and the
    #: layers below it, topmost first.
    upper: bytes
    work: bytes
    lowers: tuple[bytes, ...]
    #: What is to be done at and below the workspace's place.
    view: tuple[Row, ...]
    #: How many of the descriptors, the last ones, are for limits: the tally file of an agent that holds some,
    #: and cgroup descriptors of sandboxes that are to be made.
    extra_fds: int = 0
    #: Further trees: the path inside of each one's root, its layer, its work directory, and what lies below
    #: that, topmost first with a NUL between.
    trees: tuple[tuple[bytes, bytes, bytes, bytes], ...] = ()
    #: Whether only the trees are asked for, that of the workspace first, for a sandbox that is there; a
    #: socket to its agent comes along.
    alone: int = 0

    def operations(self) -> tuple[Operation, ...]:
        """The operations of `view`, or Malformed."""
        return _operations(self.view)


_MAGIC = {ForkServerConfig: b"staddle-forkserver-1\n", SandboxRequest: b"staddle-request-1\n"}
_SHAPES = {kind: wire.shapes(kind, Row=ROW_SHAPE) for kind in (ForkServerConfig, SandboxRequest)}


def encode(record: ForkServerConfig | SandboxRequest) -> bytes:
    """The bytes of a record. Malformed for what decode would refuse."""
    return wire.pack(_MAGIC[type(record)], record, _SHAPES[type(record)])


def decode_config(data: bytes) -> ForkServerConfig:
    """The configuration in `data`, or Malformed."""
    record = wire.unpack(_MAGIC[ForkServerConfig], data, ForkServerConfig, _SHAPES[ForkServerConfig])
    _operations(record.template)
    _operations(record.own)
    return record


def decode_request(data: bytes) -> SandboxRequest:
    """The request in `data`, or Malformed; not so far as `operations` tells it."""
    record = wire.unpack(_MAGIC[SandboxRequest], data, SandboxRequest, _SHAPES[SandboxRequest])
    if not 0 <= record.extra_fds <= MOST_DESCRIPTORS:
        raise Malformed("so many descriptors cannot come along")
    return record


def _operations(rows: tuple[Row, ...]) -> tuple[Operation, ...]:
    try:
        return decode_operations(rows)
    except ValueError as error:
        raise Malformed(str(error)) from None
