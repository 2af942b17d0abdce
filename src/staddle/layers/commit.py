"""Taking changes over to the host: all of them, or none, also when we are killed on the way.

Looked at first (`review`), then written beside the target (`staging`), then made durable at
once, then renamed into place (`journal`).
"""

from __future__ import annotations

import os
import time

from .._value import Value
from ..errors import CommitFailed, LayerError
from .baseline import Baseline
from .changes import Change, change_of
from .commit_dir import CommitDirectory
from .merged_view import LayerView, OpenLayers
from .review import decided, review
from .staging import Staging

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .review import Choice, OnConflict


class Committed(Value):
    """Result of a commit: the changes that the host has now, those it kept, and paths that are no files."""

    changes: tuple[Change, ...]
    kept: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def commit(
    view: LayerView,
    *,
    paths: Collection[str] | None = None,
    baseline: Baseline | None = None,
    on_conflict: OnConflict = "refuse",
    allow_protected: bool = False,
    progress: Callable[[int, int], object] | None = None,
    only: Choice | None = None,
    durable: bool = True,
) -> Committed:
    """Take the changes of `view`, at and below `paths`, over to its base, whole or not at all.

    CommitRefused before anything is written: the host changed the same files (as `baseline`
    tells), or a change needs a second look. CommitFailed: the host refused a step, and all that
    had been done was put back. `only` chooses among the changes, one by one; without `durable`
    the disk is not waited for. Nothing may write to the layers meanwhile. Owners, set-ID bits,
    attributes, devices, pipes and sockets are not taken over.
    """
    if len(view.bases) != 1:
        raise LayerError("there is no single directory to commit to", why=f"the base is {view.bases!r}")
    since = time.time_ns()
    with OpenLayers(view) as opened:
        target = opened.bases[0]
        found = review(opened, paths, baseline, only)
        taken, kept = decided(found, on_conflict, allow_protected)
        if not taken:
            return Committed((), kept, found.left_out)
        changes = tuple(change_of(opened, item) for item in taken)
        with CommitDirectory(target.path, target.root, durable=durable) as place:
            try:
                steps = Staging(opened, target.root, place.slots).stage(taken, progress)
                place.carry_out(target.root, steps, since)
            except OSError as error:
                raise CommitFailed(
                    "the changes could not be taken over",
                    why=f"{os.fsdecode(error.filename or '')}: {error.strerror}".lstrip(": "),
                    fix="nothing was changed; make the place writable, or leave these paths out",
                ) from error
        if baseline is not None:
            baseline.settle(target.root, taken)
        return Committed(changes, kept, found.left_out)
