"""`staddle review`: look at the changes of a kept sandbox, and commit, keep or discard them.

In a git repository, files of git itself are not among the changes. The sandbox's git commits are shown as
such, and taken over as such (`agents.repository`).
"""

from __future__ import annotations

import sys

from ..agents.repository import GIT, GitCommits, outer_objects
from ..display import counted, shown
from ..errors import CommitRefused, StaddleError, UsageError
from ..layers.persistent_store import is_claimed
from ..paths import WORKSPACE_PATH
from ..policy import Network
from ..policy.installation import default_policy
from ..sandbox.sandbox import Sandbox
from ..sandbox.workspace.persistent import PersistentWorkspace, changes, find
from .commit import print_refused
from .kept import begin, named, print_paged, progress, row
from .options import HELP
from .report import say, say_error
from .running_review import RunningWorkspace, running_workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..layers.changes import Change
    from ..layers.review import Conflict, NeedsApproval, Review

_OPTIONS = (HELP,)
_HELP = """\
Look at what an agent has done, and decide: commit it to your project, keep it, or discard it.

usage: staddle review [NAME]

Files that you changed as well, protected names (.git/hooks, .bashrc, ...) and new executables are asked one
by one. Git commits of the agent become commits of your branch if nothing else happened there since,
else a branch of their own. `staddle commit --undo NAME` takes the last commit of files back.

While the agent runs, its process reviews and commits files for you, from another terminal. Its git
commits, and discarding, wait for its end.

{options}

  staddle review                 the kept sandbox of this directory
  staddle ls                     lists the kept sandboxes
"""
_MENU = "[c]ommit to your project  [d]iff  [k]eep  [x] discard: "


def main(words: Sequence[str]) -> int:
    """Show the changes and ask what becomes of them."""
    parsed = begin(words, _OPTIONS, "review", _HELP)
    if parsed is None:
        return 0
    name, more = named(parsed, "review")
    if more:
        raise UsageError(f"staddle review takes no {more[0]!r}", fix=f"staddle diff {name} {more[0]}")
    record = find(name)
    if is_claimed(name):
        running = running_workspace(record)
        if running is not None and _at_a_terminal():
            return _ReviewingRunning(name, running).run()
        print_paged(map(_row, changes(record)))
        print(f"in use: the agent still runs; `staddle review {name}` commits its work when it has ended")
        return 0
    if not _at_a_terminal():
        raise UsageError(
            "a review needs a terminal",
            why="standard input or output is none",
            fix=f"`staddle diff {name}` shows the changes, `staddle commit {name} --yes` commits them",
        )
    return _Reviewing(name).run()


def at_the_end(name: str, *, ask: bool = True) -> None:
    """After an agent has ended: review, or say how to. The agent's work stays whatever happens here."""
    try:
        if ask and _at_a_terminal():
            _Reviewing(name).run()
        else:
            say(f"{_Reviewing(name).summary()}; kept: staddle review {name}")
    except KeyboardInterrupt:
        say(f"everything is kept: staddle review {name}")
    except (StaddleError, OSError) as error:
        say_error(error)
        say(f"everything is kept: staddle review {name}")


def _at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


class _Reviewing:
    """One review of a kept sandbox, which no program uses meanwhile."""

    _menu = _MENU

    def __init__(self, name: str) -> None:
        self._name = name
        self._project = find(name).workspace or ""
        if self._project and _touches_git(name):
            with self._opened() as sandbox:
                self._commits = GitCommits(sandbox, self._project, name)
        else:
            self._commits = GitCommits(None, self._project, name)
        kept = PersistentWorkspace(name)
        try:
            every = kept.review(None)
            inside = [_below(change.path) for change in every.changes]
            if self._commits.is_repository or self._commits.is_new:
                inside = [path for path in inside if path != GIT and not path.startswith(f"{GIT}/")]
            self._found = kept.review(inside) if inside else None
            self._rest = len(every.changes) > len(inside)
        finally:
            kept.close()

    def _workspace(self) -> PersistentWorkspace | RunningWorkspace:
        return PersistentWorkspace(self._name)

    @property
    def _after(self) -> str:
        return f"; undo: staddle commit --undo {self._name}"

    def summary(self) -> str:
        """The number of changed files and git commits, as a phrase."""
        count = 0 if self._found is None else len(self._found.changes)
        said = f"{counted(count, 'file')} changed"
        said += ", a new git repository" if self._commits.is_new else ""
        return said + (f", {counted(len(self._commits.rows), 'git commit')}" if self._commits.rows else "")

    def run(self) -> int:
        """Ask until something was decided. Returns the exit status."""
        if self._found is None and not self._commits.rows and not self._commits.is_new:
            print("nothing changed")
            return 0
        changes = () if self._found is None else self._found.changes
        print_paged([*map(_row, changes), *(f"commit {shown(each)}" for each in self._commits.rows)])
        while True:
            print(f"{self.summary()} · {self._menu}", end="", flush=True)
            answer = sys.stdin.readline()
            choice = answer.strip().lower()[:1]
            if choice == "c":
                return self._commit()
            if choice == "d":
                self._show()
            elif choice == "x" and "[x]" in self._menu:
                self._drop(None)
                print("discarded")
                return 0
            elif choice == "k" or not answer:
                print(f"kept: staddle review {self._name}")
                return 0

    def _show(self) -> None:
        from .diff import text_of

        changes = () if self._found is None else self._found.changes
        lines = [line for change in changes for line in (_row(change), *text_of(change).splitlines())]
        if self._commits.rows:
            with self._opened() as sandbox:
                lines += map(shown, self._commits.patches(sandbox).splitlines())
        print_paged(lines)

    def _commit(self) -> int:
        if self._found is not None and not self._commit_files(self._found):
            print(f"nothing was written; kept: staddle review {self._name}")
            return 1
        if self._commits.rows or self._commits.is_new:
            with self._opened() as sandbox:
                print(self._commits.take_over(sandbox))
        if self._rest and self._commits.has_more:
            print(f"its .git directory is kept in {self._name}: it has a stash, tags, or other commits")
        elif self._rest:
            self._drop([GIT])
        return 0

    def _commit_files(self, found: Review) -> bool:
        held = [item.path for item in found.held]
        # A new directory comes with the files in it, and a new repository as a whole.
        allowed, refused = [], {each.path for each in found.refused}
        for top, items in _by_repository(found).items():
            leaves = [item for item in items if not _has_below(item.path, held)]
            question = (
                "Take it?" if len(items) == 1 else f"Take all {len(items)} files of this git repository?"
            )
            if not leaves:
                continue
            if _asked(leaves[0], question):
                allowed += [item.path for item in leaves]
            else:
                refused.add(top)
        allowed += [path for path in held if _has_below(path, allowed)]
        over = {item.path for item in found.conflicts if _asked(item, "Replace yours?")}
        declined = {each.path for each in found.conflicts} - over
        skipped = refused | declined | {path for path in held if not _is_among(path, {*allowed, *refused})}
        kept = self._workspace()
        report, finished = progress("committing")
        try:
            # Everything that was asked for, and exactly as it was shown.
            paths = [
                path
                for path in found.paths or ()
                if not _is_among(path, skipped) and not _has_below(path, skipped)
            ]
            done = kept.take_over(
                paths,
                on_conflict=lambda conflict: "overwrite" if conflict.path in over else "refuse",
                allow=tuple(allowed),
                progress=report,
                reviewed=found,
            )
        except CommitRefused as refusal:
            finished()
            print_refused(refusal)
            return False
        finally:
            kept.close()
            finished()
        print(f"{counted(len(done.changes), 'file')} committed to {shown(self._project)}", end="")
        print(self._after)
        for path in sorted(skipped):
            print(f"left out: {shown(path)}")
        self._rest = self._rest and not skipped
        return True

    def _opened(self) -> Sandbox:
        """The sandbox, for git inside: no network, and the objects of a worktree's repository."""
        policy = default_policy().with_network(Network.deny()).with_read(*outer_objects(self._project))
        return Sandbox(self._project, policy, keep=self._name)

    def _drop(self, paths: list[str] | None) -> None:
        kept = PersistentWorkspace(self._name)
        try:
            kept.drop(None if paths is None else {WORKSPACE_PATH: paths})
        finally:
            kept.close()


class _ReviewingRunning(_Reviewing):
    """One review of the sandbox of a running agent. Git commits wait for the agent's end."""

    _menu = _MENU.partition("  [x]")[0] + ": "
    _after = "; the agent goes on"

    def __init__(self, name: str, running: RunningWorkspace) -> None:
        self._name, self._running, self._project = name, running, running.directory
        self._commits, self._rest = GitCommits(None, self._project, name), False
        found = running.review(None)
        found.paths = tuple(_below(each.path) for each in found.changes)
        self._found = found if found.changes else None

    def _workspace(self) -> RunningWorkspace:
        return self._running


def _row(change: Change) -> str:
    """A change on one line, with its paths below the project."""
    return row(change.replace(path=_below(change.path), old_path=_below(change.old_path or "") or None))


def _by_repository(found: Review) -> dict[str, list[NeedsApproval]]:
    """The changes that need approval, by their paths; those of a new git repository by its path."""
    added = [_below(each.path) for each in found.changes if each.kind == "added"]
    new = [path for path in added if path.endswith(f"/{GIT}")]
    grouped: dict[str, list[NeedsApproval]] = {}
    for item in found.held:
        top = next((place for place in new if _is_among(item.path, (place,))), item.path)
        grouped.setdefault(top, []).append(item)
    return grouped


def _is_among(path: str, others: Collection[str]) -> bool:
    """Whether the path, or a directory that it is in, is one of the others."""
    return any(path == other or path.startswith(f"{other}/") for other in others)


def _has_below(path: str, others: Collection[str]) -> bool:
    return any(other.startswith(f"{path}/") for other in others)


def _below(path: str) -> str:
    return path.removeprefix(f"{WORKSPACE_PATH}/")


def _asked(item: Conflict | NeedsApproval, question: str = "Take it?") -> bool:
    """Ask about one path that a commit would refuse."""
    print(f"{shown(item.path)}: {shown(item.why)}. {question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _touches_git(name: str) -> bool:
    below = f"{WORKSPACE_PATH}/{GIT}"
    return any(change.path == below or change.path.startswith(f"{below}/") for change in changes(find(name)))
