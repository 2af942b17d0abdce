"""`staddle diff`: show the changes of a kept sandbox to a person."""

from __future__ import annotations

from itertools import chain
from math import ceil

from ..display import counted, shown
from ..errors import UsageError
from ..packages.installed import fold
from ..paths import WORKSPACE_PATH
from ..sandbox.workspace import persistent
from .kept import (
    BOLD,
    CYAN,
    GREEN,
    JSON,
    LETTERS,
    RED,
    Paint,
    begin,
    named,
    print_json,
    print_paged,
    refuse_unknown,
    row,
)
from .options import HELP, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..layers.changes import Change
    from ..packages.installed import Package
    from .options import Parsed

_OPTIONS = (
    Option("all", "", "also in the home, in /tmp and elsewhere, not only in the workspace"),
    Option("stat", "", "only how much of each file"),
    Option("names", "", "only which files"),
    Option("patch", "", "a patch for `git apply` in the workspace, written to a file or a pipe"),
    JSON,
    HELP,
)
_HELP = """\
Show the changes of a kept sandbox, compared with its workspace as it is now.

usage: staddle diff [options] [NAME] [[--] PATH...]

NAME is the name given to --keep. Without it, the kept sandbox of the current directory. PATHs are
as seen inside (/workspace/src, /home/user/.config) or relative to the workspace (src). On a
terminal it is coloured, and paged with $PAGER or less when it is long. Nothing is changed, and
the sandbox may be in use.

Letters: A added, M modified, D deleted, R renamed, m permissions, T another kind of file,
L target of a link; with --all, P is an installed package, in place of its files. Names
and text come from inside: terminal control sequences are shown escaped.

{options}

  staddle run --keep fix -c 'sed -i s/teh/the/ README'
  staddle diff fix
  staddle diff fix --stat src
  staddle diff fix --all --names
  staddle diff fix --patch | git -C elsewhere apply
"""
#: Maximum length of a shown line.
_LONGEST = 2000
_WIDEST = 40


def main(words: Sequence[str]) -> int:
    """Find the changes and print them."""
    parsed = begin(words, _OPTIONS, "diff", _HELP)
    if parsed is None:
        return 0
    name, paths = named(parsed, "diff")
    record = persistent.find(name)
    try:
        found = persistent.changes(record, paths or None, everything=parsed.on("all"))
    except ValueError as error:
        raise UsageError(str(error), fix="name paths as `staddle diff --all` does") from None
    refuse_unknown(paths, found, record.workspace)
    if parsed.on("patch"):
        return _patch(found, parsed)
    if parsed.on("json"):
        print_json([change.as_dict() for change in found])
        return 0
    packages, found = fold(found) if parsed.on("all") and not paths else ((), found)
    if parsed.on("names"):
        lines: Iterable[str] = map(row, found)
    else:
        lines = _stat(found, Paint()) if parsed.on("stat") else _texts(found, Paint())
    print_paged(chain(map(_folded, packages), lines))
    return 0


def _patch(found: Sequence[Change], parsed: Parsed) -> int:
    """Write the changes of the workspace as a git patch, byte for byte."""
    import sys

    from ..layers.git_patch import git_patch

    if sys.stdout.isatty():
        raise UsageError(
            "--patch is not for a terminal",
            why="it has names and content as they are, with any control sequence in them",
            fix="write it to a file: staddle diff NAME --patch > FILE",
        )
    if other := next((name for name in ("all", "stat", "names", "json") if parsed.on(name)), ""):
        raise UsageError(f"--patch and --{other} contradict each other", fix="leave one of them out")
    for part in git_patch((change for change in found if not change.elsewhere), WORKSPACE_PATH):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    return 0


def _folded(package: Package) -> str:
    """Return a line for a package, shown instead of its files."""
    how_many = counted(package.files, "change")
    return f"P {shown(package.name)} {shown(package.version)} ({package.manager}, {how_many})"


def text_of(change: Change) -> str:
    """Return the change as a unified diff with escaped names and content, because the sandbox chose them.

    A name that contains a newline must not look like a line of the diff.
    """
    from ..layers.unified_diff import text_diff

    view, item = change.__dict__.get("_source") or (None, None)
    names = ("path", "old_path", "target", "old_target")
    harmless = change.replace(
        **{name: shown(value) for name in names if (value := getattr(change, name)) is not None}
    )
    # Split only at newlines: a carriage return does not end a line, and must be visible.
    lines = text_diff(harmless, view, item).split("\n")
    return "\n".join("\t".join(shown(cell) for cell in line.split("\t")) for line in lines)


def _texts(found: Sequence[Change], paint: Paint) -> Iterator[str]:
    for change in found:
        yield paint(row(change), BOLD)
        for line in text_of(change).splitlines():
            yield paint(_cut(line), _colour(line))
        yield ""


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ... ({len(line) - _LONGEST:,} more)"


def _colour(line: str) -> int:
    if line.startswith(("--- ", "+++ ")):
        return BOLD
    if line.startswith("@@"):
        return CYAN
    return {"+": GREEN, "-": RED}.get(line[:1], 0)


def _stat(found: Sequence[Change], paint: Paint) -> Iterator[str]:
    rows = [(row(change), *_amounts(change)) for change in found]
    width = min(max((len(name) for name, *_ in rows), default=0), 100)
    most = max((came + went for _, came, went, _ in rows), default=0)
    scale = min(1.0, _WIDEST / most) if most else 1.0
    for name, came, went, note in rows:
        bars = paint("+" * ceil(came * scale), GREEN if came else 0)
        bars += paint("-" * ceil(went * scale), RED if went else 0)
        amount = note or (f"{came + went} {bars}" if came or went else "")
        yield f"{name:<{width}} | {amount}" if amount else name
    kinds = [(kind, sum(change.kind == kind for change in found)) for kind in LETTERS]
    told = ", ".join(f"{count:,} {kind}" for kind, count in kinds if count)
    came, went = sum(one[1] for one in rows), sum(one[2] for one in rows)
    yield counted(len(found), "change") + (
        f" ({told}), {counted(came, 'line')} added, {counted(went, 'line')} deleted" if found else ""
    )


def _amounts(change: Change) -> tuple[int, int, str]:
    """Return the number of added lines, of deleted lines, and a note to show instead."""
    lines = text_of(change).splitlines()
    at = next((number for number, line in enumerate(lines) if line.startswith("@@")), None)
    if at is None:
        if change.size != change.old_size and any("differ" in line for line in lines):
            return 0, 0, f"{change.old_size or 0:,} -> {change.size or 0:,} bytes"
        return 0, 0, ""
    body = lines[at:]
    return sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body), ""
