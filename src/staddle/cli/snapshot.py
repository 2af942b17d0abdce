"""`staddle snapshot` saves the state of a kept sandbox under a label, `staddle restore` returns to it."""

from __future__ import annotations

import sys

from ..display import shown
from ..errors import LayerError, UsageError
from ..sandbox.workspace import persistent
from ..sandbox.workspace.persistent import PersistentWorkspace
from ..sandbox.workspace.snapshot import Snapshot
from .kept import JSON, age, begin, named, print_json, progress
from .options import HELP, RUNNING, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layers.drift import Drift
    from .options import Parsed

#: Maximum number of reported paths that changed on the host.
_MOST_TOLD = 10
#: Options of the sandbox of `-c`.
_SANDBOX = tuple(
    option for option in RUNNING if option.name not in ("json", "help", "mode", "output-cap", "no-redact")
)
_OPTIONS = (
    Option("command", "SCRIPT", "run this in a new sandbox, and --save what it leaves", short="c"),
    Option("delete", "", "delete the snapshot of that label instead"),
    Option("save", "FILE", "write it to a file, for `staddle restore --load` there or elsewhere"),
    JSON,
    HELP,
    *_SANDBOX,
)
_HELP = """\
Take a snapshot of a kept sandbox, for `staddle restore`.

usage: staddle snapshot NAME LABEL            take one
       staddle snapshot NAME --delete LABEL   delete one
       staddle snapshot NAME                  list them
       staddle snapshot NAME --save FILE [LABEL]   write one, or the current state, to a file
       staddle snapshot -c SCRIPT --save FILE      run a script, and write what it leaves to a file

With -c the sandbox is a new one on the current directory, which is not changed. The exit status is the
script's, and the snapshot is written if that is 0: files, variables, functions, directory. `staddle shell
--load FILE` continues from it. The options of the sandbox, from --policy on, are for -c alone.

Nothing is copied: it takes no longer after ten thousand changed files than after one.

{options}

  staddle snapshot fix 'before the refactoring'
  staddle run --keep fix -- ./refactor
  staddle restore fix 'before the refactoring'
"""


def main(words: Sequence[str]) -> int:
    """Take, delete, list or save snapshots."""
    parsed = begin(words, _OPTIONS, "snapshot", _HELP)
    if parsed is None:
        return 0
    if parsed.on("command"):
        return _run_and_save(parsed)
    if wrong := next((option.name for option in _SANDBOX if parsed.on(option.name)), ""):
        raise UsageError(
            f"--{wrong} needs -c SCRIPT",
            why="a kept sandbox has the policy that it is used with",
            fix="add -c SCRIPT, or leave it out",
        )
    name, labels = named(parsed, "snapshot")
    if len(labels) > 1:
        raise UsageError("there is more than one label", fix="put it in quotes")
    if parsed.on("save"):
        if parsed.on("delete") or parsed.on("json"):
            raise UsageError("--save goes with no other option", fix="leave the others out")
        return _save(name, labels[0] if labels else None, parsed.one("save") or "")
    if not labels:
        if parsed.on("delete"):
            raise UsageError("no label is named", fix=f"staddle snapshot {shown(name)} lists them")
        return _list(name, parsed.on("json"))
    if parsed.on("json"):
        raise UsageError("--json is for the list", fix="leave the label out")
    kept = persistent.PersistentWorkspace(name)
    try:
        if parsed.on("delete"):
            kept.forget(labels[0])
        else:
            kept.snapshot(labels[0])
    finally:
        kept.close()
    return 0


def _run_and_save(parsed: Parsed) -> int:
    """Run a script in a new sandbox, and save a snapshot of the result."""
    from .kept import open_overlay
    from .report import say, say_gaps, say_violations

    path = parsed.one("save")
    if path is None or parsed.words or parsed.on("delete") or parsed.on("json"):
        raise UsageError("-c SCRIPT goes with --save FILE", why="the sandbox has no name", fix="give both")
    with open_overlay(parsed)[0] as sandbox:
        say_gaps(sandbox.enforced)
        result = sandbox.run(
            parsed.one("command") or "",
            on_stdout=lambda text: print(text, end="", flush=True),
            on_stderr=lambda text: print(text, end="", file=sys.stderr, flush=True),
        )
        if result.why:
            say(shown(result.why))
        say_violations((*sandbox.violations(), *sandbox.refusals()))
        if result.exit_code:
            say(f"nothing was saved after the status {result.exit_code}")
            return result.exit_code
        report, over = progress("saving")
        try:
            sandbox.snapshot().save(path, progress=report)
        except OSError as error:
            raise LayerError(
                f"{path!r} cannot be written",
                why=error.strerror or str(error),
                fix="name a file in a directory that you can write",
            ) from None
        finally:
            over()
    return 0


def _save(name: str, label: str | None, path: str) -> int:
    kept = persistent.PersistentWorkspace(name)
    report, over = progress("saving")
    try:
        kept.saved(label).save(path, progress=report)
    except OSError as error:
        raise LayerError(
            f"{path!r} cannot be written",
            why=error.strerror or str(error),
            fix="name a file in a directory that you can write",
        ) from None
    finally:
        over()
        kept.close()
    return 0


def _list(name: str, as_json: bool) -> int:
    points = persistent.find(name).points
    if as_json:
        print_json([{"label": point.label, "created": point.created} for point in points])
    for point in () if as_json else points:
        print(f"{age(point.created):>4} ago  {shown(point.label)}")
    return 0


_RESTORE_OPTIONS = (
    Option("load", "FILE", "a file that `staddle snapshot --save` wrote, in place of a label"),
    HELP,
)
_RESTORE_HELP = """\
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


def restore(words: Sequence[str]) -> int:
    """Restore a kept sandbox to a snapshot."""
    parsed = begin(words, _RESTORE_OPTIONS, "restore", _RESTORE_HELP)
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
        drift = _load(kept, parsed.one("load") or "") if parsed.on("load") else kept.restore(parsed.words[1])
    finally:
        kept.close()
    if drift.paths:
        several = ", ".join(map(shown, drift.paths[:_MOST_TOLD]))
        more = ", and more" if drift.more or len(drift.paths) > _MOST_TOLD else ""
        print(f"staddle: changed on the host since then, and seen inside: {several}{more}", file=sys.stderr)
    return 0


def _load(kept: PersistentWorkspace, path: str) -> Drift:
    report, over = progress("loading")
    try:
        snapshot = Snapshot.load(path, progress=report)
    except OSError as error:
        raise LayerError(
            f"{path!r} cannot be read",
            why=error.strerror or str(error),
            fix="name a file that `staddle snapshot --save` wrote",
        ) from None
    finally:
        over()
    try:
        return kept.become(snapshot)
    finally:
        snapshot.close()
