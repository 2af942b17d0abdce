"""The package cache of this user: files that an index named by their hash, and the pages that named them.

Only the host program writes here (see `mirror`), and no sandbox can. A file gets its name only when its
content has the hash in that name, and is compared again each time it is served. Several programs share the
directory: a new file is written apart and then renamed, so a killed program leaves nothing that is served.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from contextlib import contextmanager, suppress

from .. import places
from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from .index_pages import IndexFile

    NewFile = tempfile._TemporaryFileWrapper[bytes]

#: Bytes of the whole cache.
MOST = 10 << 30
#: Seconds after which an unfinished file was left by a killed program.
_ABANDONED = 6 * 3600
_BLOCK = 1 << 20
_NEW = ".new-"


def home_of_cache() -> str:
    """Return the directory of the cache. It need not exist."""
    return f"{places.of_user('cache')}/packages"


class CachedFile(Value):
    """One file of the cache. `used` is when it was last served, in seconds since the epoch."""

    name: str
    size: int
    used: float


class PackageCache:
    """The cache in the directory `place`, which has at most `most` bytes."""

    def __init__(self, place: str = "", most: int = MOST) -> None:
        self.place, self.most = place or home_of_cache(), most

    def files(self) -> list[CachedFile]:
        """Return its files and pages, the least recently used first."""
        return sorted((file for file in self._all() if not file.name.startswith(_NEW)), key=_used)

    def clear(self) -> int:
        """Remove everything. Returns the number of bytes."""
        found = list(self._all())
        for file in found:
            self._remove(file.name)
        return sum(file.size for file in found)

    def body(self, file: IndexFile) -> BinaryIO | None:
        """Open a file that has the hash that the index named; None if it is not here."""
        name = _name_of(file)
        try:
            found = open(f"{self.place}/{name}", "rb")  # noqa: SIM115 - the caller closes it
        except OSError:
            return None
        if hashlib.file_digest(found, file.algorithm).hexdigest() != file.digest:
            found.close()
            self._remove(name)  # a broken disk
            return None
        found.seek(0)
        with suppress(OSError):
            os.utime(found.fileno())
        return found

    def page(self, key: str) -> bytes | None:
        """Return a page of an index."""
        path = f"{self.place}/{_name_of_page(key)}"
        try:
            with open(path, "rb") as file:
                data = file.read()
            os.utime(path)
        except OSError:
            return None
        return data

    def keep_page(self, key: str, data: bytes) -> None:
        """Keep a page of an index."""
        with self.new() as file:
            file.write(data)
            self._place(file, _name_of_page(key))

    @contextmanager
    def new(self) -> Iterator[NewFile]:
        """Open a new file to write, which is removed unless `keep` has given it its name."""
        os.makedirs(os.path.dirname(self.place), 0o700, exist_ok=True)
        places.make_private(self.place)
        with tempfile.NamedTemporaryFile(prefix=_NEW, dir=self.place, delete=False) as file:
            try:
                yield file
            finally:
                with suppress(OSError):
                    os.unlink(file.name)

    def keep(self, written: NewFile, file: IndexFile) -> None:
        """Keep a new file. ValueError if its content does not have the hash that the index named."""
        written.flush()
        written.seek(0)
        if hashlib.file_digest(written, file.algorithm).hexdigest() != file.digest:
            raise ValueError("its content does not have the hash that the index names")
        self._place(written, _name_of(file))

    def _place(self, written: NewFile, name: str) -> None:
        written.flush()
        os.replace(written.name, f"{self.place}/{name}")
        files = list(self._all())
        excess = sum(file.size for file in files) - self.most
        for file in sorted(files, key=_used):
            is_new = file.name.startswith(_NEW)
            if is_new and time.time() - file.used > _ABANDONED:
                self._remove(file.name)
            elif not is_new and excess > 0:
                self._remove(file.name)
                excess -= file.size

    def _all(self) -> Iterator[CachedFile]:
        try:
            entries = os.scandir(self.place)
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # another program has removed it
                yield CachedFile(entry.name, status.st_size, status.st_mtime)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self.place}/{name}")


def _used(file: CachedFile) -> float:
    return file.used


def _name_of(file: IndexFile) -> str:
    return f"{file.algorithm}-{file.digest}-{file.name[-100:]}"


def _name_of_page(key: str) -> str:
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", key.partition("://")[2])[-100:]
    return f"page-{hashlib.sha256(key.encode()).hexdigest()}-{label}"
