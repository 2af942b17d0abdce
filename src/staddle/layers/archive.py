"""Layer snapshots saved as one file: a compressed tar with a manifest at its head and a checksum at its end.

    staddle-snapshot            the manifest: format, the names of the layers, and the caller's facts
    layers/<name>/...           one layer for each, squashed; whiteouts as the device 0:0, as in any
                                tar of an overlay, opaque directories by their attribute
    staddle-end                 SHA-256 of all before it, uncompressed

Owners are not kept. Sockets, pipes and devices are not either.
"""

from __future__ import annotations

import os
import stat

from ..errors import LayerError
from ..files.tar import END, Member, padding, write
from ..files.tree import MARKS, OPAQUE, Tree, opacity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO

    from .stack import LayerSnapshot

FORMAT = 1
MANIFEST, END_MARK = "staddle-snapshot", "staddle-end"
_CHUNK = 1 << 20


def save(
    points: Mapping[str, LayerSnapshot],
    path: str,
    *,
    facts: Mapping[str, object] | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Write `points`, each by its name, and `facts` (plain data) to the file `path`, whole or not at all.

    `progress` is called with the number of entries written.
    """
    from ..files.beneath import open_for_write

    directory, name = os.path.split(os.fspath(path))
    # Without a name until it is whole, where the file system can: a kill leaves nothing.
    with open_for_write(directory or ".", name, 0o600) as pending:
        with open(os.dup(pending.fileno()), "wb") as raw, _compressing(raw) as out:
            _write_all(_Sink(out, progress), points, facts or {})
        os.fsync(pending.fileno())


def _write_all(sink: _Sink, points: Mapping[str, LayerSnapshot], facts: Mapping[str, object]) -> None:
    import json

    manifest = {"format": FORMAT, "layers": list(points), "facts": dict(facts)}
    sink.add(Member("file", MANIFEST), json.dumps(manifest).encode())
    sink.add(Member("directory", "layers", 0o700))
    for name, point in points.items():
        if not name or "/" in name or name in (".", ".."):
            raise LayerError(f"{name!r} is no name for a layer")
        whole = point.squashed()
        try:
            sink.layer(whole.layers[0].upper if whole.layers else None, f"layers/{name}")
        finally:
            whole.close()
    sink.end()


class _Sink:
    """A tar being written, its checksum with it."""

    def __init__(self, out: IO[bytes], progress: Callable[[int], object] | None) -> None:
        from hashlib import sha256

        self._out, self._progress = out, progress
        self._digest = sha256()
        self._count = 0
        self._linked: dict[int, str] = {}

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._out.write(data)

    def add(self, member: Member, data: bytes = b"") -> None:
        write(member.replace(size=len(data)), self._write)
        self._write(data + padding(len(data)))
        self._count += 1
        if self._progress is not None and self._count % 256 == 0:
            self._progress(self._count)

    def end(self) -> None:
        self.add(Member("file", END_MARK), self._digest.hexdigest().encode())
        self._write(END)
        if self._progress is not None:
            self._progress(self._count)

    def layer(self, upper: str | None, prefix: str) -> None:
        """Write one layer below `prefix`."""
        self._linked.clear()
        if upper is None:
            self.add(Member("directory", prefix, 0o755))
            return
        top = os.stat(upper)
        todo = [("", top)]
        with Tree(upper, ours=True) as tree:
            while todo:
                path, status = todo.pop()
                fd = tree.directory(path)
                try:
                    marks = ((OPAQUE, b"y"),) if opacity(fd) == b"y" else ()
                    place = f"{prefix}/{path}" if path else prefix
                    self.add(_member("directory", place, status, attributes=(*marks, *_attributes(fd))))
                    with os.scandir(fd) as entries:
                        for entry in sorted(entries, key=lambda entry: entry.name):
                            below = f"{path}/{entry.name}" if path else entry.name
                            found = entry.stat(follow_symlinks=False)
                            if stat.S_ISDIR(found.st_mode):
                                todo.append((below, found))
                            else:
                                self._entry(tree, fd, prefix, below, found)
                finally:
                    os.close(fd)
                    tree.give_back()

    def _entry(self, tree: Tree, directory: int, prefix: str, path: str, status: os.stat_result) -> None:
        place, name = f"{prefix}/{path}", path.rpartition("/")[2]
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            self.add(Member("whiteout", place, 0))
        elif stat.S_ISLNK(status.st_mode):
            self.add(_member("symlink", place, status, target=os.readlink(name, dir_fd=directory)))
        elif stat.S_ISREG(status.st_mode):
            if status.st_nlink > 1 and status.st_ino in self._linked:
                self.add(_member("link", place, status, target=self._linked[status.st_ino]))
                return
            if status.st_nlink > 1:
                self._linked[status.st_ino] = path
            fd = tree.file(directory, name)
            try:
                self._file(fd, place, status)
            finally:
                os.close(fd)

    def _file(self, fd: int, place: str, status: os.stat_result) -> None:
        pieces = list(_pieces(fd, status))
        size = sum(length for _, length in pieces)
        notes: tuple[tuple[str, str], ...] = ()
        if pieces != [(0, status.st_size)] and status.st_size:
            text = ",".join(f"{at}+{length}" for at, length in pieces)
            notes = (("STADDLE.size", str(status.st_size)), ("STADDLE.extents", text))
        member = _member("file", place, status, attributes=_attributes(fd)).replace(size=size, notes=notes)
        write(member, self._write)
        for start, length in pieces:
            at = start
            while at < start + length:
                data = os.pread(fd, min(start + length - at, _CHUNK), at)
                if not data:
                    raise LayerError("a file became shorter while it was saved", why="something still writes")
                self._write(data)
                at += len(data)
        self._write(padding(size))
        self._count += 1


def _member(
    kind: str,
    place: str,
    status: os.stat_result,
    *,
    target: str = "",
    attributes: tuple[tuple[str, bytes], ...] = (),
) -> Member:
    mode, mtime = stat.S_IMODE(status.st_mode) & 0o777, status.st_mtime_ns / 1e9
    return Member(kind, place, mode, mtime, target=target, attributes=attributes)  # type: ignore[arg-type]


def _attributes(fd: int) -> tuple[tuple[str, bytes], ...]:
    try:
        names = os.listxattr(fd)
    except OSError:
        return ()
    mine = (name for name in sorted(names) if name.startswith("user.") and not name.startswith(MARKS))
    return tuple((name, os.getxattr(fd, name)) for name in mine)


def _pieces(fd: int, status: os.stat_result) -> Iterator[tuple[int, int]]:
    """The parts of a file that are not holes. One that is cut into thousands is taken as it is."""
    size = status.st_size
    if status.st_blocks * 512 >= size:
        yield 0, size
        return
    at = 0
    found: list[tuple[int, int]] = []
    while at < size and len(found) < 4096:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break  # a hole up to the end
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < at:
            found.append((start, at - start))
    if len(found) == 4096:
        found = [(0, size)]
    yield from found


def _compressing(raw: IO[bytes]) -> IO[bytes]:
    zstd = zstd_module()
    if zstd is not None:
        return zstd.open(raw, "wb")  # type: ignore[attr-defined, no-any-return]
    import gzip

    return gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0)  # type: ignore[return-value]


def zstd_module() -> object | None:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return __import__(name, fromlist=["open"])
        except ImportError:
            continue
    return None
