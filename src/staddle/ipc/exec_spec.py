"""The steps of one confined start, as bytes on a descriptor. Pure: nothing here touches the system.

The helper does whatever is asked, always in this order, and nothing that is not asked:

    1. a mount namespace of its own      trees, empty, texts, links, processes_hidden  (needs root)
    2. another identity                   uid, gid
    3. private directories                scratch
    4. a supervisor that stays            supervise
    5. the command's process              rlimits, directory, Landlock, filter, environment, argv

Without `supervise` the helper itself becomes the command. Landlock is used when any of
`handled_fs`, `handled_net`, `scoped` is not zero, the filter when it is not empty.

On the descriptor they are one record (see `wire`). Whatever does not fit exactly is refused.
"""

from __future__ import annotations

from .._value import Value
from . import wire
from .wire import Malformed

__all__ = ["MAGIC", "ExecSpec", "Malformed", "decode", "encode"]

MAGIC = b"staddle-exec-spec-1\n"


class ExecSpec(Value):
    """One confined start. Only the first three have to be given."""

    #: The command. A name without a slash is looked up on the PATH of `environment`.
    argv: tuple[bytes, ...]
    #: b"NAME=value", all of it.
    environment: tuple[bytes, ...]
    #: Where the command starts.
    directory: bytes
    #: Where a failure is told: b"" (standard error), a descriptor's number, or the path of a FIFO or file.
    #: Nothing is written there, and it is closed, when the command was exec'd.
    status: bytes = b""
    #: The process that asked; the helper does not outlive it. 0: none (a service manager).
    launcher: int = 0
    #: Stay as the command's supervisor: pass signals on, end everything at the end, remove `scratch`.
    supervise: int = 0
    #: Who to become. -1: stay who we are.
    uid: int = -1
    gid: int = -1
    #: (path, owner uid, owner gid, read-only): a clone of the tree at its own place, in which the owner
    #: appears as `uid`, `gid`. Owner -1: as it is.
    trees: tuple[tuple[bytes, int, int, int], ...] = ()
    #: (path, mode, size): an empty file system of its own there. `trees` below it stay visible.
    empty: tuple[tuple[bytes, int, int], ...] = ()
    #: (path, content) and (path, target): files and links to make, in one of the `empty` places.
    texts: tuple[tuple[bytes, bytes], ...] = ()
    links: tuple[tuple[bytes, bytes], ...] = ()
    #: A /proc in which only processes of `uid` appear.
    processes_hidden: int = 0
    #: Directories to make, the first being private (0700), holding the others, and removed at the end.
    scratch: tuple[bytes, ...] = ()
    #: (resource, soft, hard); -1 is no limit.
    rlimits: tuple[tuple[int, int, int], ...] = ()
    #: How many processors it is on; 0 is all.
    processors: int = 0
    #: Landlock: what is denied unless a rule allows it.
    handled_fs: int = 0
    handled_net: int = 0
    scoped: int = 0
    #: (path, rights, optional): what is allowed at a path and below. Missing is an error unless optional.
    rules: tuple[tuple[bytes, int, int], ...] = ()
    #: (TCP port, rights)
    ports: tuple[tuple[int, int], ...] = ()
    #: A compiled seccomp program.
    filter: bytes = b""
    #: The filter sends connect() to the supervisor, which makes the allowed connections itself.
    brokered: int = 0
    #: (b"exactly" | b"beneath" | b"never", path): which UNIX sockets may be connected to. Of the last two
    #: the innermost counts, and at the same place "never".
    sockets: tuple[tuple[bytes, bytes], ...] = ()
    #: Whether the supervisor also makes Internet connections (they cannot be let through unseen), and
    #: where that is not to every address, to which: see `inside.landlock.connections`.
    internet: int = 0
    destinations: tuple[tuple[bytes, int, int, int], ...] = ()
    #: What the supervisor holds, where no control group does: bytes of memory, processes; 0 is none. And the
    #: descriptor of the file in which it tells what it did.
    memory: int = 0
    processes: int = 0
    tally: int = -1
    #: The descriptors of an HTTP proxy that the launcher starts outside the sandbox: listener, settings.
    proxy: tuple[int, ...] = ()
    #: The port of that proxy, and the word that it knows its sandbox by: the supervisor leads connections
    #: to it that it does not make itself. 0: none.
    proxy_port: int = 0
    proxy_word: bytes = b""
    #: The permissions that files of the command do not get by themselves.
    umask: int = 0o022


_SHAPES = wire.shapes(ExecSpec)


def encode(spec: ExecSpec) -> bytes:
    """The bytes for the descriptor. Raises Malformed for what decode would refuse."""
    data = wire.pack(MAGIC, spec, _SHAPES)
    _check(spec)
    return data


def decode(data: bytes) -> ExecSpec:
    """The specification in `data`, or Malformed."""
    spec = wire.unpack(MAGIC, data, ExecSpec, _SHAPES)
    _check(spec)
    return spec


def _check(spec: ExecSpec) -> None:
    if not spec.argv:
        raise Malformed("there is no command")
    for name in ("argv", "environment"):
        if any(b"\0" in item for item in getattr(spec, name)):
            raise Malformed(f"{name} has a NUL in it")
    if any(item.find(b"=") < 1 for item in spec.environment):
        raise Malformed("a variable has no name")
    for path in _paths(spec):
        if not path.startswith(b"/") or b"\0" in path:
            raise Malformed(f"{path!r} is not an absolute path")
    if any(kind not in (b"beneath", b"exactly", b"never") for kind, _ in spec.sockets):
        raise Malformed("sockets has a rule of an unknown kind")
    if spec.brokered and not (spec.supervise and spec.filter):
        raise Malformed("connections can only be brokered by a supervisor and a filter")
    if any(
        len(network) not in (4, 16) or not 0 <= prefix <= len(network) * 8 or not 0 <= port <= 65535
        for network, prefix, port, _ in spec.destinations
    ):
        raise Malformed("a destination is not a network and a port")
    if (spec.memory or spec.processes) and (not spec.supervise or spec.tally < 3):
        raise Malformed("limits need a supervisor that applies them, and a file for its report")
    if spec.proxy and (not spec.supervise or len(spec.proxy) != 2 or min(spec.proxy) < 3):
        raise Malformed("a proxy needs a launcher, a listener and settings")
    if not 0 <= spec.proxy_port <= 65535 or (spec.proxy_port and not (spec.proxy and spec.proxy_word)):
        raise Malformed("only a proxy that is started has a port and a word")
    if spec.scratch and not spec.supervise:
        raise Malformed("private directories need a supervisor that removes them")
    if (spec.uid < 0) != (spec.gid < 0):
        raise Malformed("uid and gid come together")
    if len(spec.filter) % 8:
        raise Malformed("the filter is not a whole number of instructions")


def _paths(spec: ExecSpec) -> list[bytes]:
    return [
        spec.directory,
        *spec.scratch,
        *(row[0] for row in spec.trees),
        *(row[0] for row in spec.empty),
        *(row[0] for row in spec.texts),
        *(row[0] for row in spec.links),
        *(row[0] for row in spec.rules),
        *(row[1] for row in spec.sockets),
    ]
