"""What the helper is to do, as bytes on a descriptor. Pure: nothing here touches the system.

The helper does whatever is asked, always in this order, and nothing that is not asked:

    1. a mount namespace of its own      trees, empty, texts, links, processes_hidden  (needs root)
    2. another identity                   uid, gid
    3. private directories                scratch
    4. a supervisor that stays            supervise
    5. the command's process              rlimits, directory, Landlock, filter, environment, argv

Without `supervise` the helper itself becomes the command. Landlock is used when any of
`handled_fs`, `handled_net`, `scoped` is not zero, the filter when it is not empty.

On the descriptor, a value is one letter and its content: `i` and eight bytes, `b`, a
length and that many bytes, `l`, a count and that many values. Instructions are one list,
in the order of the fields. Whatever does not fit exactly is refused.
"""

from __future__ import annotations

import struct

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"staddle-instructions-1\n"


class Malformed(ValueError):
    """These bytes are not instructions."""


class Instructions(Value):
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
    #: The process that asked; the helper does not outlive it. 0: nobody in particular (a service manager).
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
    #: Whether the supervisor also makes Internet connections (they cannot be let through unseen).
    internet: int = 0


#: What each field must look like: a type, a list of one shape, or a row of shapes.
_SHAPES: dict[str, Any] = {
    "argv": [bytes],
    "environment": [bytes],
    "directory": bytes,
    "status": bytes,
    "launcher": int,
    "supervise": int,
    "uid": int,
    "gid": int,
    "trees": [(bytes, int, int, int)],
    "empty": [(bytes, int, int)],
    "texts": [(bytes, bytes)],
    "links": [(bytes, bytes)],
    "processes_hidden": int,
    "scratch": [bytes],
    "rlimits": [(int, int, int)],
    "handled_fs": int,
    "handled_net": int,
    "scoped": int,
    "rules": [(bytes, int, int)],
    "ports": [(int, int)],
    "filter": bytes,
    "brokered": int,
    "sockets": [(bytes, bytes)],
    "internet": int,
}


def encode(instructions: Instructions) -> bytes:
    """The bytes for the descriptor. Raises Malformed for what decode would refuse."""
    values = tuple(getattr(instructions, name) for name in _SHAPES)
    _check(instructions)
    out = [MAGIC]
    _write(values, out)
    return b"".join(out)


def decode(data: bytes) -> Instructions:
    """The instructions in `data`, or Malformed. Never a guess."""
    if not data.startswith(MAGIC):
        raise Malformed("they do not begin as instructions do")
    try:
        values, end = _read(data, len(MAGIC), depth=0)
    except (struct.error, IndexError) as error:
        raise Malformed("they are cut short") from error
    if end != len(data):
        raise Malformed("something follows them")
    if not isinstance(values, tuple) or len(values) != len(_SHAPES):
        raise Malformed("they have too few or too many fields")
    instructions = Instructions(*values)
    _check(instructions)
    return instructions


def _check(instructions: Instructions) -> None:
    for name, shape in _SHAPES.items():
        if not _fits(getattr(instructions, name), shape):
            raise Malformed(f"{name} is not what it should be")
    if not instructions.argv:
        raise Malformed("there is no command")
    for name in ("argv", "environment"):
        if any(b"\0" in item for item in getattr(instructions, name)):
            raise Malformed(f"{name} has a NUL in it")
    if any(item.find(b"=") < 1 for item in instructions.environment):
        raise Malformed("a variable has no name")
    for path in _paths(instructions):
        if not path.startswith(b"/") or b"\0" in path:
            raise Malformed(f"{path!r} is not an absolute path")
    if any(kind not in (b"beneath", b"exactly", b"never") for kind, _ in instructions.sockets):
        raise Malformed("sockets has a rule of an unknown kind")
    if instructions.brokered and not (instructions.supervise and instructions.filter):
        raise Malformed("connections can only be brokered by a supervisor and a filter")
    if instructions.scratch and not instructions.supervise:
        raise Malformed("private directories need a supervisor that removes them")
    if (instructions.uid < 0) != (instructions.gid < 0):
        raise Malformed("uid and gid come together")
    if len(instructions.filter) % 8:
        raise Malformed("the filter is not a whole number of instructions")


def _paths(instructions: Instructions) -> list[bytes]:
    return [
        instructions.directory,
        *instructions.scratch,
        *(row[0] for row in instructions.trees),
        *(row[0] for row in instructions.empty),
        *(row[0] for row in instructions.texts),
        *(row[0] for row in instructions.links),
        *(row[0] for row in instructions.rules),
        *(row[1] for row in instructions.sockets),
    ]


def _fits(value: object, shape: Any) -> bool:
    if isinstance(shape, list):
        return isinstance(value, tuple) and all(_fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(shape)
            and all(_fits(item, inner) for item, inner in zip(value, shape, strict=True))
        )
    return type(value) is shape or (shape is int and type(value) is bool)


def _write(value: object, out: list[bytes]) -> None:
    if isinstance(value, bytes):
        out.append(struct.pack("<cI", b"b", len(value)))
        out.append(value)
    elif isinstance(value, tuple):
        out.append(struct.pack("<cI", b"l", len(value)))
        for item in value:
            _write(item, out)
    else:
        out.append(struct.pack("<cq", b"i", value))


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    if kind == b"i":
        return struct.unpack_from("<q", data, at + 1)[0], at + 9
    (count,) = struct.unpack_from("<I", data, at + 1)
    at += 5
    if kind == b"b":
        if at + count > len(data):
            raise IndexError
        return data[at : at + count], at + count
    # The deepest that means anything: instructions, a field, its rows.
    if kind != b"l" or depth > 2:
        raise Malformed(f"there is no value of kind {kind!r} at {at - 5}")
    items = []
    for _ in range(count):
        item, at = _read(data, at, depth + 1)
        items.append(item)
    return tuple(items), at
