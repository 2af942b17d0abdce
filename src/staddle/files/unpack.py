"""The members of a tar made into files below one directory, and nowhere else.

Names are looked at before they are used: relative, without `..`, `.` or empty parts. Every
directory on the way must have been made by the same archive and is opened without following
links, so a link that an earlier member made leads nowhere. Nothing is made twice. What is
written is counted, not what a header claims.

`layers/layer_writer.py` copies from a tree that is trusted; this reads a stream that is not, also inside a
sandbox, where that room is not loaded.
"""

from __future__ import annotations

import errno
import os
import stat

from .._value import Value
from ..errors import ArchiveRefused
from ..linux.fileio import write_all
from .tar import Content, Member
from .tree import MARKS, OPAQUE, open_deep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 18
#: Errors that say something about a name, or about the size of a file.
_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EISDIR, errno.ENOTDIR, errno.EFBIG)
#: What file systems give out at a time, and about what an entry takes without its content.
_BLOCK, _INODE = 4096, 1024


class UnpackBounds(Value):
    """Bounds of an unpacked archive: bytes in all its files, entries, and components of one path."""

    bytes: int = 16 << 30
    entries: int = 2_000_000
    depth: int = 4096


class Unpacker:
    """Makes members below `destination`, an empty directory of ours. `owner` gets them, when we are root.

    `taking` is called with the bytes that the file system needs for the next entry or content, before that
    is written, and may refuse.
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
        #: Whether whiteouts and opaque directories mean something here.
        self._layer = layer
        self._bytes = self._entries = 0
        self._modes: list[tuple[str, int, float]] = []

    def add(self, member: Member, path: str, content: Content) -> None:
        """Make `member` at `path`. ArchiveRefused when it may not be."""
        self._entries += 1
        if self._entries > self._bounds.entries:
            raise _refused(f"it contains more than {self._bounds.entries:,} entries")
        if self._taking is not None:
            self._taking(_BLOCK if member.kind == "directory" else _INODE)
        parts = path.split("/")
        if len(parts) > self._bounds.depth:
            raise _refused(f"it nests directories deeper than {self._bounds.depth:,}")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise _refused(f"{path!r} is not a valid name for a file in it")
        parent, _, name = path.rpartition("/")
        try:
            here = open_deep(self._root, parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _refused(f"{path!r} has no directory to be in: {os.strerror(error.errno or 0)}") from None
        try:
            self._make(member, path, name, here, content)
        except FileExistsError:
            raise _refused(f"{path!r} is in it twice") from None
        except OSError as error:
            if error.errno not in _IMPOSSIBLE:
                raise  # a full disk is not the archive's fault
            raise _refused(f"{path!r} cannot be made: {error.strerror}") from None
        finally:
            os.close(here)

    def finish(self) -> None:
        """Permissions and times of directories, when everything is in them."""
        for path, mode, mtime in reversed(self._modes):
            fd = open_deep(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fchmod(fd, mode & 0o777)
                os.utime(fd, (mtime, mtime))
            finally:
                os.close(fd)

    def close(self) -> None:
        """Done, one way or the other."""
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
                raise _refused(f"the link {path!r} points to nothing")
            os.symlink(member.target, name, dir_fd=here)
        elif member.kind == "link":
            self._link(member, path, name, here)
            return
        elif self._layer:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=here)
        else:
            raise _refused("it contains a device")
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
                raise _refused(f"it becomes more than {self._bounds.bytes:,} bytes")
            length -= len(data)
            write_all(fd, data)

    def _link(self, member: Member, path: str, name: str, here: int) -> None:
        parent, _, first = member.target.rpartition("/")
        try:
            there = open_deep(self._root, parent, os.O_PATH | os.O_DIRECTORY)
            try:
                if not stat.S_ISREG(os.stat(first, dir_fd=there, follow_symlinks=False).st_mode):
                    raise _refused(f"the link {path!r} points to something that is not a file")
                os.link(first, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
            finally:
                os.close(there)
        except FileExistsError:
            raise
        except OSError:
            raise _refused(f"the link {path!r} is to nothing that is in it") from None

    def _attributes(self, member: Member, fd: int) -> None:
        """user.* only; of the kernel's marks the one that a layer needs, where it can be."""
        for name, value in member.attributes:
            if name == OPAQUE:
                if self._layer and member.kind == "directory" and value == b"y":
                    os.setxattr(fd, name, value)
            elif name.startswith("user.") and not name.startswith(MARKS):
                try:
                    os.setxattr(fd, name, value)
                except OSError:
                    raise _refused(f"the attribute {name!r} cannot be set") from None


def extents(member: Member) -> list[tuple[int, int]]:
    """Extents of a file's content: (offset, length), rising, within its size, as long as the member."""
    notes = dict(member.notes)
    if "STADDLE.size" not in notes:
        return [(0, member.size)]
    size, text = notes["STADDLE.size"], notes.get("STADDLE.extents", "")
    if not size.isdecimal() or not size.isascii() or len(size) > 18:
        raise _refused("the size of a sparse file is not valid")
    found, end = [], 0
    for pair in text.split(",") if text else ():
        at, plus, length = pair.partition("+")
        if not (plus and at.isdecimal() and length.isdecimal() and pair.isascii() and len(pair) < 40):
            raise _refused("the map of a sparse file is damaged")
        if int(at) < end:
            raise _refused("the map of a sparse file goes backwards")
        end = int(at) + int(length)
        found.append((int(at), int(length)))
    if end > int(size) or sum(length for _, length in found) != member.size:
        raise _refused("the map of a sparse file does not fit it")
    return found


def _refused(why: str) -> ArchiveRefused:
    return ArchiveRefused(
        "the archive is refused", why=why, fix="make it again with tar; nothing of it was unpacked"
    )
