"""Fingerprints of changes, by which a commit detects whether a change is still the reviewed one.

A fingerprint covers the new file (content, permissions, the target of a link) and the file that it would
replace. It includes the content, because times are not enough: a program with a writable mapping changes a
file in memory without a trace in its times.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..files.tree import LastDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .differences import Difference
    from .merged_view import OpenLayers

#: The digest of a longer file skips empty pieces, because a sandbox can create a file of exabytes for free. A
#: file up to this size can be compared with bytes that were shown to a person.
WHOLE = 64 << 20
_PIECE = 1 << 20
_EMPTY = bytes(_PIECE)


class Fingerprint(Value):
    """Facts about both sides of one change, and its new content: a digest, or the target of a link."""

    facts: tuple[object, ...]
    content: str


def fingerprints(opened: OpenLayers, found: Iterable[Difference]) -> dict[str, Fingerprint]:
    """Return the fingerprint of each change, by path. Nothing may write to the layers meanwhile."""
    taken: dict[str, Fingerprint] = {}
    place: tuple[int, str] | None = None
    directory = -1
    try:
        for item in found:
            content = ""
            if item.new is not None and not stat.S_ISDIR(item.new.st_mode):
                tree = opened.layers[item.layer]
                parent, _, name = item.path.rpartition("/")
                if place != (item.layer, parent):  # most files share a directory with the previous file
                    if directory >= 0:
                        os.close(directory)
                        directory = -1
                        opened.give_back()
                    directory, place = tree.directory(parent), (item.layer, parent)
                if stat.S_ISLNK(item.new.st_mode):
                    content = os.readlink(name, dir_fd=directory)
                elif stat.S_ISREG(item.new.st_mode):
                    content = _digest(tree.file(directory, name))
            taken[item.path] = Fingerprint(facts_of(item), content)
    finally:
        if directory >= 0:
            os.close(directory)
        opened.give_back()
    return taken


def facts_of(item: Difference) -> tuple[object, ...]:
    """Return the facts about a change that its directory entries show."""
    mode = 0 if item.new is None else item.new.st_mode
    return (item.kind, item.path, item.old_path or "", mode, *_replaced(item.old))


def _replaced(status: os.stat_result | None) -> tuple[int, ...]:
    """Return facts about the replaced entry. The contents of a directory are separate changes."""
    if status is None or stat.S_ISDIR(status.st_mode):
        return (0 if status is None else status.st_mode,)
    return (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class SlotDigests:
    """Reads files that a commit has copied and not yet put in place, where no sandbox sees them."""

    def __init__(self, slots: int) -> None:
        self._last = LastDirectory(slots, os.O_RDONLY | os.O_DIRECTORY)

    def of(self, slot: str) -> str:
        """Return the digest of the file in a slot, or the target of the link there."""
        parent, _, name = slot.rpartition("/")
        directory = self._last.at(parent)
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            return os.readlink(name, dir_fd=directory)
        return _digest(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory))

    def close(self) -> None:
        """Close the last directory."""
        self._last.close()


def digest_of(data: bytes) -> str:
    """Return the digest of the content of a file that is no longer than WHOLE."""
    from hashlib import blake2b

    return blake2b(data, digest_size=16).hexdigest()


def _digest(fd: int) -> str:
    """Return the digest of an open file, and close it."""
    from hashlib import blake2b

    try:
        size = os.fstat(fd).st_size
        total = blake2b(digest_size=16)
        if size <= WHOLE:
            while data := os.read(fd, _PIECE):
                total.update(data)
            return total.hexdigest()
        total.update(b"%d" % size)
        number = 0
        while (start := _data_from(fd, number * _PIECE)) is not None:
            number = start // _PIECE
            data = os.pread(fd, _PIECE, number * _PIECE)
            if data != _EMPTY[: len(data)]:
                total.update(b"/%d/" % number)
                total.update(data)
            number += 1
        return total.hexdigest()
    finally:
        os.close(fd)


def _data_from(fd: int, offset: int) -> int | None:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return None  # there is no data after that
