"""The steps of one confined start, as bytes on a descriptor. Pure: nothing here touches the system.

The helper carries out exactly the requested steps, always in this order:

    1. a mount namespace of its own      trees, empty, texts, links, processes_hidden  (needs root)
    2. another identity                   uid, gid
    3. private directories                scratch
    4. a supervisor that stays            supervise
    5. the command's process              rlimits, directory, Landlock, filter, environment, argv

Without `supervise` the helper itself becomes the command. Landlock is used if any of `handled_fs`,
`handled_net`, `scoped` is not zero, the filter if it is not empty.

The bytes are one record (see `wire`). A record that does not fit exactly is refused.
"""

from __future__ import annotations

from .._value import Value
from . import wire
from .wire import Malformed

__all__ = ["MAGIC", "ExecSpec", "Malformed", "decode", "encode"]

MAGIC = b"staddle-exec-spec-1\n"


class ExecSpec(Value):
    """One confined start. Only the first three fields are required."""

    #: The command. A name without a slash is looked up on the PATH of `environment`.
    argv: tuple[bytes, ...]
    #: The whole environment, as b"NAME=value".
    environment: tuple[bytes, ...]
    #: The directory in which the command starts.
    directory: bytes
    #: The place for a report of failure: b"" (standard error), a descriptor's number, or the path of a FIFO
    #: or file. If the command was exec'd, nothing is written there, and it is closed.
    status: bytes = b""
    #: The process that asked; the helper does not outlive it. 0: none (a service manager).
    launcher: int = 0
    #: Stay as the command's supervisor: pass signals on, kill everything at the end, remove `scratch`.
    supervise: int = 0
    #: The ids to become (-1: keep our own).
    uid: int = -1
    gid: int = -1
    #: (path, owner uid, owner gid, read-only): a clone of the tree at its own place, in which the owner
    #: appears as `uid`, `gid` (owner -1: unchanged).
    trees: tuple[tuple[bytes, int, int, int], ...] = ()
    #: (path, mode, size): an empty file system there. `trees` below it stay visible.
    empty: tuple[tuple[bytes, int, int], ...] = ()
    #: (path, content) and (path, target): files and links to create, in one of the `empty` places.
    texts: tuple[tuple[bytes, bytes], ...] = ()
    links: tuple[tuple[bytes, bytes], ...] = ()
    #: Whether to mount a /proc in which only processes of `uid` appear.
    processes_hidden: int = 0
    #: Directories to create. The first is private (0700), contains the others, and is removed at the end.
    scratch: tuple[bytes, ...] = ()
    #: (resource, soft, hard); -1 is no limit.
    rlimits: tuple[tuple[int, int, int], ...] = ()
    #: The number of processors for it (0: all).
    processors: int = 0
    #: Landlock rights that are denied unless a rule allows them.
    handled_fs: int = 0
    handled_net: int = 0
    scoped: int = 0
    #: (path, rights, optional): rights at a path and below. A missing path is an error unless optional.
    rules: tuple[tuple[bytes, int, int], ...] = ()
    #: (TCP port, rights)
    ports: tuple[tuple[int, int], ...] = ()
    #: Whether the command may name its own threads, which Landlock otherwise refuses. Its children may not.
    names_threads: int = 0
    #: A compiled seccomp program.
    filter: bytes = b""
    #: The filter sends connect() to the supervisor, which makes the allowed connections itself.
    brokered: int = 0
    #: (b"exactly" | b"beneath" | b"never", path): the UNIX sockets that may be connected to. Among the last
    #: two kinds the innermost counts, and at the same place "never".
    sockets: tuple[tuple[bytes, bytes], ...] = ()
    #: Whether the supervisor also makes Internet connections (they cannot be let through unseen). If not to
    #: every address, the allowed ones: see `inside.landlock.connections`.
    internet: int = 0
    destinations: tuple[tuple[bytes, int, int, int], ...] = ()
    #: Limits for the supervisor to enforce if no cgroup does: bytes of memory, processes (0: none). And the
    #: descriptor of the file in which it reports its actions.
    memory: int = 0
    processes: int = 0
    tally: int = -1
    #: The descriptors of an HTTP proxy that the launcher starts outside the sandbox: listener, settings.
    proxy: tuple[int, ...] = ()
    #: The port of that proxy, and the word by which it knows its sandbox. The supervisor redirects
    #: connections to it that it does not make itself (0: none).
    proxy_port: int = 0
    proxy_word: bytes = b""
    #: The umask of the command.
    umask: int = 0o022


_SHAPES = wire.shapes(ExecSpec)


def encode(spec: ExecSpec) -> bytes:
    """Return the bytes for the descriptor. Malformed if decode would refuse them."""
    data = wire.pack(MAGIC, spec, _SHAPES)
    _check(spec)
    return data


def decode(data: bytes) -> ExecSpec:
    """Return the specification in `data`, or raise Malformed."""
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
