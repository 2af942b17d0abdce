"""The driver's content in Ray's object store: each pack once, as long as a tree needs it."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from staddle import Snapshot

from . import content, snapshots
from .messages import ContentRefs


class SentTree:
    """A directory in the store: its path on the driver, its manifest and digest. `close()` removes it."""

    def __init__(
        self, store: ContentStore, directory: str, manifest: content.Manifest, sent: ContentRefs
    ) -> None:
        self.directory, self.manifest, self.sent = directory, manifest, sent
        self._store, self._users = store, 1

    @property
    def digest(self) -> str:
        """The digest of its content."""
        return self.sent.digest

    def hold(self) -> SentTree:
        """Add a reference."""
        with self._store.lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Drop a reference; the last one releases the packs."""
        with self._store.lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._store.forget(self.sent)

    def __repr__(self) -> str:
        return f"<SentTree {self.directory!r} {self.digest[:12]} ({self.manifest.size} bytes)>"


class ContentStore:
    """References of packs by digest, with the number of trees that need each."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._refs: dict[str, tuple[Any, int]] = {}
        self.put_bytes = 0

    def tree(self, directory: str | os.PathLike[str]) -> SentTree:
        """Put a directory into the store."""
        path = os.path.realpath(os.path.expanduser(os.fspath(directory)))
        manifest, sent = self._collected(lambda put: content.read_tree(path, put))
        return SentTree(self, path, manifest, sent)

    def snapshot(self, given: Snapshot | str | os.PathLike[str]) -> ContentRefs:
        """Put a local snapshot, or the file of one, into the store."""
        if not isinstance(given, Snapshot):
            return self._collected(lambda put: snapshots.read_file(os.fspath(given), put))[1]
        with tempfile.TemporaryDirectory(prefix="staddle-fleet-") as place:
            path = f"{place}/snapshot"
            given.save(path)
            return self._collected(lambda put: snapshots.read_file(path, put))[1]

    def forget(self, sent: ContentRefs) -> None:
        """Release its packs, unless another tree needs them."""
        with self.lock:
            for digest in sent.packs:
                ref, users = self._refs.get(digest, (None, 0))
                if users <= 1:
                    self._refs.pop(digest, None)
                else:
                    self._refs[digest] = (ref, users - 1)

    def _collected(
        self, read: Callable[[Callable[[str, bytes], object]], content.Manifest]
    ) -> tuple[content.Manifest, ContentRefs]:
        import ray

        mine: dict[str, Any] = {}

        def put(digest: str, data: bytes) -> None:
            if digest in mine:
                return
            with self.lock:
                ref, users = self._refs.get(digest, (None, 0))
                if ref is None:
                    packed = content.pack(data)
                    self.put_bytes += len(packed)
                    ref = ray.put(packed)
                self._refs[digest] = (ref, users + 1)
            mine[digest] = ref

        manifest = read(put)
        listed = manifest.encoded()
        return manifest, ContentRefs(content.sha256(listed), ray.put(listed), mine)
