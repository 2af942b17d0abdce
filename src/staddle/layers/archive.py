"""Layer snapshots saved as one file: a compressed tar with a manifest at its head, a checksum at its end.

    staddle-snapshot            the manifest: format, the names of the layers, and the caller's facts
    layers/<name>/...           each layer, squashed; whiteouts as the device 0:0, as in any tar of
                                an overlay, opaque directories by their attribute
    staddle-end                 SHA-256 of everything before it, uncompressed

Owners, sockets, pipes and devices are not stored. A file that is loaded is untrusted input.

The walk differs from the one in `inside/agent/tar.py`. It reads our frozen layers, with holes, attributes and
whiteouts, and a file that changes meanwhile is an error. The other walk reads a tree in use, with the rights
inside, and copes with files that come and go.
"""

from __future__ import annotations

import os
import stat

from ..errors import ArchiveRefused, LayerError
from ..files.tar import END, Content, Member, UnpackBounds, Unpacker, members, padding, write
from ..files.tree import MARKS, OPAQUE, Tree, opacity
from .merge import prune
from .store import VARIABLE, no_room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO

    from .stack import LayerSnapshot
    from .store import Layer, Store

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
    from ..files.beneath import pending, relative

    directory, name = os.path.split(os.fspath(path))
    # The caller of a snapshot chooses the file, which may be in a directory of ours: a fleet's is.
    root = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # If the file system supports it, the file has no name until it is complete: a kill leaves nothing.
        with pending(root, relative(name), 0o600) as file:
            with open(os.dup(file.fileno()), "wb") as raw, _compressing(raw) as out:
                _write_all(_Sink(out, progress), points, facts or {})
            os.fsync(file.fileno())
    finally:
        os.close(root)


def _write_all(sink: _Sink, points: Mapping[str, LayerSnapshot], facts: Mapping[str, object]) -> None:
    import json

    manifest = {"format": FORMAT, "layers": list(points), "facts": dict(facts)}
    sink.add(Member("file", MANIFEST), json.dumps(manifest).encode())
    sink.add(Member("directory", "layers", 0o700))
    for name, point in points.items():
        if not name or "/" in name or name in (".", ".."):
            raise LayerError(
                f"{name!r} is not a valid name for a layer",
                why="names are letters, digits and dashes",
                fix="choose another",
            )
        whole = point.squashed()
        try:
            sink.layer(whole.layers[0].upper if whole.layers else None, f"layers/{name}")
        finally:
            whole.close()
    sink.end()


class _Sink:
    """A tar that is being written, and its checksum."""

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
                    raise LayerError(
                        "a file became shorter while it was saved",
                        why="something still writes",
                        fix="end what writes, and save it again",
                    )
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
    """Yield the parts of a file that are not holes. If there are thousands, yield it whole."""
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


_MOST_MANIFEST = 64 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def load(
    path: str,
    store: Store,
    *,
    bases: Sequence[str] = (),
    bounds: UnpackBounds | None = None,
    owner: tuple[int, int] | None = None,
    progress: Callable[[int, int], object] | None = None,
    whole: Mapping[str, UnpackBounds] | None = None,
    room: int | None = None,
) -> tuple[dict[str, Layer], dict[str, object]]:
    """Return the layers of the archive at `path`, created in `store`, and its facts.

    Each layer has one reference, which the caller drops. `bases` are the directories below them, if known:
    whiteouts without a file below are left out. `progress` is called with the read and total bytes of the
    file. The layers named in `whole` are directories, without marks, each with its own bounds. `room` limits
    the bytes that all layers together may take in the store.

    On any failure nothing is left behind. ArchiveRefused: `save` does not write such a file. LayerError: the
    layers need more than `room`, or the store is full.
    """
    made: dict[str, Layer] = {}
    taking = None if room is None else _Room(store.path, room).take
    try:
        with open(path, "rb") as raw, _decompressing(_with_progress(raw, progress)) as source:
            facts = _read(
                source, store, made, bounds or UnpackBounds(), owner=owner, whole=whole or {}, taking=taking
            )
        for layer in made.values() if bases else ():
            prune(layer.upper, bases)
        return made, facts
    except BaseException as error:
        for layer in made.values():
            layer.drop()
        if isinstance(error, OSError):
            raise no_room(error, store.path) from None
        raise


class _Room:
    """The bytes that the layers of an archive may still take in a store."""

    def __init__(self, place: str, size: int) -> None:
        self._place, self._size, self._left = place, size, size

    def take(self, size: int) -> None:
        """Count `size` more bytes; LayerError if that is too much."""
        self._left -= size
        if self._left < 0:
            raise LayerError(
                "the archive does not fit into the store",
                why=f"it needs more than {self._size:,} bytes in {self._place!r}; the rest of the free space "
                "is for others",
                fix=f"make room there, or name another directory in ${VARIABLE}; nothing of it was unpacked",
            )


def _read(
    source: IO[bytes],
    store: Store,
    made: dict[str, Layer],
    bounds: UnpackBounds,
    *,
    owner: tuple[int, int] | None,
    whole: Mapping[str, UnpackBounds],
    taking: Callable[[int], object] | None,
) -> dict[str, object]:
    import json

    counted = _BoundedReader(source, bounds)
    entries = members(counted)
    first, content = _next(entries)
    if first.path != MANIFEST or first.kind != "file" or first.size > _MOST_MANIFEST:
        raise _refused("it does not start with a manifest of staddle")
    try:
        manifest = json.loads(_all(content, first.size))
        names, facts = manifest["layers"], manifest["facts"]
        known = manifest["format"] == FORMAT
        fits = isinstance(facts, dict) and all(isinstance(name, str) for name in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _refused("its manifest is damaged") from None
    if not known:
        raise _refused(f"it has the format {manifest['format']!r}, and this staddle reads {FORMAT}")
    if not fits or len(set(names)) != len(names) or len(names) > 1000:
        raise _refused("its manifest is damaged")
    unpackings: dict[str, Unpacker] = {}
    try:
        for name in names:
            made[name] = store.layer().hold()
            most, marks = whole.get(name, bounds), name not in whole
            unpackings[name] = Unpacker(made[name].upper, most, owner=owner, layer=marks, taking=taking)
        _fill(entries, content, counted, unpackings, made)
    finally:
        for unpacking in unpackings.values():
            unpacking.close()
    return dict(facts)


def _fill(
    entries: Iterator[tuple[Member, Content]],
    last: Content,
    counted: _BoundedReader,
    unpackings: dict[str, Unpacker],
    made: dict[str, Layer],
) -> None:
    tops = set()
    while True:
        last.finish()
        digest = counted.digest.copy()  # of everything before the next header
        member, last = _next(entries)
        if member.path == END_MARK:
            if _all(last, 64) != digest.hexdigest().encode():
                raise _refused("its checksum is wrong")
            if next(entries, None) is not None or counted.read(1):
                raise _refused("there are bytes after the end")
            break
        if member.path == "layers" and member.kind == "directory":
            continue
        top, _, rest = member.path.partition("/")
        name, _, path = rest.partition("/")
        if top != "layers" or name not in unpackings:
            raise _refused(f"{member.path!r} belongs to no layer")
        if path:
            unpackings[name].add(member, path, last)
        elif member.kind != "directory" or name in tops:
            raise _refused(f"{member.path!r} is in it twice, or is not a directory")
        else:
            tops.add(name)
            os.chmod(made[name].upper, member.mode & 0o777 | 0o700)
    for unpacking in unpackings.values():
        unpacking.finish()


class _BoundedReader:
    """The uncompressed bytes of an archive: counted against the bounds, and hashed."""

    def __init__(self, source: IO[bytes], bounds: UnpackBounds) -> None:
        from hashlib import sha256

        self._source = source
        self._left = bounds.bytes + bounds.entries * 4096 + _MOST_MANIFEST
        self.digest = sha256()

    def read(self, size: int, /) -> bytes:
        try:
            data = self._source.read(min(size, _CHUNK))
        except Exception as error:  # each decompressor has its own errors
            raise _refused(f"it is damaged: {error}") from None
        self._left -= len(data)
        if self._left < 0:
            raise _refused("it becomes too large")
        self.digest.update(data)
        return data


class _ProgressReader:
    """A file that reports how far it has been read."""

    def __init__(self, raw: IO[bytes], progress: Callable[[int, int], object]) -> None:
        self._raw, self._progress = raw, progress
        self._size, self._done = os.fstat(raw.fileno()).st_size, 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._raw.read(size)
        self._done += len(data)
        self._progress(min(self._done, self._size), self._size)
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._raw, name)


def _with_progress(raw: IO[bytes], progress: Callable[[int, int], object] | None) -> IO[bytes]:
    return raw if progress is None else _ProgressReader(raw, progress)  # type: ignore[return-value]


def _next(entries: Iterator[tuple[Member, Content]]) -> tuple[Member, Content]:
    found = next(entries, None)
    if found is None:
        raise _refused("it ends without its checksum")
    return found


def _all(content: Content, size: int) -> bytes:
    parts = []
    while data := content.read(size + 1):
        parts.append(data)
    return b"".join(parts)


def _decompressing(raw: IO[bytes]) -> IO[bytes]:
    magic = raw.read(4)
    raw.seek(0)
    if magic == _ZSTD_MAGIC:
        zstd = zstd_module()
        if zstd is None:
            raise ArchiveRefused(
                "the archive is compressed with zstd",
                why="this Python has none",
                fix="install backports.zstd",
            )
        return zstd.open(raw, "rb")  # type: ignore[attr-defined, no-any-return]
    import gzip

    return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]


def _refused(why: str) -> ArchiveRefused:
    return ArchiveRefused("the archive is refused", why=why, fix="save it again; nothing of it was unpacked")
