"""What a zygote is told to make, what it is asked for and how it answers, as bytes. Pure."""

from __future__ import annotations

from .._value import Value
from ..mounts.rows import decoded
from . import wire
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..mounts.operations import Operation
    from ..mounts.rows import Row
    from .wire import Shape

#: Of a zygote. Ready to be asked; a sandbox, whose line comes along, and after the letter the name of
#: the layer that was made ahead for it, or the trees that were asked for; it cannot be had from
#: here, but from a new zygote it may; it cannot be had.
READY, TAKEN, STALE, REFUSED = b"r", b"t", b"s", b"x"
#: And: the doors to its control groups are missing; its workspace has to be lent; as TAKEN, but it shows what
#: was made ahead in place of the layers that were asked for; as TAKEN, but it did not wait for anybody: it
#: was made for this. To a sandbox made ahead: now.
WANTING, UNLENT, PREPARED, MADE, GO = b"w", b"l", b"p", b"m", b"g"
#: Of root's, while it starts: write my maps. And that it was done.
MAP, MAPPED = b"map", b"mapped"
#: As long as a message may be, and as many descriptors as may come with one.
LONGEST, MOST_DESCRIPTORS = 1 << 18, 64

#: Of root's ids that nobody has, which one is the sandbox's user, whatever number it has inside: layers
#: that are kept belong to it.
OWNER = 1000

_ROW = (bytes, bytes, int, int, int, bytes)


class Blueprint(Value):
    """All sandboxes of one plan, but for their workspaces."""

    #: The shared part of the view and each sandbox's own, as `mounts.rows` has them.
    template: tuple[Row, ...]
    own: tuple[Row, ...]
    #: The ids of the sandbox's processes inside, and the machine's name there.
    uid: int
    gid: int
    host: bytes
    #: The host's ids that are 0, 1, 2 ... for the zygote; -1: only our own, as 0.
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
    #: The shell that is started ahead, with its variables and where it starts.
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
    #: How many doors lead to the control groups of each sandbox; those of a sandbox that is to be made
    #: come with a request for another. 0: there are none.
    doors: int = 0
    #: Where the world is seen, the tree of layers that holds what can be written beside the workspace.
    places: tuple[bytes, ...] = ()
    #: What is in it at first: a directory of the host, beside which each sandbox's layer is made ahead.
    #: Empty: the world comes with the request, if there is one.
    skeleton: bytes = b""

    @property
    def whose(self) -> int:
        """The zygote's name for the id of the sandbox's processes: its own, where it has no other."""
        return OWNER if self.count > OWNER else 0


class Request(Value):
    """One sandbox. A workspace of an ordinary user is named; root's comes as a descriptor."""

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
    #: How many of the descriptors, the last ones, are for limits: the file in which the agent tells what
    #: it held, if it does, and the doors of sandboxes that are to be made.
    along: int = 0
    #: Further trees: the path inside of each one's root, its layer, its work directory, and what lies below
    #: that, topmost first with a NUL between.
    trees: tuple[tuple[bytes, bytes, bytes, bytes], ...] = ()
    #: Whether the trees alone are asked for, that of the workspace first, for a sandbox that is there; a
    #: line to its agent comes along.
    alone: int = 0
    #: What the workspace looks like from outside, if nothing has been changed in it yet: one that was
    #: made ahead, and looks the same, will do as well.
    look: bytes = b""
    #: Whether it is only to be made ahead: for the next request that shows the same.
    ahead: int = 0

    @property
    def shows(self) -> object:
        """What requests have in common for which the same sandbox will do; None: it is only for this one."""
        return (self.workspace, self.device, self.inode, self.view, self.look) if self.look else None

    def operations(self) -> tuple[Operation, ...]:
        """The operations of `view`, or Malformed."""
        return _operations(self.view)


_MAGIC = {Blueprint: b"staddle-blueprint-1\n", Request: b"staddle-request-1\n"}
_SHAPES: dict[type, dict[str, Shape]] = {
    Blueprint: {
        "template": [_ROW],
        "own": [_ROW],
        "uid": int,
        "gid": int,
        "host": bytes,
        "base": int,
        "count": int,
        "network": int,
        "reach": [(bytes, bytes, int, bytes)],
        "scoped": int,
        "rlimits": [(int, int, int)],
        "filter": bytes,
        "bash": bytes,
        "environment": [bytes],
        "directory": bytes,
        "spares": int,
        "memory": int,
        "processes": int,
        "processors": int,
        "doors": int,
        "places": [bytes],
        "skeleton": bytes,
    },
    Request: {
        "workspace": bytes,
        "device": int,
        "inode": int,
        "upper": bytes,
        "work": bytes,
        "lowers": [bytes],
        "view": [_ROW],
        "along": int,
        "trees": [(bytes, bytes, bytes, bytes)],
        "alone": int,
        "look": bytes,
        "ahead": int,
    },
}


def encode(record: Blueprint | Request) -> bytes:
    """The bytes of a record. Malformed for what decode would refuse."""
    shapes = _SHAPES[type(record)]
    wire.check(record, shapes)
    return wire.encode(_MAGIC[type(record)], tuple(getattr(record, name) for name in shapes))


def decode_blueprint(data: bytes) -> Blueprint:
    """The blueprint in `data`, or Malformed."""
    record = Blueprint(*wire.decode(_MAGIC[Blueprint], data, len(_SHAPES[Blueprint])))
    wire.check(record, _SHAPES[Blueprint])
    _operations(record.template)
    _operations(record.own)
    return record


def decode_request(data: bytes) -> Request:
    """The request in `data`, or Malformed; not so far as `operations` tells it."""
    record = Request(*wire.decode(_MAGIC[Request], data, len(_SHAPES[Request])))
    wire.check(record, _SHAPES[Request])
    if not 0 <= record.along <= MOST_DESCRIPTORS:
        raise Malformed("so many descriptors cannot come along")
    return record


def _operations(rows: tuple[Row, ...]) -> tuple[Operation, ...]:
    try:
        return decoded(rows)
    except ValueError as error:
        raise Malformed(str(error)) from None
