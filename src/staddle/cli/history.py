"""`staddle log`, `show`, `undo`, `bisect` and `blame`: the history of a kept sandbox."""

from __future__ import annotations

from ..display import counted, shown, shown_block
from ..errors import UsageError
from .kept import JSON, LETTERS, age, begin, named, open_kept, print_json, print_paged, row
from .options import HELP, RUNNING, Option
from .report import say_gaps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..sandbox.history.point import HistoryPoint
    from ..sandbox.sandbox import Sandbox
    from .options import Parsed

#: Options of the sandbox that is opened for a step or a test.
_SANDBOX = tuple(
    option for option in RUNNING if option.name not in ("json", "help", "mode", "output-cap", "no-redact")
)
#: Characters of a command in one line.
_WIDTH = 60

_LOG_OPTIONS = (Option("clear", "", "delete the points, and files that only they need"), JSON, HELP)
_LOG = """\
List the points of a kept sandbox: the commands that changed files, newest first.

usage: staddle log [NAME] [--json]
       staddle log NAME --clear

`staddle run --keep NAME` makes a point for each command that changed files; the mark * is at the
present one. A point can be shown, undone, and searched. It works while the sandbox is in use.

{options}

  staddle log fix
  staddle show fix 3
  staddle undo fix
"""


def log(words: Sequence[str]) -> int:
    """List the points of a kept sandbox."""
    parsed = begin(words, _LOG_OPTIONS, "log", _LOG)
    if parsed is None:
        return 0
    name, rest = named(parsed, "log")
    if rest:
        raise UsageError("`staddle log` takes one name", fix="show a point: staddle show NAME POINT")
    if parsed.on("clear"):
        _clear(name)
        return 0
    facts, present = _recorded(name)
    if parsed.on("json"):
        print_json([{**each, "present": each["number"] == present} for each in facts])
    else:
        print_paged(_line(each, present) for each in reversed(facts))
    return 0


def _clear(name: str) -> None:
    from ..sandbox.workspace.persistent import PersistentWorkspace

    kept = PersistentWorkspace(name)
    try:
        kept.forget_history()
    finally:
        kept.close()


def _recorded(name: str) -> tuple[list[dict[str, Any]], int]:
    """Return the facts of the recorded points, oldest first, and the number of the present one."""
    from ..layers.session_record import directory_of
    from ..sandbox.workspace.kept_points import KeptPoints
    from ..sandbox.workspace.persistent import find

    find(name)
    kept = KeptPoints(directory_of(name))
    return [dict(each.facts) for each in kept.records], kept.at


def _line(facts: dict[str, Any], present: int) -> str:
    mark = "*" if facts["number"] == present else " "
    count = "many changes" if facts["changed"] is None else counted(facts["changed"], "change")
    code = "" if not facts["exit_code"] else f", exit code {facts['exit_code']}"
    merged = f", and {counted(facts['merged'], 'earlier point')}" if facts["merged"] else ""
    command = shown(facts["command"] or f"({facts['cause']})")
    short = command if len(command) <= _WIDTH else f"{command[: _WIDTH - 1]}…"
    return f"{mark}{facts['number']:>4}  {age(facts['time']):>4} ago  {short}  ({count}{code}{merged})"


_SHOW_OPTIONS = (JSON, HELP, *_SANDBOX)
_SHOW = """\
Show what one command changed in a kept sandbox.

usage: staddle show [NAME] POINT [--json]

POINT is a number that `staddle log` lists. The changes are those from the point before.

{options}

  staddle show fix 3
"""


def show(words: Sequence[str]) -> int:
    """Show one point: its command and its changes, with diffs."""
    parsed = begin(words, _SHOW_OPTIONS, "show", _SHOW)
    if parsed is None:
        return 0
    name, number = _name_and(parsed, "show", "POINT")
    with _opened(parsed, name) as sandbox:
        points = sandbox.history()
        index = points.index(_point(points, number))
        found = points[index].diff(points[index - 1]) if index else []
        if parsed.on("json"):
            print_json({**points[index].facts, "changes": [change.as_dict() for change in found]})
            return 0
        lines = [_line(points[index].facts, points[-1].number)]
        for change in found:
            lines += [row(change), *shown_block(change.text_diff()).splitlines()]
        print_paged(lines)
    return 0


_UNDO_OPTIONS = (
    Option("redo", "", "go forward again, after an undo"),
    Option("count", "N", "the number of points (default: 1)", short="n"),
    HELP,
    *_SANDBOX,
)
_UNDO = """\
Take back commands in a kept sandbox: files and shells are as before them.

usage: staddle undo [NAME] [-n N]
       staddle undo [NAME] --redo [-n N]

The host's files do not change, and an undo does not go back over a commit; `staddle commit --undo`
does that. The next command that changes a file drops what was undone.

{options}

  staddle log fix
  staddle undo fix -n 2
  staddle undo fix --redo
"""


def undo(words: Sequence[str]) -> int:
    """Undo or redo commands in a kept sandbox."""
    parsed = begin(words, _UNDO_OPTIONS, "undo", _UNDO)
    if parsed is None:
        return 0
    name, rest = named(parsed, "undo")
    if rest:
        raise UsageError("`staddle undo` takes one name", fix=f"staddle undo {shown(name)} -n 2")
    text = parsed.one("count") or "1"
    count = _number(text)
    with _opened(parsed, name) as sandbox:
        step = sandbox.redo(count) if parsed.on("redo") else sandbox.undo(count)
        for point in step.points:
            print(_line(point.facts, -1))
        done = "done again" if parsed.on("redo") else "taken back"
        print(f"{counted(len(step.points), 'point')} {done}; the present is point {step.point.number}")
    return 0


_BISECT_OPTIONS = (
    Option("command", "SCRIPT", "run this line of shell as the test", short="c"),
    Option("good", "POINT", "a point at which the test passes (default: the first)"),
    Option("bad", "POINT", "a point at which it fails (default: the present)"),
    Option("repeat", "N", "run the test N times at a point, for one that fails sometimes"),
    JSON,
    HELP,
    *_SANDBOX,
)
_BISECT = """\
Find the command in a kept sandbox after which a test fails.

usage: staddle bisect [NAME] [options] -- TEST [ARGUMENTS]
       staddle bisect [NAME] [options] -c 'SCRIPT'

The test runs in a fork, at about log2 of the points; the sandbox does not change. As for `git bisect`,
exit code 0 is good, 125 skips a point, any other up to 127 is bad.

{options}

  staddle bisect fix -- make test
"""


def bisect(words: Sequence[str]) -> int:
    """Find the point after which a test fails."""
    parsed = begin(words, _BISECT_OPTIONS, "bisect", _BISECT)
    if parsed is None:
        return 0
    name, argv = named(parsed, "bisect")
    script = parsed.one("command")
    if (script is None) == (not argv):
        raise UsageError("one test is needed", fix=f"staddle bisect {shown(name)} -- TEST, or -c SCRIPT")
    good, bad = parsed.one("good"), parsed.one("bad")
    repeat = _number(parsed.one("repeat") or "1")
    with _opened(parsed, name) as sandbox:
        test: str | Sequence[str] = argv if script is None else script
        first, last = (None if text is None else _number(text) for text in (good, bad))
        found = sandbox.bisect(test, good=first, bad=last, repeat=repeat)
        if parsed.on("json"):
            print_json(
                {
                    "point": found.point.facts,
                    "before": found.before.number,
                    "suspects": [each.number for each in found.suspects],
                    "skipped": [each.number for each in found.skipped],
                    "tests": found.tests,
                    "result": None if found.result is None else found.result.as_dict(),
                }
            )
            return 0
        print(_line(found.point.facts, -1))
        for change in found.point.changes or ():
            print(f"  {LETTERS[change.kind]} {shown(change.path)}")
        if len(found.suspects) > 1:
            several = ", ".join(str(each.number) for each in found.suspects)
            print(f"one of the points {several}: some were skipped")
        if found.result is not None:
            print(shown_block(found.result.stdout + found.result.stderr), end="")
    return 0


_BLAME_OPTIONS = (JSON, HELP, *_SANDBOX)
_BLAME = """\
Show which command wrote each line of a file in a kept sandbox.

usage: staddle blame [NAME] FILE [--json]

FILE is a path inside, or relative to the workspace. Lines from before the history have point 0.

{options}

  staddle blame fix src/main.py
"""


def blame(words: Sequence[str]) -> int:
    """Print the lines of a file with the points that wrote them."""
    parsed = begin(words, _BLAME_OPTIONS, "blame", _BLAME)
    if parsed is None:
        return 0
    name, path = _name_and(parsed, "blame", "FILE")
    with _opened(parsed, name) as sandbox:
        try:
            found = sandbox.blame(path if path.startswith("/") else f"{sandbox.plan.cwd}/{path}")
        except OSError as error:
            raise UsageError(
                f"{path!r} cannot be read",
                why=error.strerror or str(error),
                fix="name a file of the workspace",
            ) from None
        if parsed.on("json"):
            print_json([{"line": one.line, "text": one.text, "point": one.point.number} for one in found])
        else:
            print_paged(shown(str(one)) for one in found)
    return 0


# ------------------------------------------------------------ shared


def _opened(parsed: Parsed, name: str) -> Sandbox:
    """Open the kept sandbox, which has to exist."""
    from ..sandbox.workspace.persistent import find

    workspace = find(name).workspace
    options = {**parsed.options, "keep": [name]}
    if workspace is not None:
        options.setdefault("workspace", [workspace])
    sandbox, _ = open_kept(parsed.replace(options=options))
    say_gaps(sandbox.enforced)
    return sandbox


def _name_and(parsed: Parsed, command: str, what: str) -> tuple[str, str]:
    """Return the name of the kept sandbox (default: that of this directory) and one more word."""
    if not 1 <= len(parsed.words) <= 2:
        raise UsageError(f"one {what} is needed", fix=f"staddle {command} NAME {what}")
    if len(parsed.words) == 2:
        return parsed.words[0], parsed.words[1]
    return named(parsed.replace(words=()), command)[0], parsed.words[0]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{text!r} is not a number", fix="`staddle log NAME` lists the numbers of points")
    return int(text)


def _point(points: Iterable[HistoryPoint], text: str) -> HistoryPoint:
    number = _number(text)
    for point in points:
        if point.number == number:
            return point
    raise UsageError(
        f"there is no point {number}",
        why="it was dropped or undone",
        fix="`staddle log NAME` lists the points",
    )
