"""`staddle snapshot`: remember a kept sandbox as it is now, under a label."""

from __future__ import annotations

from ..display import shown
from ..errors import UsageError
from ..session import kept as sessions
from .kept import JSON, age, begin, named, print_json
from .options import Option
from .settings import HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = (Option("delete", "", "delete the snapshot of that label instead"), JSON, HELP)
_HELP = """\
Remember a kept sandbox as it is now, to come back to with `staddle restore`.

usage: staddle snapshot NAME LABEL            take one
       staddle snapshot NAME --delete LABEL   delete one
       staddle snapshot NAME                  list them

Nothing is copied: it takes no longer after ten thousand changed files than after one.

{options}

  staddle snapshot fix 'before the refactoring'
  staddle run --keep fix -- ./refactor
  staddle restore fix 'before the refactoring'
"""


def main(words: Sequence[str]) -> int:
    """Take, delete or list."""
    parsed = begin(words, _OPTIONS, "snapshot", _HELP)
    if parsed is None:
        return 0
    name, labels = named(parsed, "snapshot")
    if len(labels) > 1:
        raise UsageError("there is more than one label", fix="put it in quotes")
    if not labels:
        if parsed.on("delete"):
            raise UsageError("no label is named", fix=f"staddle snapshot {shown(name)} lists them")
        return _list(name, parsed.on("json"))
    if parsed.on("json"):
        raise UsageError("--json is for the list", fix="leave the label out")
    session = sessions.Kept(name)
    try:
        if parsed.on("delete"):
            session.forget(labels[0])
        else:
            session.snapshot(labels[0])
    finally:
        session.close()
    return 0


def _list(name: str, as_json: bool) -> int:
    points = sessions.find(name).points
    if as_json:
        print_json([{"label": point.label, "created": point.created} for point in points])
    for point in () if as_json else points:
        print(f"{age(point.created):>4} ago  {shown(point.label)}")
    return 0
