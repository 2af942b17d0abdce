"""`staddle discard`: drop what a kept sandbox has changed."""

from __future__ import annotations

from ..errors import UsageError
from ..policy.paths import WORKSPACE_PATH
from ..sandbox.workspace.persistent import PersistentWorkspace
from .kept import begin, counted, named
from .settings import HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = (HELP,)
_HELP = """\
Drop changes of a kept sandbox: inside, the workspace is again as on the host.

usage: staddle discard NAME [PATH...]

Without PATHs everything is dropped. Snapshots stay: take one with `staddle snapshot NAME LABEL` first
if you may want the changes back. PATHs are as `staddle diff` shows them, or relative to the workspace.
{options}

  staddle discard fix                  everything
  staddle discard fix src/generated    only in this directory
"""


def main(words: Sequence[str]) -> int:
    """Drop the changes, and print their number."""
    parsed = begin(words, _OPTIONS, "discard", _HELP)
    if parsed is None:
        return 0
    name, paths = named(parsed, "discard")
    kept = PersistentWorkspace(name)
    try:
        chosen = _by_tree(kept, paths)
        dropped = kept.diff(chosen)
        if dropped:
            kept.drop(chosen)
        print(f"{counted(len(dropped), 'change')} dropped")
    finally:
        kept.close()
    return 0


def _by_tree(kept: PersistentWorkspace, paths: Sequence[str]) -> dict[str, list[str]] | None:
    try:
        return kept.by_tree(paths, WORKSPACE_PATH) if paths else None
    except ValueError as error:
        raise UsageError(str(error), fix="name paths as `staddle diff --all` does") from None
