"""Read layer snapshots from a file that `archive.save` wrote. The file is untrusted input."""

from __future__ import annotations

import os

from ..errors import ArchiveRefused
from ..files.tar import Content, Member, members
from ..files.unpack import UnpackBounds, Unpacker
from .archive import END_MARK, FORMAT, MANIFEST, zstd_module
from .merge import prune

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    from .store import Layer, Store

_MOST_MANIFEST = 64 << 20
_CHUNK = 1 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def load(
    path: str,
    store: Store,
    *,
    bases: Sequence[str] = (),
    bounds: UnpackBounds | None = None,
    owner: tuple[int, int] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[dict[str, Layer], dict[str, object]]:
    """The layers of the archive at `path`, new ones of `store`, and its facts.

    Each layer is held once, for the caller to drop. `bases` are what they will lie on, if that is
    known: whiteouts of what is not there are left out. `progress` is called with how many of how many
    bytes of the file are read. ArchiveRefused, with nothing left behind, for anything that `save`
    does not write.
    """
    made: dict[str, Layer] = {}
    try:
        with open(path, "rb") as raw, _decompressing(_with_progress(raw, progress)) as source:
            facts = _read(source, store, made, bounds or UnpackBounds(), owner)
        for layer in made.values() if bases else ():
            prune(layer.upper, bases)
        return made, facts
    except BaseException:
        for layer in made.values():
            layer.drop()
        raise


def _read(
    source: IO[bytes],
    store: Store,
    made: dict[str, Layer],
    bounds: UnpackBounds,
    owner: tuple[int, int] | None,
) -> dict[str, object]:
    import json

    counted = _BoundedReader(source, bounds)
    entries = members(counted)
    first, content = _next(entries)
    if first.path != MANIFEST or first.kind != "file" or first.size > _MOST_MANIFEST:
        raise _refused("it does not begin with a manifest of ours")
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
            unpackings[name] = Unpacker(made[name].upper, bounds, owner=owner)
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
        digest = counted.digest.copy()  # of all before the next header
        member, last = _next(entries)
        if member.path == END_MARK:
            if _all(last, 64) != digest.hexdigest().encode():
                raise _refused("its checksum is wrong")
            if next(entries, None) is not None or counted.read(1):
                raise _refused("there is something after its end")
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
            raise _refused(f"{member.path!r} is in it twice, or is no directory")
        else:
            tops.add(name)
            os.chmod(made[name].upper, member.mode & 0o777 | 0o700)
    for unpacking in unpackings.values():
        unpacking.finish()


class _BoundedReader:
    """The uncompressed bytes of an archive: counted against the bounds, and summed up."""

    def __init__(self, source: IO[bytes], bounds: UnpackBounds) -> None:
        from hashlib import sha256

        self._source = source
        self._left = bounds.bytes + bounds.entries * 4096 + _MOST_MANIFEST
        self.digest = sha256()

    def read(self, size: int, /) -> bytes:
        try:
            data = self._source.read(min(size, _CHUNK))
        except Exception as error:  # each decompressor has errors of its own
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
    return ArchiveRefused("the archive is refused", why=why, fix="nothing was made of it")
