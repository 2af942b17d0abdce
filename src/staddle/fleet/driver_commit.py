"""The commit of a sandbox of a fleet: in the driver, with every check of a local one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from staddle import Change, Sandbox
from staddle.errors import CommitRefused, TransferFailed

from . import content, snapshots
from .content_store import SentTree
from .messages import ContentRefs


class DriverCommit:
    """Commits the changes of one sandbox, once or several times."""

    def __init__(self, tree: SentTree | None, log: Callable[..., None]) -> None:
        self._tree, self._log = tree, log
        #: What the host has of paths that were committed, by path: no conflict for the next commit.
        self._settled: dict[str, content.TreeEntry | None] = {}

    def done(
        self,
        sent: ContentRefs,
        paths: list[str] | None,
        to: str | os.PathLike[str] | None,
        options: Mapping[str, Any],
    ) -> Any:
        """Open the changes in a sandbox here, and commit that. In a thread of the driver."""
        with tempfile.TemporaryDirectory(prefix="staddle-fleet-") as place:
            path = f"{place}/snapshot"
            save_snapshot(sent, path)
            target = os.fspath(to) if self._tree is None and to is not None else None
            workspace = target or (self._tree.directory if self._tree is not None else None)
            with Sandbox.from_snapshot(path, workspace, freeze=False) as local:
                if self._tree is not None and to is None:
                    self._refuse_conflicts(local.diff(paths), options["on_conflict"])
                elsewhere = to if self._tree is not None else None
                done = local.commit(paths, to=elsewhere, **options)
        if self._tree is not None and to is None:
            for change in done.changes:
                for each in filter(None, (change.path, change.old_path)):
                    below = each.removeprefix("/workspace/")
                    self._settled[below] = content.entry_of(self._tree.directory, below)
        self._log("committed", changes=[f"{change.kind} {change.path}" for change in done.changes])
        return done

    def _refuse_conflicts(self, changes: list[Change], on_conflict: str) -> None:
        if self._tree is None:
            return
        found = []
        for change in changes:
            for each in filter(None, (change.path, change.old_path)):
                below = each.removeprefix("/workspace/")
                sent = self._settled.get(below, self._tree.manifest.find(below))
                if why := content.conflict(sent, self._tree.directory, below):
                    found.append(change.replace(conflict=why))
        if found and on_conflict != "overwrite":
            raise CommitRefused(
                f"{len(found)} of the changed files are not as they were when they were sent",
                why=f"{found[0].path}: {found[0].conflict}",
                fix='read error.conflicts, and commit with on_conflict="overwrite", or other paths',
                conflicts=tuple(found),
            )


def save_snapshot(sent: ContentRefs, path: str) -> None:
    """Write a snapshot that has arrived to `path`, whole or not at all."""
    import ray.exceptions

    manifest = content.decoded(sent.manifest(), sent.digest)
    draft = f"{path}.{os.getpid()}.part"
    try:
        snapshots.write_file(draft, manifest, sent.pack)
        os.rename(draft, path)
    except ray.exceptions.RayError as error:
        raise TransferFailed(
            "a snapshot did not arrive",
            why=str(error).splitlines()[0],
            fix="its node may be lost: take another",
        ) from None
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
