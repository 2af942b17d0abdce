"""Read an archive of an image: an OCI image layout, or the output of `docker save`.

The archive is untrusted. It is a tar that is read by position, never unpacked directly. Its JSON is limited
and checked; every blob is compared with the digest that refers to it. zstd is decompressed by the standard
library (Python 3.14), backports.zstd, or the program.
"""

from __future__ import annotations

import os
import threading

from .._value import Value
from ..errors import ArchiveRefused
from ..files.tar import members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class ClosableReader(Protocol):
        """A file to read from."""

        def read(self, size: int = -1, /) -> bytes: ...

        def close(self) -> None: ...

    from typing import IO, Any

#: Fixed paths: another user cannot have put the program there.
_PROGRAMS = ("/usr/bin/zstd", "/bin/zstd", "/usr/local/bin/zstd", "/opt/homebrew/bin/zstd")
_CHUNK = 1 << 18


def decompressing(source: ClosableReader) -> ClosableReader:
    """The bytes of `source`, decompressed. Close it, if it has a `close`."""
    from ..layers.archive import zstd_module

    module = zstd_module()
    if module is not None:
        opened: ClosableReader = module.open(source, "rb")  # type: ignore[attr-defined]
        return opened
    program = next((path for path in _PROGRAMS if os.access(path, os.X_OK)), None)
    if program is None:
        raise ArchiveRefused(
            "the image is compressed with zstd",
            why="this Python has no module for it, and there is no program zstd",
            fix="install backports.zstd or zstd, or save the image without compression",
        )
    return ZstdProgram(program, source)


class ZstdProgram:
    """The zstd program as a reader: a thread feeds it, and the reader sets the pace."""

    def __init__(self, program: str, source: ClosableReader) -> None:
        import subprocess

        self._process = subprocess.Popen(
            [program, "--decompress", "--stdout", "--quiet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
        )
        self._source = source
        self._feeder = threading.Thread(target=self._feed, name="staddle-zstd", daemon=True)
        self._feeder.start()

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; EOFError if the data is invalid or incomplete."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        data = self._process.stdout.read(size)
        if not data and size:
            self._feeder.join()
            if self._process.wait() != 0:
                raise EOFError("zstd does not understand it")
        return data

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        self._feeder.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def _feed(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 - it is one
        try:
            while data := self._source.read(_CHUNK):
                pipe.write(data)
            pipe.close()
        except (BrokenPipeError, ValueError):
            pass  # it has ended; its exit status shows that


#: Most members of the archive, and most bytes of one of its JSON files.
MOST_MEMBERS, LARGEST_JSON = 100_000, 8 << 20
MOST_LAYERS = 512
#: An index may refer to another index; no tool nests them deeper.
MOST_INDEXES = 4
_DIGITS = frozenset("0123456789abcdef")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Blob(Value):
    """Position of some bytes in the archive. `digest` is the SHA-256 that they must have, if given."""

    path: str
    offset: int
    size: int
    digest: str = ""


class Image(Value):
    """The parts of an image: its layers, the lowest first, and the digests of their uncompressed content."""

    name: str
    layers: tuple[Blob, ...]
    contents: tuple[str, ...]


class Archive:
    """An image in a tar that is read by position."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._files: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        file.seek(0)
        for count, (member, _) in enumerate(members(file)):
            if count > MOST_MEMBERS:
                raise refused(f"it contains more than {MOST_MEMBERS:,} entries")
            path = os.path.normpath(member.path)
            if member.kind == "file":
                self._files[path] = (file.tell(), member.size)
            elif member.kind in ("symlink", "link"):
                # docker save writes a layer that two images share as a link to the first one.
                start = os.path.dirname(path) if member.kind == "symlink" else ""
                self._links[path] = os.path.normpath(os.path.join(start, member.target))

    def image(self) -> Image:
        """The single image in it for this machine. ArchiveRefused if there is none, or several."""
        if "index.json" in self._files:
            return self._oci()
        if "manifest.json" in self._files:
            return self._docker()
        raise refused(
            "it has neither index.json (an OCI layout) nor manifest.json (docker save)",
            "make it with `docker save`, `podman save` or `skopeo copy ... oci-archive:`",
        )

    def read(self, blob: Blob) -> FileSlice:
        """The bytes of a blob."""
        return FileSlice(self._file, blob.offset, blob.size)

    def _blob(self, path: str, digest: str = "") -> Blob:
        path = os.path.normpath(path)
        path = self._links.get(path, path)
        if path not in self._files:
            raise refused(f"{path!r} is named in it and missing")
        return Blob(path, *self._files[path], digest)

    def _by_digest(self, descriptor: Any) -> Blob:
        digest = _text(descriptor, "digest")
        kind, _, number = digest.partition(":")
        if kind != "sha256" or len(number) != 64 or not _DIGITS.issuperset(number):
            raise refused(f"{digest[:80]!r} is not a SHA-256 digest")
        blob = self._blob(f"blobs/sha256/{number}", number)
        if descriptor.get("size", blob.size) != blob.size:
            raise refused(f"{blob.path!r} has not the size that it should have")
        return blob

    def _json(self, blob: Blob) -> Any:
        import hashlib
        import json

        if blob.size > LARGEST_JSON:
            raise refused(f"{blob.path!r} is too long for a description")
        data = self.read(blob).read(blob.size)
        if blob.digest and hashlib.sha256(data).hexdigest() != blob.digest:
            raise refused(f"{blob.path!r} does not match its digest")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise refused(f"{blob.path!r} is not JSON") from None

    def _oci(self) -> Image:
        found = self._json(self._blob("index.json"))
        name = ""
        for _ in range(MOST_INDEXES):
            if not isinstance(found, dict) or "manifests" not in found:
                break
            descriptor = _chosen(_list(found, "manifests"))
            notes = descriptor.get("annotations")
            if not name and isinstance(notes, dict):
                name = str(notes.get("io.containerd.image.name") or notes.get(_REFERENCE) or "")
            found = self._json(self._by_digest(descriptor))
        if not isinstance(found, dict) or "layers" not in found:
            raise refused("it names no description of an image")
        layers = tuple(self._by_digest(layer) for layer in _list(found, "layers"))
        config = self._json(self._by_digest(found.get("config")))
        return Image(_plain(name), layers, _contents(config, len(layers)))

    def _docker(self) -> Image:
        found = self._json(self._blob("manifest.json"))
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict):
            raise refused("it does not contain exactly one image", "save one image, by its name")
        entry = found[0]
        path = _text(entry, "Config")
        stem = os.path.basename(path).removesuffix(".json")
        number = stem if len(stem) == 64 and _DIGITS.issuperset(stem) else ""
        config = self._json(self._blob(path, number))
        layers = tuple(self._blob(_checked_text(layer, "Layers")) for layer in _list(entry, "Layers"))
        tags = entry.get("RepoTags")
        name = str(tags[0]) if isinstance(tags, list) and tags else ""
        return Image(_plain(name), layers, _contents(config, len(layers)))


_REFERENCE = "org.opencontainers.image.ref.name"


class FileSlice:
    """A part of a file, read by position: the file's own offset does not move."""

    def __init__(self, file: IO[bytes], offset: int, size: int) -> None:
        self._fd, self._at, self._left = file.fileno(), offset, size

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; nothing at the end."""
        parts = []
        wanted = self._left if size < 0 else min(size, self._left)
        while wanted and (data := os.pread(self._fd, wanted, self._at)):
            parts.append(data)
            wanted -= len(data)
            self._at += len(data)
            self._left -= len(data)
        return b"".join(parts)

    def close(self) -> None:
        """Do nothing: the file is not ours to close."""


def refused(why: str, fix: str = "") -> ArchiveRefused:
    """The error for an image that is refused."""
    return ArchiveRefused(
        "the image is refused",
        why=why,
        fix=fix or "make the archive again, as `docker save` or `skopeo copy` do",
    )


def _chosen(manifests: list[Any]) -> dict[str, Any]:
    """The manifest for this machine. A single one is accepted for any machine."""
    usable = [item for item in manifests if isinstance(item, dict)]
    # Indexes also list attachments to an image, with an "unknown" architecture.
    images = [item for item in usable if _platform(item, "architecture") != "unknown"]
    if len(images) > 1:
        here = _ARCHITECTURES.get(os.uname().machine, os.uname().machine)
        images = [
            item
            for item in images
            if _platform(item, "architecture") == here and _platform(item, "os") in ("linux", "")
        ]
    if len(images) != 1:
        raise refused(
            "it does not contain exactly one image for this machine", "save one image, for one platform"
        )
    return images[0]


def _platform(descriptor: dict[str, Any], key: str) -> str:
    platform = descriptor.get("platform")
    return str(platform.get(key, "")) if isinstance(platform, dict) else ""


def _contents(config: Any, count: int) -> tuple[str, ...]:
    """The digests of the uncompressed layers, in order."""
    rootfs = config.get("rootfs") if isinstance(config, dict) else None
    digests = [str(item).removeprefix("sha256:") for item in _list(rootfs or {}, "diff_ids")]
    if len(digests) != count or any(len(item) != 64 or not _DIGITS.issuperset(item) for item in digests):
        raise refused("its configuration does not name its layers")
    return tuple(digests)


def _list(mapping: Any, key: str) -> list[Any]:
    found = mapping.get(key) if isinstance(mapping, dict) else None
    if not isinstance(found, list) or len(found) > MOST_LAYERS:
        raise refused(f"its {key} is not a list of texts")
    return found


def _text(mapping: Any, key: str) -> str:
    return _checked_text(mapping.get(key) if isinstance(mapping, dict) else None, key)


def _checked_text(value: Any, key: str) -> str:
    if not isinstance(value, str) or "\0" in value or len(value) > 4096:
        raise refused(f"its {key} is not a text")
    return value


def _plain(name: str) -> str:
    return "".join(char for char in name if char.isprintable())[:200]
