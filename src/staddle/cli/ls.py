"""`staddle ls` lists the kept sandboxes, `staddle rm` removes some."""

from __future__ import annotations

from ..display import counted, shown
from ..errors import StaddleError, UsageError
from ..sandbox.workspace import persistent
from .kept import JSON, age, begin, every, human_size, print_json
from .options import HELP, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layers.session_record import SessionRecord

_OPTIONS = (JSON, HELP)
_HELP = """\
List kept sandboxes: changes, size, last use, workspace. Changes in .git directories are not counted:
`7 + .git` is seven changed files and a changed repository.

usage: staddle ls [--json]

They are made by `staddle run --keep NAME` and `staddle shell --keep NAME`, and lie in
$XDG_STATE_HOME/staddle/sessions (~/.local/state; root's in /var/lib). With --json, also the
policy that each was last used with, and its snapshots. `staddle rm NAME` removes one.

{options}
"""


def main(words: Sequence[str]) -> int:
    """List the kept sandboxes."""
    parsed = begin(words, _OPTIONS, "ls", _HELP)
    if parsed is None:
        return 0
    if parsed.words:
        raise UsageError(
            f"staddle ls does not understand {parsed.words[0]!r}", fix="to remove one write: staddle rm NAME"
        )
    found = [_facts(record) for record in every()]
    if parsed.on("json"):
        print_json(found)
    else:
        _print(found)
    return 0


def _facts(record: SessionRecord) -> dict[str, object]:
    from ..layers.persistent_store import is_claimed

    changes = in_git = None
    problem = ""
    try:
        found = persistent.changes(record)
        changes, in_git = len(found), sum("/.git/" in f"{change.path}/" for change in found)
    except (StaddleError, OSError) as error:
        problem = str(error)
    return {
        "name": record.name,
        "workspace": record.workspace,
        "changes": changes,
        "changes_in_git": in_git,
        "size": persistent.size(record),
        "created": record.created,
        "used": record.used,
        "in_use": is_claimed(record.name),
        "snapshots": [{"label": point.label, "created": point.created} for point in record.points],
        "policy": dict(record.policy),
        **({"problem": problem} if problem else {}),
    }


def _print(found: list[dict[str, object]]) -> None:
    if not found:
        print("no sandbox is kept; `staddle run --keep NAME -- COMMAND` makes one")
        return
    rows = [("NAME", "CHANGES", "SIZE", "USED", "WORKSPACE")]
    for facts in found:
        used = "now" if facts["in_use"] else f"{age(float(str(facts['used'])))} ago"
        rows.append(
            (
                str(facts["name"]),
                _counted(facts["changes"], facts["changes_in_git"]),
                human_size(int(str(facts["size"]))),
                used,
                shown(str(facts["workspace"] or "-")),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for facts in found:
        if "problem" in facts:
            print(f"{facts['name']}: {shown(str(facts['problem']))}")


def _counted(changes: object, in_git: object) -> str:
    if not isinstance(changes, int) or not isinstance(in_git, int):
        return "?"
    return f"{changes - in_git} + .git" if in_git else str(changes)


_RM_OPTIONS = (Option("force", "", "also with changes that were not committed"), HELP)
_RM_HELP = """\
Remove kept sandboxes with everything that was changed in them. Their workspaces are not touched.

usage: staddle rm [--force] NAME...

Refused, before anything is removed, if one of them has changes of its workspace that were not
committed. `staddle diff NAME` shows them.

{options}

  staddle ls                           lists the names
  staddle rm --force fix               with its changes
"""


def rm(words: Sequence[str]) -> int:
    """Remove kept sandboxes, and wait until their files are deleted."""
    parsed = begin(words, _RM_OPTIONS, "rm", _RM_HELP)
    if parsed is None:
        return 0
    if not parsed.words:
        raise UsageError("no kept sandbox is named", fix="staddle rm NAME; `staddle ls` lists them")
    from ..layers import trash
    from ..layers.persistent_store import remove

    if not parsed.on("force"):
        for name in parsed.words:
            _refuse_unfinished(name)
    for name in parsed.words:
        remove(name)
    trash.wait()
    return 0


def _refuse_unfinished(name: str) -> None:
    """Raise UsageError if changes of a kept sandbox would be lost, or cannot be counted."""
    record = persistent.find(name)
    try:
        count = len(persistent.changes(record))
    except (StaddleError, OSError) as error:
        raise UsageError(
            f"the changes of the kept sandbox {name!r} cannot be read",
            why=str(error),
            fix=f"to remove it anyway: staddle rm --force {name}",
        ) from None
    if count:
        raise UsageError(
            f"the kept sandbox {name!r} has {counted(count, 'change')} that were not committed"
            if count > 1
            else f"the kept sandbox {name!r} has a change that was not committed",
            why="they would be lost",
            fix=f"`staddle commit {name}` first, or to remove them as well: staddle rm --force {name}",
        )
