"""Messages between the host program and a fork server, as bytes: configuration, requests, replies. Pure."""

from __future__ import annotations

from .._value import Value
from ..mounts.operations import ROW_SHAPE, decode_operations
from . import wire
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..mounts.operations import Operation, Row

#: To a fork server, with a memory file that has its configuration. It starts before that is known.
CONFIGURE = b"c"
#: Replies of a fork server. It is ready for requests.
READY = b"r"
#: To it: the host program closes the socket and lives on. Without this message, it has ended.
GOODBYE = b"g"
#: A sandbox, with its agent's socket. After the letter: how many spares lack cgroups, in one byte, and the
#: name of its home layer. For a request with `alone`: trees were sent.
TAKEN = b"t"
#: As TAKEN, but it was cloned for this request, and did not wait as a spare.
MADE = b"m"
#: Not available here, because the host's mounts have changed; a new fork server may have it.
STALE = b"s"
#: To it, with a number, and back: every earlier reply is to a request whose caller was interrupted.
SYNC = b"y"
#: Refused; a sentence follows.
REFUSED = b"x"
#: The request has to be repeated, with cgroup descriptors.
NEED_CGROUPS = b"w"
#: While root's fork server starts. From it: write my id maps. To it: they are written.
MAP, MAPPED = b"map", b"mapped"
#: The longest message, and the most descriptors of one message.
LONGEST, MOST_DESCRIPTORS = 1 << 18, 64
#: The command line of a fork server and of its clones. Processes inside can read it: it names no path.
COMMAND_LINE = b"staddle-forkserver"
#: In the layers of a tree, in place of a path of the host: the root of the fork server's template.
ROOT_OF_TEMPLATE = b""

#: Among root's unused ids, the one of the sandbox's user, whatever its id inside: kept layers belong to it.
OWNER = 1000


class ForkServerConfig(Value):
    """Configuration that the sandboxes of one fork server share: everything except their workspaces."""

    #: The shared part of the view and each sandbox's own, as rows (`mounts.operations`).
    template: tuple[Row, ...]
    own: tuple[Row, ...]
    #: The ids of the sandbox's processes inside, and the machine's name there.
    uid: int
    gid: int
    host: bytes
    #: The host's ids that are 0, 1, 2 ... for the fork server (-1: only our own id, as 0).
    base: int
    count: int
    #: Whether the host's network is shared; if not, what its own network has besides a loopback.
    network: int
    reach: tuple[tuple[bytes, bytes, int, bytes], ...]
    #: Landlock scopes of the sandbox: if the network is shared, abstract sockets are too.
    scoped: int
    #: For every process: resource limits and the filter.
    rlimits: tuple[tuple[int, int, int], ...]
    filter: bytes
    #: The shell of a spare, its variables and its directory.
    bash: bytes
    environment: tuple[bytes, ...]
    directory: bytes
    #: The number of spares.
    spares: int
    #: Limits on the whole sandbox that its agent enforces because no cgroup does: bytes of memory, processes
    #: (0: none).
    memory: int = 0
    processes: int = 0
    #: The number of processors for its processes (0: all).
    processors: int = 0
    #: The number of cgroup descriptors of each sandbox (0: none). Those of a sandbox that is made next come
    #: with a request for another.
    cgroup_fds: int = 0
    #: The controllers of these cgroups.
    controllers: tuple[bytes, ...] = ()
    #: The mount points of the world, the tree of layers for writes outside of the workspace.
    places: tuple[bytes, ...] = ()
    #: Its initial contents: a directory of the host, next to which each sandbox's layer is prewarmed. Empty:
    #: the world comes with the request, if there is one.
    skeleton: bytes = b""
    #: Whether /proc is that of an outer container, because no other can be mounted.
    outer_processes: int = 0

    @property
    def whose(self) -> int:
        """The id of the sandbox's processes for the fork server: its own, if it has no other."""
        return OWNER if self.count > OWNER else 0


class SandboxRequest(Value):
    """A request for one sandbox. An ordinary user's workspace is named; root's comes as a descriptor."""

    #: The workspace on the host (empty: none), and its expected inode.
    workspace: bytes
    device: int
    inode: int
    #: The place of changes, if not the workspace itself: a layer, its work directory, and the layers below
    #: it, topmost first.
    upper: bytes
    work: bytes
    lowers: tuple[bytes, ...]
    #: The operations at and below the workspace's place.
    view: tuple[Row, ...]
    #: How many of the last descriptors are for limits: the tally file of an agent that enforces some, and
    #: cgroup descriptors of sandboxes that are made next.
    extra_fds: int = 0
    #: Further trees: the path inside of each root, its layer, its work directory, and the layers below that,
    #: topmost first, separated by NUL.
    trees: tuple[tuple[bytes, bytes, bytes, bytes], ...] = ()
    #: Whether only the trees are requested, the workspace first, for an existing sandbox; a socket to its
    #: agent comes along.
    alone: int = 0

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations of `view`, or raise Malformed."""
        return _operations(self.view)


_MAGIC = {ForkServerConfig: b"staddle-forkserver-1\n", SandboxRequest: b"staddle-request-1\n"}
_SHAPES = {kind: wire.shapes(kind, Row=ROW_SHAPE) for kind in (ForkServerConfig, SandboxRequest)}


def encode(record: ForkServerConfig | SandboxRequest) -> bytes:
    """Return the bytes of a record; Malformed if decode would refuse them."""
    return wire.pack(_MAGIC[type(record)], record, _SHAPES[type(record)])


def decode_config(data: bytes) -> ForkServerConfig:
    """Return the configuration in `data`, or raise Malformed."""
    record = wire.unpack(_MAGIC[ForkServerConfig], data, ForkServerConfig, _SHAPES[ForkServerConfig])
    _operations(record.template)
    _operations(record.own)
    return record


def decode_request(data: bytes) -> SandboxRequest:
    """Return the request in `data`, or raise Malformed; `operations` is checked later."""
    record = wire.unpack(_MAGIC[SandboxRequest], data, SandboxRequest, _SHAPES[SandboxRequest])
    if not 0 <= record.extra_fds <= MOST_DESCRIPTORS:
        raise Malformed("so many descriptors cannot come along")
    return record


def _operations(rows: tuple[Row, ...]) -> tuple[Operation, ...]:
    try:
        return decode_operations(rows)
    except ValueError as error:
        raise Malformed(str(error)) from None
