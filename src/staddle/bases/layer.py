"""Apply one layer of an image to a directory: add its entries, remove what it deletes.

The directory is ours, under construction, and no other process uses it. Its links come from the images.
Directories are opened as if ours were the root (openat2, RESOLVE_IN_ROOT), so no link leads out; the last
name of a path is never followed. Set-user-id bits and capabilities are dropped, devices, pipes and sockets
are left out, and everything belongs to the importing user.

The result is a plain tree in which later layers replace entries of earlier ones, not a layer of overlayfs, so
`layers/merge.py` is not used here.
"""

from __future__ import annotations

import errno
import os
import stat

from ..files.remove_tree import remove
from ..files.tar import UnpackBounds, members
from ..linux.fileio import write_all
from ..linux.openat2 import open_in_root
from .image import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..files.tar import ByteReader, Content, Member

#: The first prefix deletes the name that follows it; the second name deletes everything in its directory.
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_CHUNK = 1 << 18


class Layers:
    """Applies layers, the lowest first, to the empty directory `root`. Counts what it writes."""

    def __init__(self, root: str, bounds: UnpackBounds) -> None:
        self._path = root
        self._root = os.open(root, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._bounds = bounds
        self.bytes = self.entries = 0
        self._made: set[str] = set()  # paths made by the current layer
        self._serial = 0

    def apply(self, source: ByteReader) -> None:
        """Apply one layer, an uncompressed tar."""
        self._made = set()
        for member, content in members(source, devices=True):
            self._add(member, content)

    def close(self) -> None:
        """Close the directory."""
        os.close(self._root)

    def _add(self, member: Member, content: Content) -> None:
        self.entries += 1
        if self.entries > self._bounds.entries:
            raise refused(f"it contains more than {self._bounds.entries:,} entries")
        parts = _parts(member.path)
        if len(parts) > self._bounds.depth:
            raise refused(f"it nests directories deeper than {self._bounds.depth:,}")
        if not parts or member.kind in ("device", "whiteout"):
            return
        name = parts[-1]
        try:
            here = self._directory(parts[:-1])
        except OSError as error:
            raise _impossible(member, error) from None
        try:
            if name == OPAQUE:
                self._clear(here, parts[:-1])
            elif name.startswith(f"{WHITEOUT}{WHITEOUT}"):
                pass  # internal files of an old Docker file system
            elif name.startswith(WHITEOUT):
                self._take_away(here, parts[:-1], name.removeprefix(WHITEOUT))
            else:
                self._make(member, name, here, content)
                self._remember(parts)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise  # not the archive's fault
            raise _impossible(member, error) from None
        finally:
            os.close(here)

    def _directory(self, parts: list[str]) -> int:
        """Open the parent directory; make it if the layer does not contain it."""
        path = "/".join(parts)
        try:
            return open_in_root(self._root, path or ".", _DIRECTORY)
        except FileNotFoundError:
            pass
        here = open_in_root(self._root, ".", _DIRECTORY)
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            try:
                below = open_in_root(self._root, path, _DIRECTORY)
            except FileNotFoundError:
                try:
                    os.mkdir(parts[end - 1], 0o755, dir_fd=here)
                    below = open_in_root(self._root, path, _DIRECTORY)
                except BaseException:
                    os.close(here)
                    raise
            except BaseException:
                os.close(here)
                raise
            above, here = here, below
            os.close(above)
        return here

    def _make(self, member: Member, name: str, here: int, content: Content) -> None:
        there = _status(name, here)
        if member.kind == "directory":
            if there is None or not stat.S_ISDIR(there.st_mode):
                self._drop(name, here)
                os.mkdir(name, 0o700, dir_fd=here)
            # The importing user must be able to read and remove it.
            os.chmod(name, member.mode & 0o777 | 0o700, dir_fd=here)
            return
        if member.kind == "link":
            self._link(member, name, here)
            return
        self._drop(name, here)
        if member.kind == "symlink":
            if not member.target or "\0" in member.target:
                raise refused(f"the link {member.path!r} points to nothing")
            os.symlink(member.target, name, dir_fd=here)
            return
        fd = os.open(name, _NEW, 0o600, dir_fd=here)
        try:
            while data := content.read(_CHUNK):
                self.bytes += len(data)
                if self.bytes > self._bounds.bytes:
                    raise refused(f"it becomes more than {self._bounds.bytes:,} bytes")
                write_all(fd, data)
            os.fchmod(fd, member.mode & 0o777 | 0o400)
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)

    def _link(self, member: Member, name: str, here: int) -> None:
        """Make a hard link to a file of this layer, or of one below."""
        parts = _parts(member.target)
        if not parts:
            raise refused(f"the link {member.path!r} is to nothing that is in it")
        try:
            there = open_in_root(self._root, "/".join(parts[:-1]) or ".", os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise refused(f"the link {member.path!r} is to nothing that is in it") from None
        try:
            found = _status(parts[-1], there)
            if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                raise refused(f"the link {member.path!r} is to nothing that is in it")
            now = _status(name, here)
            if now is not None and os.path.samestat(now, found):
                return
            self._drop(name, here)
            os.link(parts[-1], name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        finally:
            os.close(there)

    # Deletions.

    def _remember(self, parts: list[str]) -> None:
        path = "/".join(parts)
        while path and path not in self._made:
            self._made.add(path)
            path = path.rpartition("/")[0]

    def _take_away(self, here: int, parts: list[str], name: str) -> None:
        if name in ("", ".", "..") or "/".join([*parts, name]) in self._made:
            return
        self._drop(name, here)

    def _clear(self, here: int, parts: list[str]) -> None:
        """Delete everything that lower layers put into a directory."""
        for name in os.listdir(here):
            path = [*parts, os.fsdecode(name)]
            if "/".join(path) not in self._made:
                self._drop(os.fsdecode(name), here)
                continue
            status = _status(os.fsdecode(name), here)
            if status is not None and stat.S_ISDIR(status.st_mode) and len(path) <= self._bounds.depth:
                below = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                try:
                    self._clear(below, path)
                finally:
                    os.close(below)

    def _drop(self, name: str, here: int) -> None:
        """Remove the entry of this name with its content, if it exists."""
        try:
            os.unlink(name, dir_fd=here)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            # Move it beside the root first: that is instant, and needs no path that could contain a link.
            self._serial += 1
            gone = f"{os.path.dirname(self._path)}/gone-{self._serial}"
            os.rename(name, gone, src_dir_fd=here)
            remove((os.fsencode(gone),))


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise refused(f"{path!r} is not a valid name for a file in it")
    return parts


def _status(name: str, here: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _impossible(member: Member, error: OSError) -> Exception:
    return refused(f"{member.path!r} cannot be made: {error.strerror}")
