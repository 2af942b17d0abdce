"""Snapshots to transfer: the file of `Snapshot.save` as content."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from staddle import Sandbox, Snapshot

from . import content
from .messages import ContentRefs
from .node_files import NodeFiles

_NAME = "snapshot"


def read_file(path: str, put: Callable[[str, bytes], object]) -> content.Manifest:
    """A file as content: pass its packs to `put`, return its manifest."""
    packer = content.Packer(put)
    with open(path, "rb") as source:
        pieces, size, digest = packer.add(iter(lambda: source.read(1 << 20), b""))
    packer.flush()
    return content.Manifest((content.TreeEntry(_NAME, "file", 0o600, size, digest, "", tuple(pieces)),))


def snapshot_content(
    files: NodeFiles, sandbox: Sandbox, taken: Snapshot | None
) -> tuple[bytes, dict[str, Any]]:
    """A snapshot of a sandbox (default: a new one): its manifest, and the references of its packs."""
    import ray

    point = sandbox.snapshot("to another node") if taken is None else taken
    path = files.file()
    packs: dict[str, Any] = {}
    try:
        point.save(path, freeze=False)  # each node has a copy of the workspace
        manifest = read_file(path, lambda digest, data: packs.setdefault(digest, ray.put(content.pack(data))))
    finally:
        os.unlink(path)
        if taken is None:
            point.close()
    return manifest.encoded(), packs


def snapshot_file(files: NodeFiles, sent: ContentRefs) -> str:
    """The file of a received snapshot, verified. The caller removes it."""
    path = files.file()
    try:
        write_file(path, content.decoded(sent.manifest(), sent.digest), sent.pack)
    except BaseException:
        os.unlink(path)
        raise
    return path


def write_file(path: str, manifest: content.Manifest, packs: Callable[[str], bytes]) -> None:
    """Write the single file of a manifest to `path`."""
    import hashlib

    from staddle.errors import TransferFailed

    (entry,) = manifest.entries
    whole = hashlib.sha256()
    with open(path, "wb") as out:
        for piece in entry.pieces:
            part = packs(piece.pack)[piece.start : piece.start + piece.size]
            whole.update(part)
            out.write(part)
    if whole.hexdigest() != entry.digest:
        raise TransferFailed(
            "a snapshot did not arrive as it was sent",
            fix="take and send it again",
            why="its checksum is another one",
        )
