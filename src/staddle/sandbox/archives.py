"""Directories of a sandbox as tar, in and out, piece by piece: nothing is ever whole in memory.

The file_client inside packs and unpacks, with the sandbox's rights. What it sends out is read here
by the strict reader and written anew: the caller gets a tar, with names that do not lead
out, and no devices, whatever was sent.
"""

from __future__ import annotations

import errno
import os

from ..errors import ArchiveRefused, InvalidCall
from ..files.tar import END, Member, members, padding, write
from ..ipc import file_messages
from .files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from .arguments import User
    from .file_tools import AnyPath, ByteSource, Owner

_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
#: Entries of one archive, as for unpacking.
_MOST_ENTRIES = 2_000_000


def upload(sandbox: Owner, file: ByteSource, path: AnyPath, user: User = None) -> None:
    """Unpack `file` at `path`, which is made if it is not there, as `user`."""
    if isinstance(file, str | bytes | os.PathLike) or not hasattr(file, "read"):
        raise InvalidCall(f"the tar is {file!r}", why="it is not a file", fix='give open("x.tar", "rb")')
    files = Files(sandbox, user)
    first = _piece(file, _CHUNK)
    source = _unzipped(_Again(first, file)) if first.startswith(_GZIP) else _Again(first, file)
    files.mkdir(path, parents=True)
    inside, name = files._at(path)
    client = files._client(inside)
    with client.turn:
        sending = client.send(file_messages.UNPACK, name)
        try:
            while data := source.read(_CHUNK):
                sending.write(data)
            sending.finish()
        finally:
            sending.drop()
    inside.pass_over()


def download(sandbox: Owner, file: IO[bytes], path: AnyPath, limit: int | None, user: User = None) -> None:
    """Write what is at `path`, as `user` sees it, to `file`."""
    if not hasattr(file, "write"):
        raise InvalidCall(f"the tar is {file!r}", why="it is not a file", fix='give open("x.tar", "wb")')
    files = Files(sandbox, user)
    inside, name = files._at(path)
    client = files._client(inside)
    with client.turn:
        receiving = client.receive(file_messages.PACK, name)
        try:
            relay(receiving, _bounded(file.write, limit))
        finally:
            receiving.close()


def relay(source: ByteSource, write_out: Callable[[bytes], object]) -> None:
    """Read a tar and write it anew, member by member. ArchiveRefused when it is not such as we make them."""
    for count, (member, content) in enumerate(members(source)):
        if count >= _MOST_ENTRIES:
            raise _refused(f"it contains more than {_MOST_ENTRIES:,} entries")
        names = (member.path, member.target) if member.kind == "link" else (member.path,)
        if member.kind == "whiteout" or not all(map(_is_plain, names)):
            raise _refused(f"{member.path!r} is not a file that can be exported")
        known = Member(
            member.kind, member.path, member.mode & 0o777, member.mtime, member.size, member.target
        )
        write(known, write_out)
        while data := content.read(_CHUNK):
            write_out(data)
        if member.size:
            write_out(padding(member.size))
    write_out(END)
    if source.read(1):
        raise _refused("there are bytes after the end")


def _is_plain(name: str) -> bool:
    return not any(part in ("", ".", "..") or "\0" in part for part in name.split("/"))


def _bounded(write_out: Callable[[bytes], object], limit: int | None) -> Callable[[bytes], None]:
    written = 0

    def bounded(data: bytes) -> None:
        nonlocal written
        written += len(data)
        if limit is not None and written > limit:
            raise OSError(errno.EFBIG, f"it becomes more than {limit:,} bytes")
        write_out(data)

    return bounded


class _Again:
    """A file whose beginning has been read."""

    def __init__(self, first: bytes, file: ByteSource) -> None:
        self._first, self._file = first, file

    def read(self, size: int, /) -> bytes:
        if self._first:
            data, self._first = self._first[:size], self._first[size:]
            return data
        return _piece(self._file, size)


class _Unzipped:
    def __init__(self, source: ByteSource) -> None:
        import gzip

        self._file = gzip.GzipFile(fileobj=source, mode="rb")  # type: ignore[call-overload]

    def read(self, size: int, /) -> bytes:
        import zlib

        try:
            data: bytes = self._file.read(size)
        except (EOFError, zlib.error, OSError) as error:
            raise _refused(f"it is damaged: {error}") from None
        return data


def _unzipped(source: ByteSource) -> ByteSource:
    return _Unzipped(source)


def _piece(file: ByteSource, size: int) -> bytes:
    data = file.read(size)
    if not isinstance(data, bytes):
        raise InvalidCall("the tar is a text file", fix='open it with "rb"', why="a tar is bytes")
    return data


def _refused(why: str) -> ArchiveRefused:
    return ArchiveRefused("the archive is refused", why=why, fix="nothing was changed; make it again")
