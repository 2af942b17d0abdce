"""A strict reader and writer of tar: POSIX headers with extended (pax) records only.

The agent or a stranger made the tar: every size in it is only a claim. It is refused if a header is
inconsistent, a kind unknown, a record too long or the end missing. The reader never seeks and never trusts a
size beyond the next block.
"""

from __future__ import annotations

import errno
import os
import stat

from .._value import Value
from ..errors import ArchiveRefused
from ..linux.fileio import write_all
from .tree import MARKS, OPAQUE, open_deep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal, Protocol

    Kind = Literal["file", "directory", "symlink", "link", "whiteout", "device"]

    class ByteReader(Protocol):
        """A file to read from."""

        def read(self, size: int, /) -> bytes: ...


BLOCK = 512
#: For the records of one member: names and attributes, which a file system limits similarly.
MOST_RECORD_BYTES = 1 << 18
_TYPES: dict[Kind, bytes] = {
    "file": b"0",
    "link": b"1",
    "symlink": b"2",
    "whiteout": b"3",
    "directory": b"5",
}
_KINDS: dict[bytes, Kind] = {code: kind for kind, code in _TYPES.items()} | {b"\0": "file"}
#: Character and block devices, pipes: reported as such if asked for, never made.
_DEVICES = (b"3", b"4", b"6")
_XATTR = b"SCHILY.xattr."


class Member(Value):
    """One entry. `size` is the length of the content that follows; `attributes` are extended, by name."""

    kind: Kind
    path: str
    mode: int = 0o644
    mtime: float = 0
    size: int = 0
    target: str = ""
    attributes: tuple[tuple[str, bytes], ...] = ()
    #: Records that are not part of tar.
    notes: tuple[tuple[str, str], ...] = ()


class Content:
    """The content of the current member. Unread content is skipped."""

    def __init__(self, source: ByteReader, size: int) -> None:
        self._source, self._left, self._padding = source, size, -size % BLOCK

    def read(self, size: int) -> bytes:
        """At most `size` bytes; empty at the end of the member."""
        data = _exactly(self._source, min(size, self._left))
        self._left -= len(data)
        return data

    def finish(self) -> None:
        """Skip the rest."""
        while self._left:
            self.read(1 << 20)
        _exactly(self._source, self._padding)
        self._padding = 0


def members(source: ByteReader, *, devices: bool = False) -> Iterator[tuple[Member, Content]]:
    """Each member in turn. ArchiveRefused for another format, an unsupported kind, or an early end.

    With `devices`, devices are members of that kind; else only a whiteout is one.
    """
    while True:
        records: dict[bytes, bytes] = {}
        header = _exactly(source, BLOCK)
        before = 0
        while header[156:157] in (b"x", b"L", b"K"):
            before += 1
            if before > 3:
                raise _refused("there are too many records about one entry")
            data = _extension(header, source)
            if header[156:157] == b"x":
                records.update(_records(data))
            else:  # GNU tar's format for a long name
                records[b"path" if header[156:157] == b"L" else b"linkpath"] = data.rstrip(b"\0")
            header = _exactly(source, BLOCK)
        if header == bytes(BLOCK):
            if records or _exactly(source, BLOCK) != bytes(BLOCK):
                raise _refused("its length does not match its header")
            return
        if header[156:157] == b"g":  # for all members: git and others put a comment there
            _extension(header, source)
            continue
        member = _member(header, records, devices)
        content = Content(source, member.size)
        yield member, content
        content.finish()


def write(member: Member, write_out: Callable[[bytes], object]) -> None:
    """Write the header of `member`. Its content must follow, `member.size` bytes, then `padding`."""
    path, target = os.fsencode(member.path), os.fsencode(member.target)
    records = {_XATTR + os.fsencode(name): value for name, value in member.attributes}
    records |= {name.encode(): value.encode() for name, value in member.notes}
    if len(path) > 100 or not path.isascii():
        records[b"path"] = path
    if len(target) > 100 or not target.isascii():
        records[b"linkpath"] = target
    if member.size >= 1 << 33:
        records[b"size"] = b"%d" % member.size
    records[b"mtime"] = b"%.9f" % member.mtime
    data = b"".join(_record(name, value) for name, value in records.items())
    write_out(_header(b"x", b"././@PaxHeader", len(data), mode=0o644, mtime=0))
    write_out(data + padding(len(data)))
    kind = _TYPES[member.kind]
    write_out(
        _header(kind, path[:100], member.size, mode=member.mode, mtime=int(member.mtime), target=target[:100])
    )


def padding(size: int) -> bytes:
    """The padding after content of this size."""
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def _header(kind: bytes, path: bytes, size: int, *, mode: int, mtime: int, target: bytes = b"") -> bytes:
    fields = [
        path.ljust(100, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0" * 2,
        b"%011o\0" % (size if size < 1 << 33 else 0),
        b"%011o\0" % min(max(mtime, 0), (1 << 33) - 1),
        b" " * 8,
        kind,
        target.ljust(100, b"\0"),
        b"ustar\x0000",
        bytes(64),
        b"0000000\0" * 2,
        bytes(167),
    ]
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _extension(header: bytes, source: ByteReader) -> bytes:
    _checked(header)
    size = _number(header[124:136])
    if size > MOST_RECORD_BYTES:
        raise _refused("a record is too long")
    return _exactly(source, size + -size % BLOCK)[:size]


def _member(header: bytes, records: dict[bytes, bytes], devices: bool) -> Member:
    _checked(header)
    kind = _KINDS.get(header[156:157])
    if devices and header[156:157] in _DEVICES:
        kind = "device"
    if kind is None:
        raise _refused(
            f"it contains an entry of kind {header[156:157]!r}, which is not a file, directory or link"
        )
    path = records.get(b"path")
    if path is None:
        prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
        path = (prefix + b"/" if prefix else b"") + _text(header[:100])
    if kind == "file" and path.endswith(b"/"):
        kind = "directory"  # the oldest format of a directory
    size = _decimal(records[b"size"]) if b"size" in records else _number(header[124:136])
    if kind == "whiteout" and (_number(header[329:337]), _number(header[337:345])) != (0, 0):
        raise _refused("it contains a device")
    if kind != "file":
        size = 0
    if any(name.startswith(b"GNU.sparse") for name in records):
        raise _refused("it contains a sparse file of an unsupported format")
    target = records.get(b"linkpath", _text(header[157:257])) if kind in ("link", "symlink") else b""
    return Member(
        kind,
        os.fsdecode(path.rstrip(b"/") if kind == "directory" else path),
        _number(header[100:108]) & 0o7777,
        _seconds(records[b"mtime"]) if b"mtime" in records else _number(header[136:148]),
        size,
        os.fsdecode(target),
        tuple(
            (os.fsdecode(name[len(_XATTR) :]), value)
            for name, value in records.items()
            if name.startswith(_XATTR)
        ),
        tuple(
            (name.decode("ascii", "replace"), value.decode("ascii", "replace"))
            for name, value in records.items()
            if name.startswith(b"STADDLE.")
        ),
    )


def _checked(header: bytes) -> None:
    total = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if _number(header[148:156]) != total:
        raise _refused("a header is damaged, or this is not a tar file")


def _number(field: bytes) -> int:
    """An octal number. Refuses negative and binary ones, which none of our files needs."""
    digits = field.strip(b"\0 ")
    if not digits:
        return 0
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise _refused("a number in a header is not valid")
    return int(digits, 8)


def _decimal(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise _refused("a size in a record is not valid")
    return int(value)


def _seconds(value: bytes) -> float:
    if not value.lstrip(b"-").replace(b".", b"", 1).isdigit() or len(value) > 40:
        raise _refused("a time in a record is not valid")
    return max(min(float(value), float(1 << 40)), -float(1 << 40))


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _records(data: bytes) -> dict[bytes, bytes]:
    found = {}
    while data:
        digits, space, _ = data.partition(b" ")
        if not space or not digits.isdigit() or len(digits) > 9:
            raise _refused("a record is damaged")
        length = int(digits)
        line = data[len(digits) + 1 : length]
        name, equals, value = line.partition(b"=")
        if length > len(data) or not equals or value[-1:] != b"\n":
            raise _refused("a record is damaged")
        found[name] = value[:-1]
        data = data[length:]
    return found


def _record(name: bytes, value: bytes) -> bytes:
    rest = len(name) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, name, value)


def _exactly(source: ByteReader, size: int) -> bytes:
    if not size:
        return b""
    parts, left = [], size
    while left:
        data = source.read(left)
        if not data:
            raise _refused("it ends too early")
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def _refused(why: str) -> ArchiveRefused:
    return ArchiveRefused("the archive is refused", why=why, fix="nothing was changed; make it again")


# Unpack the members of a tar below one directory, and nowhere else.
# Paths are checked before use: relative, without `..`, `.` or empty parts. Every parent directory must come
# from the same archive and is opened without following links, so a link made by an earlier member is never
# followed. Nothing is made twice. Limits apply to the bytes written, not to the sizes in headers.
# `layers/merge.py` copies from a trusted tree. This reads an untrusted stream, even inside a sandbox, where
# that package is not loaded.


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 18
#: Errors caused by a name, or by the size of a file.
_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EISDIR, errno.ENOTDIR, errno.EFBIG)
#: Allocation unit of file systems, and approximate size of an entry without its content.
_BLOCK, _INODE = 4096, 1024


class UnpackBounds(Value):
    """Bounds of an unpacked archive: bytes in all its files, entries, and components of one path."""

    bytes: int = 16 << 30
    entries: int = 2_000_000
    depth: int = 4096


class Unpacker:
    """Unpacks members below `destination`, an empty directory of ours. As root, `owner` gets the files.

    `taking` is called with the bytes that the next entry or content needs on disk, before it is written, and
    may refuse.
    """

    def __init__(
        self,
        destination: str,
        bounds: UnpackBounds,
        *,
        owner: tuple[int, int] | None = None,
        layer: bool = True,
        taking: Callable[[int], object] | None = None,
    ) -> None:
        self._root = os.open(destination, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._bounds, self._owner, self._taking = bounds, owner, taking
        #: Whether whiteouts and opaque directories have a meaning here.
        self._layer = layer
        self._bytes = self._entries = 0
        self._modes: list[tuple[str, int, float]] = []

    def add(self, member: Member, path: str, content: Content) -> None:
        """Make `member` at `path`. ArchiveRefused if that is not allowed."""
        self._entries += 1
        if self._entries > self._bounds.entries:
            raise _not_unpacked(f"it contains more than {self._bounds.entries:,} entries")
        if self._taking is not None:
            self._taking(_BLOCK if member.kind == "directory" else _INODE)
        parts = path.split("/")
        if len(parts) > self._bounds.depth:
            raise _not_unpacked(f"it nests directories deeper than {self._bounds.depth:,}")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise _not_unpacked(f"{path!r} is not a valid name for a file in it")
        parent, _, name = path.rpartition("/")
        try:
            here = open_deep(self._root, parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _not_unpacked(
                f"{path!r} has no directory to be in: {os.strerror(error.errno or 0)}"
            ) from None
        try:
            self._make(member, path, name, here, content)
        except FileExistsError:
            raise _not_unpacked(f"{path!r} is in it twice") from None
        except OSError as error:
            if error.errno not in _IMPOSSIBLE:
                raise  # a full disk is not the archive's fault
            raise _not_unpacked(f"{path!r} cannot be made: {error.strerror}") from None
        finally:
            os.close(here)

    def finish(self) -> None:
        """Set permissions and times of directories, after all entries are made."""
        for path, mode, mtime in reversed(self._modes):
            fd = open_deep(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fchmod(fd, mode & 0o777)
                os.utime(fd, (mtime, mtime))
            finally:
                os.close(fd)

    def close(self) -> None:
        """Close the directory."""
        os.close(self._root)

    def _make(self, member: Member, path: str, name: str, here: int, content: Content) -> None:
        if member.kind == "directory":
            os.mkdir(name, 0o700, dir_fd=here)
            self._modes.append((path, member.mode, member.mtime))
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            try:
                self._attributes(member, fd)
            finally:
                os.close(fd)
        elif member.kind == "file":
            self._file(member, name, here, content)
        elif member.kind == "symlink":
            if not member.target or "\0" in member.target:
                raise _not_unpacked(f"the link {path!r} points to nothing")
            os.symlink(member.target, name, dir_fd=here)
        elif member.kind == "link":
            self._link(member, path, name, here)
            return
        elif self._layer:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=here)
        else:
            raise _not_unpacked("it contains a device")
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=here, follow_symlinks=False)

    def _file(self, member: Member, name: str, here: int, content: Content) -> None:
        fd = os.open(name, _NEW, 0o600, dir_fd=here)
        try:
            for at, length in extents(member):
                self._extent(fd, at, length, content)
            size = dict(member.notes).get("STADDLE.size")
            if size is not None:
                os.ftruncate(fd, int(size))
            self._attributes(member, fd)
            os.fchmod(fd, member.mode & 0o777)
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)

    def _extent(self, fd: int, at: int, length: int, content: Content) -> None:
        os.lseek(fd, at, os.SEEK_SET)
        if self._taking is not None and length:
            self._taking(_BLOCK * ((at + length - 1) // _BLOCK - at // _BLOCK + 1))
        while length and (data := content.read(min(length, _CHUNK))):
            self._bytes += len(data)
            if self._bytes > self._bounds.bytes:
                raise _not_unpacked(f"it becomes more than {self._bounds.bytes:,} bytes")
            length -= len(data)
            write_all(fd, data)

    def _link(self, member: Member, path: str, name: str, here: int) -> None:
        parent, _, first = member.target.rpartition("/")
        try:
            there = open_deep(self._root, parent, os.O_PATH | os.O_DIRECTORY)
            try:
                if not stat.S_ISREG(os.stat(first, dir_fd=there, follow_symlinks=False).st_mode):
                    raise _not_unpacked(f"the link {path!r} points to something that is not a file")
                os.link(first, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
            finally:
                os.close(there)
        except FileExistsError:
            raise
        except OSError:
            raise _not_unpacked(f"the link {path!r} is to nothing that is in it") from None

    def _attributes(self, member: Member, fd: int) -> None:
        """Set user.* attributes; of the kernel's marks only the one that a layer needs."""
        for name, value in member.attributes:
            if name == OPAQUE:
                if self._layer and member.kind == "directory" and value == b"y":
                    os.setxattr(fd, name, value)
            elif name.startswith("user.") and not name.startswith(MARKS):
                try:
                    os.setxattr(fd, name, value)
                except OSError:
                    raise _not_unpacked(f"the attribute {name!r} cannot be set") from None


def extents(member: Member) -> list[tuple[int, int]]:
    """Extents of a file's content: (offset, length), ascending, within its size, as long as the member."""
    notes = dict(member.notes)
    if "STADDLE.size" not in notes:
        return [(0, member.size)]
    size, text = notes["STADDLE.size"], notes.get("STADDLE.extents", "")
    if not size.isdecimal() or not size.isascii() or len(size) > 18:
        raise _not_unpacked("the size of a sparse file is not valid")
    found, end = [], 0
    for pair in text.split(",") if text else ():
        at, plus, length = pair.partition("+")
        if not (plus and at.isdecimal() and length.isdecimal() and pair.isascii() and len(pair) < 40):
            raise _not_unpacked("the map of a sparse file is damaged")
        if int(at) < end:
            raise _not_unpacked("the map of a sparse file goes backwards")
        end = int(at) + int(length)
        found.append((int(at), int(length)))
    if end > int(size) or sum(length for _, length in found) != member.size:
        raise _not_unpacked("the map of a sparse file does not fit it")
    return found


def _not_unpacked(why: str) -> ArchiveRefused:
    return ArchiveRefused(
        "the archive is refused", why=why, fix="make it again with tar; nothing of it was unpacked"
    )
