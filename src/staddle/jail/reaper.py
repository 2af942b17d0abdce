"""Remove old workspaces that are not in use."""

from __future__ import annotations

import os
import time

from ..errors import WorkspaceBusy, WorkspaceError
from . import record as records
from .workspace import Workspace, directories
from .worktree import erase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HOUR = 3600.0
#: Seconds that a workspace is kept in a state. States that are not named are kept for ever.
RETENTION = {"published": 24 * HOUR, "failed": 72 * HOUR}


def reap(
    retention: Mapping[str, float] = RETENTION,
    *,
    root: str | None = None,
    now: float | None = None,
    dry_run: bool = False,
) -> tuple[str, ...]:
    """Remove what has been in its state for longer than `retention` says; the paths that went.

    Branches stay, so that nothing that was committed is lost. What is claimed is not touched.
    A directory without a readable record is what a crash left, and goes like a failed one.
    With `dry_run` nothing goes; the paths are those that would.
    """
    unknown = set(retention) - set(records.TRANSITIONS)
    if unknown:
        raise WorkspaceError(
            f"there is no state {sorted(unknown)[0]!r}", fix=f"choose among {', '.join(records.TRANSITIONS)}"
        )
    moment = time.time() if now is None else now
    gone = []
    for directory in directories(root):
        try:
            with records.Claim(directory):
                if _is_due(directory, retention, moment):
                    if not dry_run:
                        _remove(directory)
                    gone.append(directory)
        except (WorkspaceBusy, OSError):
            continue  # in use, or gone meanwhile
    return tuple(gone)


def _is_due(directory: str, retention: Mapping[str, float], now: float) -> bool:
    try:
        record = records.read(directory)
    except WorkspaceError:
        state, since = "failed", os.stat(directory).st_mtime
    else:
        # We have the claim, so the process that the record names has ended.
        state, since = "failed" if record.state == "running" else record.state, record.changed
    return state in retention and now - since >= retention[state]


def _remove(directory: str) -> None:
    try:
        workspace = Workspace(directory)
    except WorkspaceError:
        objects = f"{directory}/git/objects"
        common = os.path.dirname(os.readlink(objects)) if os.path.islink(objects) else directory
        erase(directory, common, os.path.basename(directory))
    else:
        erase(directory, workspace.common, workspace.name)
