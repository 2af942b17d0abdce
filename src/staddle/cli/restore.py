"""`staddle restore`: go back to a snapshot of a kept sandbox."""

from __future__ import annotations

from ..display import shown
from ..errors import UsageError
from ..session.kept import Kept
from .kept import begin
from .settings import HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = (HELP,)
_HELP = """\
Let a kept sandbox be as it was at a snapshot.

usage: staddle restore NAME LABEL

What was changed since then is gone, unless it is in another snapshot. The snapshot stays, and
can be gone back to again. The host's files are not touched.

{options}

  staddle snapshot fix                 lists the labels
  staddle restore fix start
"""


def main(words: Sequence[str]) -> int:
    """Go back."""
    parsed = begin(words, _OPTIONS, "restore", _HELP)
    if parsed is None:
        return 0
    if len(parsed.words) != 2:
        name = shown(parsed.words[0]) if parsed.words else "NAME"
        raise UsageError(
            "a session and one label are needed",
            fix=f"staddle restore {name} LABEL; `staddle snapshot {name}` lists the labels",
        )
    session = Kept(parsed.words[0])
    try:
        session.restore(parsed.words[1])
    finally:
        session.close()
    return 0
