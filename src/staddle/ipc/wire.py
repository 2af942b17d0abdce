"""Values as bytes between our own processes. Pure.

A value is one letter and its content: `i` and eight bytes; `b`, a length and that many bytes; `l`, a count
and that many values. A record is one list, in the order of its fields, after a line that identifies it. Bytes
that do not fit exactly are refused.
"""

from __future__ import annotations

import _socket
import os
import struct

from ..linux.process import sent_at_any_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeAlias, TypeVar

    from .._value import Value

    Record = TypeVar("Record")

    #: The shape of a field: a type, a list of one shape, or a row of shapes.
    Shape: TypeAlias = Any


class Malformed(ValueError):
    """These bytes, or these fields, are invalid."""


def encode(magic: bytes, fields: tuple[object, ...]) -> bytes:
    """Return the bytes of a record that begins with `magic`."""
    out = [magic]
    _write(fields, out)
    return b"".join(out)


def decode(magic: bytes, data: bytes, count: int) -> tuple[Any, ...]:
    """Return the `count` fields of the record in `data`, or raise Malformed.

    The caller checks their shapes.
    """
    if not data.startswith(magic):
        raise Malformed(f"they do not start with {magic!r}")
    try:
        fields, end = _read(data, len(magic), depth=0)
    except (struct.error, IndexError) as error:
        raise Malformed("they are cut short") from error
    if end != len(data):
        raise Malformed("something follows them")
    if not isinstance(fields, tuple) or len(fields) != count:
        raise Malformed("they have too few or too many fields")
    return fields


def shapes(kind: type[Value], **rows: Shape) -> dict[str, Shape]:
    """Return the shape of each field of a record, from its annotations.

    An annotation is `int`, `bytes`, the name of one of `rows`, a tuple of these, or `tuple[..., ...]` around
    one of them.
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts.update(base.__dict__.get("__annotations__", {}))  # noqa: RUF063 - inspect is heavy
    known = {"int": int, "bytes": bytes, **rows}
    return {name: _shape(texts[name], known) for name in kind._fields}


def _shape(text: str, known: Mapping[str, Shape]) -> Shape:
    if text in known:
        return known[text]
    inner = text[len("tuple[") : -1]
    if inner.endswith(", ..."):
        return [_shape(inner[: -len(", ...")], known)]
    return tuple(known[word] for word in inner.split(", "))


def pack(magic: bytes, record: object, shapes: Mapping[str, Shape]) -> bytes:
    """Return the bytes of a record; Malformed if `unpack` would refuse it."""
    check(record, shapes)
    return encode(magic, tuple(getattr(record, name) for name in shapes))


def unpack(magic: bytes, data: bytes, kind: Callable[..., Record], shapes: Mapping[str, Shape]) -> Record:
    """Return the record in `data`, each field with its shape, or raise Malformed."""
    record = kind(*decode(magic, data, len(shapes)))
    check(record, shapes)
    return record


def check(record: object, shapes: Mapping[str, Shape]) -> None:
    """Raise Malformed unless every field of `record` has its shape."""
    for name, shape in shapes.items():
        if not fits(getattr(record, name), shape):
            raise Malformed(f"{name} is not what it should be")


def fits(value: object, shape: Shape) -> bool:
    """Whether a value has this shape."""
    if isinstance(shape, list | tuple):
        if not isinstance(value, tuple):
            return False
        if isinstance(shape, list):
            shape = shape * len(value)
        elif len(value) != len(shape):
            return False
        return all(map(fits, value, shape))
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
    # The deepest valid nesting: a record, a field, its rows.
    if kind != b"l" or depth > 2:
        raise Malformed(f"there is no value of kind {kind!r} at {at - 5}")
    items = []
    for _ in range(count):
        item, at = _read(data, at, depth + 1)
        items.append(item)
    return tuple(items), at


# Messages with descriptors on a socket between our own processes.


#: The most descriptors of one message.
_MOST = 64
#: Seconds to wait for something that is being made meanwhile.
_PATIENCE = 60.0
_CLOSE_ON_EXEC = 0x40000000  # MSG_CMSG_CLOEXEC


def send(socket: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message. OSError if the other end is closed, or the message does not fit."""
    flags = _socket.MSG_NOSIGNAL | _without_blocking(socket)
    if not descriptors:
        socket.sendmsg([message], (), flags)
        return
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)]
    sent_at_any_rate(lambda: socket.sendmsg([message], extra, flags))


def pass_descriptors(socket: int, descriptors: Sequence[int]) -> None:
    """Send them to a process that waits for them in `await_descriptors`."""
    channel = _socket.socket(fileno=socket)
    try:
        send(channel, b"t", descriptors)
    except OSError:
        pass  # it does not wait any more, and reports why
    finally:
        channel.detach()


def await_descriptors(socket: int, count: int) -> list[int]:
    """Receive `count` descriptors in one message on this socket. OSError if they do not arrive."""
    channel = _socket.socket(fileno=socket)
    try:
        channel.settimeout(_PATIENCE)
        found = receive(channel, 1)[1]
    finally:
        channel.detach()
    if len(found) != count:
        close_all(found)
        raise OSError(103, "what was to come did not come")  # ECONNABORTED
    return found


def receive(socket: _socket.socket, longest: int, most: int = _MOST) -> tuple[bytes, list[int]]:
    """Receive one message, empty if the other end is closed, and its descriptors.

    OSError if it is too long, or if this process has no room for the descriptors.
    """
    room = _socket.CMSG_SPACE(4 * most)
    message, extra, flags, _ = socket.recvmsg(longest, room, _CLOSE_ON_EXEC | _without_blocking(socket))
    descriptors = [
        fd
        for level, kind, data in extra
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for fd in struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
    ]
    if flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
        close_all(descriptors)
        if not flags & _socket.MSG_TRUNC and len(descriptors) < most:  # there was room for more of them
            raise OSError(24, os.strerror(24))  # EMFILE
        raise OSError(90, "a message is longer than it may be")  # EMSGSIZE
    return message, descriptors


def receive_last(
    socket: _socket.socket, longest: int
) -> tuple[bytes, list[int], ConnectionResetError | None]:
    """Like `receive`; also return the error if the other end was closed before it read our last message.

    Its earlier messages arrive after that error.
    """
    unheard: ConnectionResetError | None = None
    for _ in range(2):
        try:
            return *receive(socket, longest), unheard
        except ConnectionResetError as error:
            if not _is_ours(error):
                raise
            unheard = error
    return b"", [], unheard


def _is_ours(error: BaseException) -> bool:
    """Whether a call of this module failed: a signal handler of the host program may raise the same error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_globals is globals()


def _without_blocking(socket: _socket.socket) -> int:
    """Return the flag with which a call on a socket with a timeout never blocks, whatever its O_NONBLOCK.

    An agent that hands out a socket shares the open file, and may clear O_NONBLOCK on it.
    """
    return 0 if socket.gettimeout() is None else _socket.MSG_DONTWAIT


def close_all(descriptors: Iterable[int]) -> None:
    """Close these descriptors."""
    for fd in descriptors:
        os.close(fd)


# Report that a command, or a part of a sandbox, was not started: an exit code and one sentence.


#: Exit codes of the helper. The command's own may be equal: only the sentence distinguishes them.
ARGUMENTS, CONFINEMENT, EXEC = 2, 3, 4


class NotStarted(Exception):
    """The command was not started. `code` is the helper's exit code, and the text the reason.

    `errno` is the kernel's error number (0: none).
    """

    def __init__(self, code: int, why: str, errno: int | None = 0) -> None:
        super().__init__(why)
        self.code, self.errno = code, errno or 0


def not_started(error: BaseException) -> NotStarted:
    """Return the reason why the command was not started, from any error."""
    if isinstance(error, NotStarted):
        return error
    if isinstance(error, OSError) and error.strerror:
        where = f": {os.fsdecode(error.filename)!r}" if error.filename else ""
        return NotStarted(CONFINEMENT, f"{error.strerror}{where}")
    return NotStarted(CONFINEMENT, f"{type(error).__name__}: {error}")


def written(code: int, why: str) -> bytes:
    """Return the bytes for the status descriptor: short enough to arrive in one piece."""
    return f"{code} {why}".encode("utf-8", "backslashreplace")[:2048]


def sentence(said: bytes) -> str | None:
    """Return why the command did not start; None if nothing was written, because it was exec'd."""
    if not said:
        return None
    code, _, why = said.decode("utf-8", "replace").partition(" ")
    return why if code.isdecimal() and why else f"the helper printed {said!r}"


def tell(status: int, failure: NotStarted) -> None:
    """Report why the command did not start, on `status` or else on standard error. Never raises."""
    from ..linux.process import SIGPIPE, block_signals  # loaded long ago in a process that fails

    block_signals((SIGPIPE,))
    try:
        if status >= 0 and os.write(status, written(failure.code, str(failure))):
            return
    except OSError:
        pass  # the other end is closed
    try:
        os.write(2, f"staddle: {failure}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def reason(error: BaseException, doing: str = "") -> bytes:
    """Return the error as one sentence, after the step that failed."""
    from ..errors import StaddleError  # loaded long ago in a process that gives reasons
    from .wire import Malformed

    text = str(error) if isinstance(error, StaddleError | Malformed) else str(not_started(error))
    return f"{doing}: {text}".removeprefix(": ").encode("utf-8", "backslashreplace")[:2048]
