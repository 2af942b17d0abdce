"""`staddle commit` writes the changes of a kept sandbox to its workspace, `staddle discard` drops them."""

from __future__ import annotations

import sys

from ..display import counted, shown
from ..errors import CommitRefused, LayerError, UsageError
from ..layers.persistent_store import is_claimed
from ..paths import WORKSPACE_PATH
from ..sandbox.workspace.persistent import PersistentWorkspace, find
from .kept import begin, below, named, print_json, print_paged, progress, refuse_unknown, row
from .options import HELP, Option
from .running_review import RunningWorkspace, running_workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layers.changes import Change
    from ..layers.review import Review

ALLOW = (
    Option("allow", "NAME", "also commit this protected name or executable: a path, or a glob", many=True),
    Option("allow-protected", "", "also commit protected names (.git/hooks, .bashrc, ...), new executables"),
)
_OPTIONS = (
    Option("yes", "", "do not ask", short="y"),
    Option("undo", "", "restore the files that the last commit replaced, if nobody changed them since"),
    Option("on-conflict", "HOW", "refuse (default), or overwrite what changed on the host since"),
    *ALLOW,
    Option("json", "", "what was done, as JSON; needs --yes"),
    HELP,
)
_HELP = """\
Write the changes of a kept sandbox to its workspace: all of them, or nothing.

usage: staddle commit [options] [NAME] [[--] PATH...]

The changes are listed, and you are asked. The commit is refused with a list, before anything is
written, if a file also changed on the host since the sandbox started with it, or if a change
could make one of your programs run something: protected names and new executables. Check those
with `staddle diff`; the options below allow them, PATHs leave them out. Owners, set-user-ID bits,
devices, pipes and sockets are never committed. After a kill, the next commit finishes it or
rolls it back.

After a commit of everything the sandbox starts again from the workspace as it is then. The exit
status is 0 when it was done, or there was nothing to do; 1 when you answered no; 125 when it
was refused.

{options}

  staddle commit fix                             check the list, answer y
  staddle commit fix --yes src README.md         only these
  staddle commit fix --allow tool.sh             with this new executable, and no other
  staddle commit fix --undo                      put back what the last commit replaced
"""
_CHOICES = ("refuse", "overwrite")
HOW_TO_ALLOW = "--allow NAME takes one over, --allow-protected all"


def main(words: Sequence[str]) -> int:
    """Review and list the changes, ask, and commit them."""
    parsed = begin(words, _OPTIONS, "commit", _HELP)
    if parsed is None:
        return 0
    if parsed.on("undo"):
        return _undo(named(parsed, "commit --undo"))
    on_conflict = parsed.one("on-conflict") or _CHOICES[0]
    if on_conflict not in _CHOICES:
        raise UsageError(f"--on-conflict {on_conflict!r} means nothing", fix=f"use {' or '.join(_CHOICES)}")
    yes, as_json = parsed.on("yes"), parsed.on("json")
    if as_json and not yes:
        raise UsageError(
            "--json needs --yes",
            why="it cannot prompt for confirmation",
            fix="add --yes",
        )
    name, paths = named(parsed, "commit")
    record = find(name)  # raises an error if it does not exist
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "confirmation is needed before a commit",
            why="standard input or output is not a terminal",
            fix="review with `staddle diff`, then add --yes",
        )
    from ..layers.commit_dir import recover

    recover()  # finishes or rolls back a commit that was killed
    running = running_workspace(record) if is_claimed(name) else None
    kept = PersistentWorkspace(name) if running is None else running
    try:
        return _commit(
            kept,
            below(paths),
            on_conflict,
            allow=tuple(parsed.many("allow")),
            allow_protected=parsed.on("allow-protected"),
            yes=yes,
            as_json=as_json,
        )
    finally:
        kept.close()


def _commit(
    kept: PersistentWorkspace | RunningWorkspace,
    paths: tuple[str, ...] | None,
    on_conflict: str,
    *,
    allow: tuple[str, ...],
    allow_protected: bool,
    yes: bool,
    as_json: bool,
) -> int:
    _refuse_without_workspace(kept)
    found = kept.review(paths)
    _refuse(kept, found, on_conflict, allow_protected, allow)
    if not found.taken and not as_json:
        print("nothing to commit")
        return 0
    if not yes:
        print_paged([*map(row, found.changes), *_notes(found)])
        if not _agreed(found, kept.directory):
            print("nothing was done")
            return 1
    report, over = progress("committing")
    try:
        done = kept.take_over(
            paths,
            on_conflict="overwrite" if on_conflict == "overwrite" else "refuse",
            allow=allow,
            allow_protected=allow_protected,
            progress=report,
            reviewed=found,
        )
    except CommitRefused as refused:
        raise _refusal(kept, refused) from None
    finally:
        over()
    if as_json:
        print_json(_report(done.changes, done.left_out))
        return 0
    print(f"{counted(len(done.changes), 'change')} committed to {shown(kept.directory)}")
    for path in done.left_out:
        print(f"left out, because it is neither file, directory nor link: {shown(path)}")
    return 0


def _undo(named: tuple[str, tuple[str, ...]]) -> int:
    name, paths = named
    if paths:
        raise UsageError("--undo takes no PATH", why="a commit is undone as a whole", fix="leave it out")
    kept = PersistentWorkspace(name)
    try:
        restored = kept.undo()
    except CommitRefused as refused:
        print_refused(refused)
        raise
    finally:
        kept.close()
    print(f"{counted(len(restored), 'path')} restored in {shown(kept.directory)}")
    return 0


def _report(changes: Sequence[Change], left_out: Sequence[str]) -> dict[str, object]:
    return {"changes": [change.as_dict() for change in changes], "left_out": list(left_out)}


def _refuse_without_workspace(kept: PersistentWorkspace | RunningWorkspace) -> None:
    if kept.stand_in is not None:
        raise LayerError(
            "there is nothing to commit to",
            why="the kept sandbox was made without a workspace",
            fix="make another one with --workspace",
        )


def _refuse(
    kept: PersistentWorkspace | RunningWorkspace,
    found: Review,
    on_conflict: str,
    allow_protected: bool,
    allow: tuple[str, ...],
) -> None:
    """Raise the error of the commit before asking the user, and report --allow names that match nothing."""
    from ..layers.review import Allowed, decided

    allowed = Allowed(allow)
    try:
        decided(found, "overwrite" if on_conflict == "overwrite" else "refuse", allow_protected, allowed)
    except CommitRefused as refused:
        raise _refusal(kept, refused) from None
    finally:
        for name in allowed.unused:
            print(f"staddle: --allow {shown(name)}: nothing of that name was refused", file=sys.stderr)


def _refusal(kept: PersistentWorkspace | RunningWorkspace, refused: CommitRefused) -> CommitRefused:
    """Print all refused paths, and return the error with a fix for the command line."""
    ways = [
        *(["--on-conflict overwrite takes the sandbox's"] if refused.conflicts else []),
        *([HOW_TO_ALLOW] if refused.held else []),
        "naming other PATHs leaves them out",
    ]
    return refusal(refused, f"see `staddle diff {kept.record.name}`; {', '.join(ways)}")


def refusal(refused: CommitRefused, fix: str) -> CommitRefused:
    """Print all refused paths to standard error, and return the error with another `fix`."""
    print_refused(refused)
    paths = {item.path for item in refused.conflicts} | {item.path for item in refused.held}
    what = counted(len(paths), "path")
    return CommitRefused(
        "nothing was written",
        why=f"{what} would have to be reviewed first",
        fix=fix,
        conflicts=refused.conflicts,
        held=refused.held,
    )


def print_refused(refused: CommitRefused) -> None:
    """Print every path for which a commit was refused, with the reason, to standard error."""
    for heading, items in (
        ("also changed on the host since then", refused.conflicts),
        ("needs a second look", refused.held),
    ):
        if items:
            print(f"{heading}:", file=sys.stderr)
            for item in items:
                print(f"  {shown(item.path)}: {shown(item.why)}", file=sys.stderr)


def _notes(found: Review) -> list[str]:
    second = [(item.path, item.why) for item in found.conflicts]
    second += [(item.path, item.why) for item in found.held]
    notes = [f"! {shown(path)}: {shown(why)}" for path, why in second]
    return notes + [f"- left out, because it is not a file: {shown(path)}" for path in found.left_out]


def _agreed(found: Review, workspace: str) -> bool:
    count, over = len(found.taken), len(found.conflicts)
    what = "this change" if count == 1 else f"these {count:,} changes"
    mind = f" This replaces {counted(over, 'file')} that you have changed since." if over else ""
    print(f"Commit {what} to {shown(workspace)}?{mind} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


_DISCARD_OPTIONS = (HELP,)
_DISCARD_HELP = """\
Drop changes of a kept sandbox: inside, the workspace is again as on the host.

usage: staddle discard [NAME] [[--] PATH...]

Without PATHs everything is dropped. Snapshots stay: take one with `staddle snapshot NAME LABEL` first
if you may want the changes back. PATHs are as `staddle diff` shows them, or relative to the workspace.
{options}

  staddle discard fix                  everything
  staddle discard fix src/generated    only in this directory
"""


def discard(words: Sequence[str]) -> int:
    """Drop the changes, and print their number."""
    parsed = begin(words, _DISCARD_OPTIONS, "discard", _DISCARD_HELP)
    if parsed is None:
        return 0
    name, paths = named(parsed, "discard")
    kept = PersistentWorkspace(name)
    try:
        chosen = _by_tree(kept, paths)
        dropped = kept.diff(chosen)
        refuse_unknown(paths, dropped, kept.record.workspace)
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
