"""`staddle restore`: restore a snapshot of a kept sandbox."""

from __future__ import annotations

from ..display import shown
from ..errors import LayerError, UsageError
from ..sandbox.workspace.persistent import PersistentWorkspace
from ..sandbox.workspace.snapshot import Snapshot
from .kept import begin, progress
from .options import Option
from .settings import HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = (Option("load", "FILE", "a file that `staddle snapshot --save` wrote, in place of a label"), HELP)
_HELP = """\
Restore a kept sandbox to a snapshot.

usage: staddle restore NAME LABEL
       staddle restore NAME --load FILE

Changes since then are lost, unless they are in another snapshot. The snapshot stays, and
can be restored again. The host's files are not touched.

{options}

  staddle snapshot fix                 lists the labels
  staddle restore fix start
  staddle run --keep fix true && staddle restore fix --load fix.saved      on another machine
"""


def main(words: Sequence[str]) -> int:
    """Go back."""
    parsed = begin(words, _OPTIONS, "restore", _HELP)
    if parsed is None:
        return 0
    if len(parsed.words) != (1 if parsed.on("load") else 2):
        name = shown(parsed.words[0]) if parsed.words else "NAME"
        raise UsageError(
            "a kept sandbox and one label are needed",
            fix=f"staddle restore {name} LABEL; `staddle snapshot {name}` lists the labels",
        )
    kept = PersistentWorkspace(parsed.words[0])
    try:
        if parsed.on("load"):
            _load(kept, parsed.one("load") or "")
        else:
            kept.restore(parsed.words[1])
    finally:
        kept.close()
    return 0


def _load(kept: PersistentWorkspace, path: str) -> None:
    report, over = progress("loading")
    try:
        snapshot = Snapshot.load(path, progress=report)
    except OSError as error:
        raise LayerError(f"{path!r} cannot be read", why=error.strerror or str(error)) from None
    finally:
        over()
    kept.become(snapshot)
    snapshot.close()
