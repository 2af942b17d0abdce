"""Imported bases: their directory, and the import of an image archive.

  <data>/staddle/bases/<name>/root          the root file system
                             /about.json    its origin
                      /.<random>/...        a base being imported or removed

A base appears under its name by one rename, when it is complete. Until then it is built in a hidden directory
that we lock. The next import removes what a killed import left there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time

from .._value import Value
from ..errors import BaseError
from ..files.tar import UnpackBounds
from ..policy import base
from ..policy.base import checked_name, directory, imported
from .image import Archive, refused
from .layer import Layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from .image import ClosableReader


class ImportedBase(Value):
    """One imported base. `source` is the archive's own name, `size` the bytes in its files."""

    name: str
    root: str
    source: str
    size: int
    entries: int
    created: float


def listed() -> Iterator[ImportedBase]:
    """All bases, by name. A base with an unreadable record is listed without its facts."""
    import json

    try:
        names = sorted(os.listdir(directory()))
    except OSError:
        return
    for name in names:
        root = imported(name)
        if root is None:
            continue
        try:
            with open(f"{directory()}/{name}/about.json", encoding="utf-8") as file:
                about = json.loads(file.read(1 << 16))
            yield ImportedBase(
                name,
                root,
                str(about["source"]),
                int(about["size"]),
                int(about["entries"]),
                float(about["created"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            yield ImportedBase(name, root, "", 0, 0, 0.0)


def remove(name: str) -> None:
    """Remove a base. Sandboxes that use it keep its open files, and lose the rest."""
    checked_name(name)
    here = directory()
    if not os.path.isdir(f"{here}/{name}"):
        raise BaseError(
            f"there is no base {name!r}",
            fix="`staddle base ls` lists them",
            why="none was imported under that name",
        )
    gone = f"{here}/.{os.urandom(8).hex()}"
    os.rename(f"{here}/{name}", gone)
    delete(gone)


def delete(path: str) -> None:
    """Remove a tree of ours, even if its directories cannot be entered."""
    from ..files.remove_tree import remove as remove_tree

    remove_tree((os.fsencode(path),))


_CHUNK = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: How much larger than its files a tar may be: a header and padding for every entry.
_PER_ENTRY = 4096


def import_image(
    archive: str,
    name: str | None = None,
    *,
    bounds: UnpackBounds | None = None,
    progress: Callable[[str], object] | None = None,
) -> ImportedBase:
    """Make a base from the image in the file `archive`, named `name` (default: from the file name).

    ArchiveRefused for an archive that is damaged, malicious or too large; BaseError if a base of that name
    exists. `progress` is called with the layer that is being unpacked.
    """
    name = base.checked_name(name if name is not None else _name_of(archive))
    here = base.directory()
    _refuse_taken(here, name)
    os.makedirs(here, 0o700, exist_ok=True)
    sweep()
    place = f"{here}/.{os.urandom(8).hex()}"
    os.mkdir(place, 0o700)
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _unpack(archive, place, bounds or UnpackBounds(), progress)
        try:
            os.rename(place, f"{here}/{name}")
        except OSError:
            _refuse_taken(here, name)
            raise
    except BaseException:
        delete(place)
        raise
    finally:
        os.close(lock)
    return next(found for found in listed() if found.name == name)


def sweep() -> None:
    """Remove the leftovers of killed imports."""
    here = base.directory()
    for name in os.listdir(here):
        if not name.startswith("."):
            continue
        try:
            lock = os.open(f"{here}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            delete(f"{here}/{name}")
        except BlockingIOError:
            pass  # another process uses it
        finally:
            os.close(lock)


def _refuse_taken(here: str, name: str) -> None:
    if os.path.lexists(f"{here}/{name}"):
        raise BaseError(
            f"there is a base {name!r} already",
            fix=f"choose another name, or `staddle base rm {name}` first",
            why="names are given once",
        )


def _name_of(archive: str) -> str:
    stem = os.path.basename(os.fspath(archive))
    for end in (".gz", ".tgz", ".tar", ".oci"):
        stem = stem.removesuffix(end)
    return stem


def _unpack(archive: str, place: str, bounds: UnpackBounds, progress: Callable[[str], object] | None) -> None:
    import json

    root = f"{place}/root"
    os.mkdir(root, 0o755)
    with _opened(archive, place, bounds) as file:
        opened = Archive(file)
        image = opened.image()
        layers = Layers(root, bounds)
        try:
            for number, (blob, content) in enumerate(zip(image.layers, image.contents, strict=True), 1):
                if progress is not None:
                    progress(f"layer {number} of {len(image.layers)}")
                _apply(layers, _ImageLayer(opened.read(blob), blob.digest, content, bounds))
        finally:
            layers.close()
    about = {
        "source": image.name or os.path.basename(os.fspath(archive)),
        "size": layers.bytes,
        "entries": layers.entries,
        "created": time.time(),
    }
    with open(f"{place}/about.json", "x", encoding="utf-8") as record:
        json.dump(about, record)


def _apply(layers: Layers, layer: _ImageLayer) -> None:
    try:
        layers.apply(layer)
        layer.finish()
    except _damage() as error:
        raise refused(f"a layer is damaged: {error}") from None
    finally:
        layer.close()


def _opened(archive: str, place: str, bounds: UnpackBounds) -> IO[bytes]:
    """The archive as a seekable file; a compressed one is decompressed beside the base."""
    try:
        file = open(archive, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise BaseError(
            f"{archive!r} cannot be read",
            why=error.strerror or str(error),
            fix="name an archive that you can read",
        ) from None
    head = file.read(4)
    file.seek(0)
    if not head.startswith((_GZIP, _ZSTD)):
        return file
    plain = open(f"{place}/archive", "x+b")  # noqa: SIM115 - the caller closes it
    os.unlink(f"{place}/archive")
    try:
        written = 0
        with file:
            source = _decompressing(file, head)
            try:
                while data := source.read(_CHUNK):
                    written += len(data)
                    if written > bounds.bytes:
                        raise refused(f"it becomes more than {bounds.bytes:,} bytes")
                    plain.write(data)
            finally:
                source.close()
        plain.flush()
        plain.seek(0)
    except _damage() as error:
        plain.close()
        raise refused(f"it is damaged: {error}") from None
    except BaseException:
        plain.close()
        raise
    return plain


class _ImageLayer:
    """The uncompressed bytes of a layer; `finish` checks both digests."""

    def __init__(self, blob: ClosableReader, digest: str, content: str, bounds: UnpackBounds) -> None:
        self._compressed = _DigestReader(blob, digest)
        self._content, self._expected = hashlib.sha256(), content
        self._left = bounds.bytes + bounds.entries * _PER_ENTRY
        head = self._compressed.peek(4)
        self._source: ClosableReader = self._compressed
        if head.startswith((_GZIP, _ZSTD)):
            self._source = _decompressing(self._compressed, head)

    def read(self, size: int) -> bytes:
        """At most `size` bytes."""
        data = self._source.read(size)
        self._content.update(data)
        self._left -= len(data)
        if self._left < 0:
            raise refused("a layer of it does not end")
        return data

    def finish(self) -> None:
        """Read the rest, and check that both digests match."""
        while self.read(_CHUNK):
            pass
        if self._content.hexdigest() != self._expected or not self._compressed.is_whole():
            raise refused("a layer does not match its digest")

    def close(self) -> None:
        """Close the decompressor."""
        if self._source is not self._compressed:
            self._source.close()


class _DigestReader:
    """A reader that computes the digest of its bytes."""

    def __init__(self, source: ClosableReader, digest: str) -> None:
        self._source, self._digest = source, digest
        self._hash, self._ahead = hashlib.sha256(), b""

    def peek(self, size: int) -> bytes:
        self._ahead = self._ahead or self._source.read(size)
        return self._ahead

    def read(self, size: int = -1) -> bytes:
        data, self._ahead = self._ahead, b""
        if not data or size < 0:
            data += self._source.read(size)
        elif len(data) > size:
            data, self._ahead = data[:size], data[size:]
        self._hash.update(data)
        return data

    def is_whole(self) -> bool:
        while self.read(_CHUNK):
            pass
        return not self._digest or self._hash.hexdigest() == self._digest

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the source is not ours to close."""


def _decompressing(source: ClosableReader, head: bytes) -> ClosableReader:
    if head.startswith(_GZIP):
        import gzip

        opened: ClosableReader = gzip.GzipFile(fileobj=source, mode="rb")  # type: ignore[call-overload]
        return opened
    from .image import decompressing

    return decompressing(source)


def _damage() -> tuple[type[Exception], ...]:
    """Errors that the decompressors raise for invalid data."""
    import gzip
    import zlib

    from ..layers.archive import zstd_module

    other = getattr(zstd_module(), "ZstdError", None)
    return (EOFError, zlib.error, gzip.BadGzipFile, *([] if other is None else [other]))
