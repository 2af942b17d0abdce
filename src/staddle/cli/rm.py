"""`staddle rm`: remove kept sandboxes."""

from __future__ import annotations

from ..errors import UsageError
from .kept import begin
from .settings import HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = (HELP,)
_HELP = """\
Remove kept sandboxes with everything that was changed in them. Their workspaces are not touched.

usage: staddle rm NAME...

{options}

  staddle ls                           lists the names
"""


def main(words: Sequence[str]) -> int:
    """Remove them, and wait until their files are deleted."""
    parsed = begin(words, _OPTIONS, "rm", _HELP)
    if parsed is None:
        return 0
    if not parsed.words:
        raise UsageError("no kept sandbox is named", fix="staddle rm NAME; `staddle ls` lists them")
    from ..layers import trash
    from ..layers.persistent_store import remove

    for name in parsed.words:
        remove(name)
    trash.wait()
    return 0
