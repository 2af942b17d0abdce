"""Messages between the host program and the file server of a sandbox.

A question is an operation, some paths, some numbers, and perhaps a pipe for long data. Its answers are rows,
in as many messages as needed, and a last message; or an error, which is the last message. The host program
trusts no answer: code in the sandbox may have taken over the server.
"""

from __future__ import annotations

import errno
import os

from . import wire
from .wire import Malformed, receive_last, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence

    FileRow = tuple[bytes, int, int, int, int, int, bytes]

# Operations: the paths; the numbers.
OPEN = b"open"  # file; the answer is a descriptor for reading
WRITE = b"write"  # file, (content); whether to create directories; or the content comes by a pipe
CREATE = b"create"  # as WRITE; fails if the file exists
APPEND = b"append"  # file, content; whether to create directories
WRITE_MANY = b"write many"  # file, content, file, content, ...; whether to create directories
LIST = b"list"  # directory; whether links are followed
TREE = b"tree"  # directory: everything below it
READLINK = b"readlink"  # link
REALPATH = b"realpath"  # any path; its path without links
CHMOD = b"chmod"  # any path; permissions
COPY = b"copy"  # from, to; whether to replace a file there
STATUS = b"status"  # any path; whether to follow a link
MAKE = b"make"  # directory; whether to create parents, and accept an existing one
RENAME = b"rename"  # from, to; whether to replace an entry there
REMOVE = b"remove"  # any path; whether to remove a directory with its contents
GLOB = b"glob"  # directory, pattern
PACK = b"pack"  # directory or file; a pipe for the tar
UNPACK = b"unpack"  # directory; a pipe with the tar
REAL = b"real"  # directory; its path without links
# The same for tools that stay beneath a directory and follow no link (files/beneath.py).
OPEN_BENEATH = b"open beneath"  # directory, file
WRITE_BENEATH = b"write beneath"  # directory, file, (content); else by a pipe
REMOVE_BENEATH = b"remove beneath"  # directory, file
GLOB_BENEATH = b"glob beneath"  # directory, pattern
# After data from a pipe: it is complete, or it must be dropped.
ALL, DROP = b"all", b"drop"

#: Operations that change nothing, and can be repeated.
LOOKS = (OPEN, LIST, TREE, STATUS, READLINK, REALPATH, GLOB, REAL, OPEN_BENEATH, GLOB_BENEATH)

QUESTION, MORE, LAST, ERROR = b"?", b"+", b"=", b"-"
#: name, mode, size, modified (nanoseconds), uid, gid, name of the owner
Row = (bytes, int, int, int, int, int, bytes)
_SHAPES: dict[bytes, tuple[object, ...]] = {
    QUESTION: (bytes, [bytes], [int]),
    MORE: ([Row],),
    LAST: ([Row],),
    ERROR: (bytes, int, bytes, bytes, bytes),  # kind, errno, what or path, why, fix
}
#: The most bytes of one message; content up to INLINE comes in the question itself.
LONGEST, INLINE = 64 << 10, 32 << 10
#: Rows are sent when they have this many bytes.
ENOUGH = 24 << 10
#: The kinds of errors that are not the kernel's.
KINDS = (b"PathEscape", b"PathNotAllowed", b"PolicyError", b"ArchiveRefused")
OF_KERNEL = b"OSError"


class Said:
    """One message: its letter, its fields, and a descriptor (-1: none), which the receiver closes."""

    def __init__(self, letter: bytes, fields: tuple[object, ...], descriptor: int) -> None:
        self.letter, self.fields, self.descriptor = letter, fields, descriptor

    def close(self) -> None:
        """Close the descriptor, if there is one."""
        if self.descriptor >= 0:
            fd, self.descriptor = self.descriptor, -1
            os.close(fd)


def send_message(
    socket: _socket.socket, letter: bytes, *fields: object, descriptors: Sequence[int] = ()
) -> None:
    """Send a message. OSError if the other end is closed, or the message does not fit."""
    send(socket, wire.encode(letter, fields), descriptors)


def receive_message(socket: _socket.socket) -> Said | None:
    """Return the next message; None if the other end is closed. Malformed for anything else.

    ConnectionResetError if it was closed before it read our last message.
    """
    data, descriptors, unheard = receive_last(socket, LONGEST)
    if not data and not descriptors:
        if unheard is not None:
            raise unheard
        return None
    try:
        letter = data[:1]
        shapes = _SHAPES.get(letter)
        if shapes is None or len(descriptors) > 1:
            raise Malformed(f"there is no message {letter!r} with {len(descriptors)} descriptors")
        fields = wire.decode(letter, data, len(shapes))
        if not all(wire.fits(field, shape) for field, shape in zip(fields, shapes, strict=True)):
            raise Malformed(f"the fields of {letter!r} are not what they should be")
    except BaseException:
        for fd in descriptors:
            os.close(fd)
        raise
    return Said(letter, fields, descriptors[0] if descriptors else -1)


def error_of(said: Said) -> Exception:
    """Return the error of an operation inside, as the host program raises it; with its own words, if any."""
    from .. import errors
    from ..display import shown

    kind, number, what, why, fix = said.fields
    reason = shown(why)  # type: ignore[arg-type]
    if kind in KINDS:
        found: type[errors.StaddleError] = getattr(errors, kind.decode())
        return found(shown(what), why=reason, fix=shown(fix))  # type: ignore[arg-type]
    number = number if 0 < number < 4096 else errno.EIO  # type: ignore[operator]
    return OSError(number, reason or os.strerror(number), os.fsdecode(what) or None)  # type: ignore[arg-type]
