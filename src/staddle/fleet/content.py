"""Content to transfer: a directory or a file as packs of bytes, each named by its digest.

A pack has at most PACK bytes of files, one after the other. The manifest lists every entry with the packs
that contain its bytes; the digest of the manifest names the whole. A pack is sent only once, whichever
directory it belongs to. `write_tree` checks every digest, size and path.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from staddle.errors import InvalidCall, TransferFailed

#: Most bytes of one pack before compression.
PACK = 4 << 20
#: Most entries and most bytes of one directory.
MOST_ENTRIES, MOST_BYTES = 2_000_000, 1 << 40
#: Most bytes of a manifest.
MOST_MANIFEST = 1 << 30
_RAW, _ZLIB = b"r", b"z"


@dataclass(frozen=True)
class Piece:
    """Some bytes of a pack."""

    pack: str
    start: int
    size: int


@dataclass(frozen=True)
class TreeEntry:
    """One entry of a directory: `kind` is "file", "directory" or "symlink"."""

    path: str
    kind: str
    mode: int = 0o644
    size: int = 0
    digest: str = ""
    target: str = ""
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The content of a directory. `left_out` are paths of sockets, pipes and devices."""

    entries: tuple[TreeEntry, ...]
    left_out: tuple[str, ...] = ()
    _by_path: dict[str, TreeEntry] = field(default_factory=dict, compare=False, repr=False)

    @property
    def packs(self) -> tuple[str, ...]:
        """The digests of its packs, each once."""
        return tuple(dict.fromkeys(piece.pack for entry in self.entries for piece in entry.pieces))

    @property
    def size(self) -> int:
        """The total bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def find(self, path: str) -> TreeEntry | None:
        """The entry at that path below the directory."""
        if not self._by_path:
            self._by_path.update({entry.path: entry for entry in self.entries})
        return self._by_path.get(path)

    def encoded(self) -> bytes:
        """The manifest as bytes; equal content gives equal bytes."""
        packs = {digest: number for number, digest in enumerate(self.packs)}
        rows = [
            [e.path, e.kind, e.mode, e.size, e.digest, e.target]
            + [[packs[piece.pack], piece.start, piece.size] for piece in e.pieces]
            for e in self.entries
        ]
        return json.dumps({"packs": list(packs), "entries": rows}, separators=(",", ":")).encode()


def decoded(data: bytes, digest: str) -> Manifest:
    """The manifest with that digest. TransferFailed for anything that `encoded` does not write."""
    if sha256(data) != digest:
        raise _damaged("the list of files is not the one that was sent")
    try:
        facts = json.loads(data)
        packs = facts["packs"]
        entries = tuple(_entry(row, packs) for row in facts["entries"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _damaged(f"the list of files cannot be read ({type(error).__name__})") from None
    if len(entries) > MOST_ENTRIES or sum(entry.size for entry in entries) > MOST_BYTES:
        raise _damaged("it has too many entries, or too many bytes")
    _check_paths(entries)
    return Manifest(entries)


def _entry(row: list[Any], packs: list[str]) -> TreeEntry:
    path, kind, mode, size, digest, target, *pieces = row
    texts, numbers = (path, kind, digest, target), (mode, size)
    if not all(type(each) is str for each in texts) or not all(type(each) is int for each in numbers):
        raise TypeError("a field of an entry")
    found = tuple(Piece(str(packs[number]), start, length) for number, start, length in pieces)
    for piece in found:
        if type(piece.start) is not int or type(piece.size) is not int:
            raise TypeError("a field of a piece")
        if piece.start < 0 or piece.size < 0 or piece.start + piece.size > PACK:
            raise ValueError("a piece that is in no pack")
    if sum(piece.size for piece in found) != size or kind not in ("file", "directory", "symlink"):
        raise ValueError("an entry that does not fit together")
    return TreeEntry(path, kind, mode & 0o777, size, digest, target, found)


def _check_paths(entries: tuple[TreeEntry, ...]) -> None:
    """Each path is below the directory and unique, and its parent directory comes before it."""
    directories = {""}
    seen: set[str] = set()
    for entry in entries:
        parts = entry.path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in entry.path or "\0" in entry.target:
            raise _damaged(f"it has an entry of the name {entry.path[:200]!r}")
        if entry.path in seen or "/".join(parts[:-1]) not in directories:
            raise _damaged(f"{entry.path[:200]!r} is there twice, or its directory does not exist")
        seen.add(entry.path)
        if entry.kind == "directory":
            directories.add(entry.path)


def sha256(data: bytes | memoryview) -> str:
    """The digest that names content."""
    return hashlib.sha256(data).hexdigest()


# ------------------------------------------------------------ sending


def pack(data: bytes) -> bytes:
    """A pack as it is sent: compressed, if that makes it smaller."""
    small = zlib.compress(data, 1)
    return _ZLIB + small if len(small) < len(data) * 9 // 10 else _RAW + data


class Packer:
    """Collects the bytes of files into packs, and passes each full pack to `put`."""

    def __init__(self, put: Callable[[str, bytes], object]) -> None:
        self._put = put
        self._buffer = bytearray()
        #: (entries' piece lists, start, size): the digest of their pack is known when it is full.
        self._open: list[tuple[list[Piece], int, int]] = []

    def add(self, blocks: Iterable[bytes]) -> tuple[list[Piece], int, str]:
        """The pieces of one file (complete after `flush`), its size and its digest."""
        pieces: list[Piece] = []
        size, whole = 0, hashlib.sha256()
        for block in blocks:
            whole.update(block)
            size += len(block)
            view = memoryview(block)
            while view:
                part = view[: PACK - len(self._buffer)]
                self._open.append((pieces, len(self._buffer), len(part)))
                self._buffer += part
                view = view[len(part) :]
                if len(self._buffer) >= PACK:
                    self.flush()
        return pieces, size, whole.hexdigest()

    def flush(self) -> None:
        """End the open pack."""
        if not self._buffer:
            return
        data = bytes(self._buffer)
        digest = sha256(data)
        self._put(digest, data)
        for pieces, start, size in self._open:
            pieces.append(Piece(digest, start, size))
        self._buffer.clear()
        self._open.clear()


def read_tree(directory: str, put: Callable[[str, bytes], object]) -> Manifest:
    """Read a directory: pass its packs to `put`, return its manifest. Does not follow links."""
    packer = Packer(put)
    rows: list[tuple[TreeEntry, list[Piece]]] = []
    left_out: list[str] = []
    try:
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidCall(
            f"{directory!r} cannot be read",
            why=error.strerror or "",
            fix="name a directory that you can read",
        ) from error
    try:
        _read_directory(root, "", packer, rows, left_out)
    finally:
        os.close(root)
    packer.flush()
    entries = tuple(
        TreeEntry(e.path, e.kind, e.mode, e.size, e.digest, e.target, _joined(pieces)) for e, pieces in rows
    )
    if len(entries) > MOST_ENTRIES:
        raise InvalidCall(
            f"{directory!r} has {len(entries)} entries",
            why=f"at most {MOST_ENTRIES} travel",
            fix="send a smaller directory, or mount it on the machines",
        )
    return Manifest(entries, tuple(left_out))


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Merge adjacent pieces."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].pack == piece.pack and found[-1].start + found[-1].size == piece.start:
            found[-1] = Piece(piece.pack, found[-1].start, found[-1].size + piece.size)
        else:
            found.append(piece)
    return tuple(found)


def _read_directory(
    fd: int, at: str, packer: Packer, rows: list[tuple[TreeEntry, list[Piece]]], left_out: list[str]
) -> None:
    with os.scandir(fd) as found:
        names = sorted(entry.name for entry in found)
    for name in names:
        path = f"{at}/{name}" if at else name
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode) & 0o777
        if stat.S_ISLNK(status.st_mode):
            rows.append((TreeEntry(path, "symlink", mode, target=os.readlink(name, dir_fd=fd)), []))
        elif stat.S_ISDIR(status.st_mode):
            rows.append((TreeEntry(path, "directory", mode), []))
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                _read_directory(below, path, packer, rows, left_out)
            finally:
                os.close(below)
        elif stat.S_ISREG(status.st_mode):
            # O_NONBLOCK: if a pipe replaced the file, open() would wait for a writer.
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            try:
                pieces, size, digest = packer.add(_blocks(opened))
            finally:
                os.close(opened)
            rows.append((TreeEntry(path, "file", mode, size, digest), pieces))
        else:
            left_out.append(path)


def _blocks(fd: int) -> Iterator[bytes]:
    while block := os.read(fd, 1 << 20):
        yield block


# ------------------------------------------------------------ receiving


def unpack(data: bytes | memoryview, digest: str) -> bytes:
    """The bytes of a received pack; TransferFailed if they do not match the digest."""
    kind, rest = bytes(data[:1]), data[1:]
    if kind == _ZLIB:
        opened = zlib.decompressobj()
        try:
            content = opened.decompress(rest, PACK + 1)
        except zlib.error:
            raise _damaged("a pack cannot be decompressed") from None
    elif kind == _RAW:
        content = bytes(rest)
    else:
        raise _damaged("a pack is of an unknown kind")
    if len(content) > PACK or sha256(content) != digest:
        raise _damaged("a pack is not the one that was sent")
    return content


def write_tree(manifest: Manifest, packs: Callable[[str], bytes], directory: str) -> None:
    """Write the entries into `directory`, which is empty and not shared. `packs` returns verified packs."""
    last: tuple[str, bytes] = ("", b"")
    modes: list[tuple[str, int]] = []
    for entry in manifest.entries:
        path = f"{directory}/{entry.path}"
        if entry.kind == "directory":
            os.mkdir(path, 0o700)
            modes.append((path, entry.mode))
        elif entry.kind == "symlink":
            os.symlink(entry.target, path)
        else:
            # O_EXCL follows no link. Every parent is a directory made here: `_check_paths`.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as out:
                whole = hashlib.sha256()
                for piece in entry.pieces:
                    if last[0] != piece.pack:
                        last = (piece.pack, packs(piece.pack))
                    part = last[1][piece.start : piece.start + piece.size]
                    if len(part) != piece.size:
                        raise _damaged(f"{entry.path[:200]!r} is longer than its pack")
                    whole.update(part)
                    out.write(part)
                if whole.hexdigest() != entry.digest:
                    raise _damaged(f"{entry.path[:200]!r} is not the file that was sent")
                os.fchmod(out.fileno(), entry.mode)
    for path, mode in reversed(modes):
        os.chmod(path, mode)


def _damaged(why: str) -> TransferFailed:
    return TransferFailed("content did not arrive as it was sent", why=why, fix="send it again")


# ------------------------------------------------------------ comparing


def entry_of(directory: str, path: str) -> TreeEntry | None:
    """The host's current entry at `path` below `directory`; None if there is none."""
    where = os.path.join(directory, path)
    try:
        status = os.lstat(where)
    except OSError:
        return None
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISLNK(status.st_mode):
        return TreeEntry(path, "symlink", mode, target=os.readlink(where))
    if stat.S_ISDIR(status.st_mode):
        return TreeEntry(path, "directory", mode)
    if not stat.S_ISREG(status.st_mode):
        return TreeEntry(path, "other", mode)
    fd = os.open(where, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        whole = hashlib.sha256()
        for block in _blocks(fd):
            whole.update(block)
        return TreeEntry(path, "file", mode, os.fstat(fd).st_size, whole.hexdigest())
    finally:
        os.close(fd)


def conflict(sent: TreeEntry | None, directory: str, path: str) -> str:
    """Return why the host's `path` differs from the sent entry; empty if it does not, or both are missing."""
    now = entry_of(directory, path)
    if now is None or sent is None:
        if now is sent:
            return ""
        return "it was made on the host" if sent is None else "it was deleted on the host"
    if now.kind != sent.kind:
        return "it is of another kind on the host"
    same = {
        "symlink": now.target == sent.target,
        "directory": True,
        "file": (now.digest, now.mode) == (sent.digest, sent.mode),
    }
    return "" if same.get(now.kind, False) else "it was changed on the host"
