"""A workspace: a git worktree for one agent, on its own branch, beside a record that it cannot write.

  <data>/staddle/workspaces/<name>/tree            the worktree: all that the agent sees and writes
                                  /git             our own git directory for it (see `git`)
                                  /workspace.json  the record
                                  /task.json       the task of the agent (see `task`)
                                  /journal.jsonl   the events, without secrets
                                  /claim           locked while a process uses it

`worktree` makes and removes the tree. `reap` removes old workspaces that are not in use.
"""

from __future__ import annotations

import os
import time

from .. import places
from ..errors import CommitRefused, GitFailed, InvalidCall, PolicyError, WorkspaceBusy, WorkspaceError
from ..layers.review import Allowed, NeedsApproval, Review, decided
from . import git as safe_git
from . import record as records
from . import task as tasks
from . import worktree
from .review import (
    WITH_REPOSITORIES,
    GitIndex,
    PlantedFile,
    WorkspaceReview,
    changed_between,
    find_planted,
    reviewed,
    worth_a_look,
)
from .worktree import erase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

#: The default committer of an agent's uncommitted changes.
IDENTITY = {
    "GIT_AUTHOR_NAME": "staddle agent",
    "GIT_AUTHOR_EMAIL": "agent@staddle.invalid",
    "GIT_COMMITTER_NAME": "staddle agent",
    "GIT_COMMITTER_EMAIL": "agent@staddle.invalid",
}


def commit_identity(author: str | None = None) -> dict[str, str]:
    """The variables that make git commit as `author`, "Name <address>" (default: `IDENTITY`)."""
    if author is None:
        return IDENTITY
    name, _, rest = author.partition("<")
    address, end, left = rest.partition(">")
    good = name.strip() and address.strip() and end and not left.strip() and "<" not in address
    if not good or not author.isprintable():
        raise PolicyError(
            f"the author {author!r} is not an identity",
            fix='write "Name <address>"',
            why="git writes a name and an address into every commit",
        )
    return {key: (name if key.endswith("NAME") else address).strip() for key in IDENTITY}


#: Files in a worktree's git directory that show an unfinished operation.
_UNFINISHED = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


def data_directory(root: str | None = None) -> str:
    """Directory of workspaces: `root`, $STADDLE_WORKSPACES, or below the user's data directory."""
    return os.path.realpath(root or places.workspaces())


class Workspace:
    """A git worktree for one agent. `path` is the tree, `branch` its branch, `base` the starting commit."""

    def __init__(self, directory: str) -> None:
        """Use `create`, `load`, `find` or `list` instead."""
        self.directory = directory
        record = records.read(directory)
        self.name, self.branch, self.base = record.name, record.branch, record.base
        self.repository, self.common = record.repository, record.common
        self.path = f"{directory}/tree"
        self.admin = worktree.admin_directory(record.common, record.name)
        self._git = safe_git.Git(f"{directory}/git", record.common, self.path)

    @classmethod
    def create(
        cls,
        repo: str,
        branch: str | None = None,
        base: str = "HEAD",
        *,
        root: str | None = None,
        task: tasks.Task | None = None,
    ) -> Workspace:
        """A worktree of `repo` on the new branch `branch` (default: staddle/<name>), starting at `base`.

        `task` is stored with it. WorkspaceBusy if another workspace of the repository has its reference.
        """
        import secrets

        if not (task is None or isinstance(task, tasks.Task)):
            raise InvalidCall(
                f"task is {task!r}",
                why="it is not a Task",
                fix="use task=Task(reference='...', prompt='...')",
            )
        git_directory, common = safe_git.locate(os.fspath(repo))
        name = secrets.token_hex(6)
        directory = f"{data_directory(root)}/{name}"
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
        os.mkdir(directory, 0o700)
        with records.Claim(directory):
            try:
                if task is not None:
                    tasks.reserve(directory, task, common, directories(root))
                git = safe_git.build(f"{directory}/git", git_directory, common)
                made = (name, os.path.realpath(repo), branch or f"staddle/{name}")
                worktree.fill(git, directory, made, base)
            except BaseException:
                worktree.erase(directory, common, name)
                raise
            records.append_journal(directory, "created", repository=made[1], branch=made[2], base=base)
        return cls(directory)

    @classmethod
    def load(cls, path: str, *, root: str | None = None) -> Workspace:
        """The workspace with its tree or directory at `path`, which must be in the directory of workspaces.

        Elsewhere an agent could have made a fake workspace with a git directory of its choice.
        """
        place = os.path.realpath(path)
        directory = os.path.dirname(place) if os.path.basename(place) == "tree" else place
        where = data_directory(root)
        if os.path.dirname(directory) != where:
            raise WorkspaceError(
                f"there is no workspace at {path!r}",
                why=f"it is not directly below {where!r}, where workspaces live",
                fix="name the tree or the directory of one, or pass root=",
            )
        return cls(directory)

    @classmethod
    def find(cls, name: str, *, root: str | None = None) -> Workspace:
        """Find a workspace by name or its beginning, branch, path, or the reference of its task."""
        known = cls.list(root=root)
        exact = [item for item in known if name in (item.name, item.branch)]
        exact = exact or [item for item in known if name and item.has_reference(name)]
        found = exact or [item for item in known if name and item.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        if not found and ("/" in name or name in (".", "..")) and os.path.isdir(name):
            return cls.load(name, root=root)
        if found:
            several = ", ".join(f"{item.name} ({item.repository})" for item in found)
            raise WorkspaceError(f"{name!r} can mean several workspaces", why=several, fix="give more of it")
        raise WorkspaceError(
            f"there is no workspace {name!r}",
            why=f"{data_directory(root)!r} contains {', '.join(item.name for item in known) or 'none'}",
            fix="`staddle jail ls` lists them; `staddle jail create` makes one",
        )

    @classmethod
    def list(cls, *, root: str | None = None) -> tuple[Workspace, ...]:
        """Every workspace, oldest first. Skips unreadable ones, which `reap` removes."""
        found = []
        for directory in directories(root):
            try:
                found.append((records.read(directory).created, directory))
            except WorkspaceError:
                continue
        return tuple(cls(directory) for _, directory in sorted(found))

    @property
    def status(self) -> str:
        """prepared, running, stopped, published or failed. Running means that its process is alive."""
        state = self.record.state
        return "failed" if state == "running" and not records.is_claimed(self.directory) else state

    @property
    def record(self) -> records.WorkspaceRecord:
        """Its record, read from disk."""
        return records.read(self.directory)

    @property
    def task(self) -> tasks.Task:
        """Its task, read from disk; an empty one if none was given."""
        return tasks.read(self.directory)

    def update_task(self, **changes: str) -> tasks.Task:
        """Change the title, prompt or session of its task; the reference and its repository stay."""
        if changes.keys() - {"title", "prompt", "session"}:
            raise WorkspaceError(
                f"{', '.join(sorted(changes))} cannot be changed",
                fix="make another workspace",
                why="it describes the workspace",
            )
        changed = self.task.replace(**changes)
        tasks.write(self.directory, changed, self.common)
        return changed

    def last_session(self, agent: str | None = None) -> tuple[str, str | None] | None:
        """(agent, its session if known) of the last run, or of the last run of `agent`; None without runs."""
        for entry in reversed(self.journal()):
            name = entry.facts.get("agent") if entry.what == "began" else None
            if name and agent in (None, name):
                return name, entry.facts.get("session")
        return None

    def has_reference(self, reference: str) -> bool:
        """Whether its task has `reference`, and it is not published yet."""
        try:
            return self.task.reference == reference and self.record.state != "published"
        except WorkspaceError:
            return False

    def journal(self) -> tuple[records.JournalEntry, ...]:
        """Its journal, oldest entry first. Commands may contain the agent's text: escape them.

        If the process of the last run was killed, this writes the end of that run first.
        """
        if not records.is_claimed(self.directory):
            try:
                with self.claim():
                    records.end_journal(self.directory)
            except (WorkspaceBusy, OSError):
                pass  # it runs again, or cannot be written
        return records.read_journal(self.directory)

    def claim(self) -> records.Claim:
        """Claim it until release or the end of this process. WorkspaceBusy if it is claimed already."""
        return records.Claim(self.directory)

    def move_to(self, state: str) -> None:
        """Change its state; needs the claim. WorkspaceError if the transition is not allowed."""
        record = self.record
        if record.state == "running" and state == "running":
            record = record.moved_to("failed")  # we have the claim, so the process that ran it has ended
        records.write(self.directory, record.moved_to(state))

    def unlock(self) -> None:
        """Remove the locks of a killed git. The caller must have the claim, and nothing may run in it."""
        worktree.unlock(self.common, self.name, self.branch)

    def publish(self, remote: str | None = None, *, commit: str | None = None) -> str:
        """Record that its branch has been taken over; return its commit. It must be `publishable`.

        With `remote`, a remote of the repository or a URL, the branch is pushed there first, never by force.
        If the push fails, GitFailed is raised and nothing is recorded. With `commit`, the tip that was
        reviewed, WorkspaceError is raised if the branch has moved since.
        """
        with self.claim():
            tip = self.tip()
            if commit not in (None, tip):
                raise WorkspaceError(
                    f"the branch {self.branch!r} has moved since it was reviewed",
                    why=f"it was at {commit} and is at {tip}",
                    fix="review it again",
                )
            if not self.publishable():
                raise self._unpublishable()
            facts = {"branch": self.branch, "commit": tip}
            if remote is not None:
                url = self._git.remote_url(remote, self.repository)
                self._git.push(url, self.branch, tip)
                facts["remote"] = safe_git.without_login(url)
            self.move_to("published")
            records.append_journal(self.directory, "published", None, **facts)
            return tip

    def tip(self) -> str:
        """The commit at the tip of its branch."""
        return self._git.run("rev-parse", "--verify", f"refs/heads/{self.branch}^{{commit}}").decode().strip()

    def log(self) -> tuple[tuple[str, str], ...]:
        """(commit, subject) of the new commits, newest first, at most 100. The agent wrote the subjects."""
        said = self._git.run("log", "-100", "--format=%H%x00%s", "-z", f"{self.base}..{self.tip()}")
        fields = said.decode("utf-8", "surrogateescape").split("\0")
        return tuple(zip(fields[0::2], fields[1::2], strict=False))

    def diff(self, *, uncommitted: bool | WorkspaceReview = False, stat: bool = False) -> bytes:
        """The diff from its base to the branch, in git's format. The bytes are the agent's: escape them.

        `uncommitted` includes the tree's uncommitted changes, or those of a review; `stat` returns only the
        size of each change.
        """
        options = ["--stat=120"] if stat else []
        if not isinstance(uncommitted, bool) or not uncommitted:
            end = uncommitted.tree if uncommitted else self.tip()
            return self._git.run("diff", "--no-renames", WITH_REPOSITORIES, *options, self.base, end)
        with GitIndex(self._git, only_looking=True) as index:
            index.read(self.tip())
            index.take(index.differing())
            return index.against(self.base, *options)

    def changed_paths(self) -> tuple[str, ...]:
        """Files that differ from the branch and are not ignored; without those of nested repositories."""
        with GitIndex(self._git) as index:
            index.read(self.tip())
            return tuple(sorted(set(index.differing())))

    def has_uncommitted_changes(self) -> bool:
        """Whether the tree differs from its branch. Ignores the agent's index, which could say anything."""
        return bool(self.changed_paths())

    def review(self, digest: str | None = None) -> WorkspaceReview:
        """Write the tree as it is now to a tree object of git, for `commit_all` to commit.

        With `digest`, that earlier review of this workspace. Nested repositories are left out, see `inspect`.
        """
        if digest is not None:
            return self._earlier(digest)
        tip = self.tip()
        with GitIndex(self._git) as index:
            index.read(tip)
            index.take(index.differing())
            return reviewed(self._git, tip, index.tree())

    def commit_all(
        self,
        message: str,
        *,
        author: str | None = None,
        allow: Collection[str] = (),
        allow_protected: bool = False,
        review: WorkspaceReview | None = None,
    ) -> str | None:
        """Commit the tree to the branch; return the new commit, or None if nothing changed.

        `author` is "Name <address>" (default: the agent of `IDENTITY`). No hook, filter or signature is run.
        Nested repositories are left out, see `inspect`. Raises CommitRefused, and commits nothing, if there
        are protected names, new executables or links out of the tree, as `Sandbox.commit`: `allow` lists
        paths to accept, `allow_protected` accepts all. With `review`, it commits exactly the reviewed tree:
        later changes stay uncommitted, and CommitRefused lists what changed if the branch has moved since.
        """
        identity = commit_identity(author)
        self._refuse_unfinished()
        if review is None:
            review = self.review()
        else:
            self._refuse_moved(review)
        if not review.changed:
            return None
        refuse_held(review.held, allow, allow_protected)
        data = message.encode("utf-8", "surrogateescape")
        made = self._git.run("commit-tree", review.tree, "-p", review.tip, data=data, env=identity)
        commit = made.decode().strip()
        try:
            self._git.run("update-ref", f"refs/heads/{self.branch}", commit, review.tip)
        except GitFailed:
            self._refuse_moved(review)
            raise
        with GitIndex(self._git) as index:
            index.read(commit)
            worktree.install_index(index.path, self.admin)
        records.append_journal(self.directory, "committed", commit=commit)
        return commit

    def _earlier(self, digest: str) -> WorkspaceReview:
        tip, _, tree = digest.partition("..")
        why = "it is not TIP..TREE, a commit and a tree"
        try:
            if all(map(safe_git.is_object_name, (tip, tree))):
                kinds = [self._git.run("cat-file", "-t", name).strip() for name in (tip, tree)]
                if kinds == [b"commit", b"tree"]:
                    return reviewed(self._git, tip, tree)
        except GitFailed as error:
            why = error.why or error.what
        raise WorkspaceError(
            f"the workspace {self.name} has no review {digest!r}",
            why=why,
            fix="use the digest of its review(), which `staddle jail diff` prints",
        )

    def _refuse_moved(self, review: WorkspaceReview) -> None:
        """Raise CommitRefused if the branch is not where it was at the review."""
        tip = self.tip()
        if tip == review.tip:
            return
        changed = changed_between(self._git, review.tip, tip)
        paths = ", ".join(repr(item.path) for item in changed[:10])
        raise CommitRefused(
            f"the branch {self.branch!r} has moved since the review",
            why=f"it was at {review.tip} and is at {tip}; between them {paths or 'no file'} changed",
            fix="nothing was written; review it again",
            conflicts=changed,
        )

    def publishable(self) -> bool:
        """Stopped, new commits on its branch, nothing uncommitted, HEAD and .git file unchanged."""
        return (
            self.status == "stopped"
            and safe_git.text(f"{self.path}/.git") == f"gitdir: {self.admin}\n"
            and safe_git.head(self.admin) == f"ref: refs/heads/{self.branch}"
            and self.tip() != self.base
            and self._descends()
            and not self.has_uncommitted_changes()
        )

    def _unpublishable(self) -> WorkspaceError:
        """The first reason why it is not `publishable`."""
        command = f"`staddle jail commit {self.name} -m TEXT`, or commit_all()"
        head = safe_git.head(self.admin) == f"ref: refs/heads/{self.branch}"
        if self.status != "stopped":
            why, fix = f"its state is {self.status}", "run a command in it that ends by itself"
        elif safe_git.text(f"{self.path}/.git") != f"gitdir: {self.admin}\n" or not head:
            why = "its .git file, or its HEAD, was changed"
            fix = "read inspect(), and fetch the commits by hand"
        elif self.tip() == self.base:
            why, fix = "there is no new commit on its branch", command
        elif not self._descends():
            why, fix = "its branch is not over its base", "rebase it by hand, or make another workspace"
        else:
            why, fix = "it has uncommitted changes", command
        return WorkspaceError(f"the workspace {self.name} cannot be published", why=why, fix=fix)

    def inspect(self) -> tuple[PlantedFile, ...]:
        """Files in the repository and the tree that would make git, an editor or a shell run commands."""
        return find_planted(self.common, self.admin, self.path, self.branch)

    def worth_a_look(self, commit: str | None = None) -> tuple[PlantedFile, ...]:
        """New executables in its commits, links out of the tree, and other repositories.

        It looks at the commits up to `commit` (default: the tip).
        """
        return worth_a_look(self._git, self.base, commit or self.tip())

    def remove(self, *, force: bool = False) -> None:
        """Remove the worktree; the branch stays. Discards uncommitted changes only with `force`."""
        with self.claim():
            if not force and self.has_uncommitted_changes():
                raise WorkspaceError(
                    f"the workspace {self.name} has uncommitted changes",
                    fix="commit_all() them, or remove(force=True)",
                    why="they would be lost",
                )
            worktree.erase(self.directory, self.common, self.name)

    def __repr__(self) -> str:
        return f"<Workspace {self.name} on {self.branch!r}>"

    def _refuse_unfinished(self) -> None:
        if safe_git.head(self.admin) != f"ref: refs/heads/{self.branch}":
            raise WorkspaceError(
                f"the workspace {self.name} is not on its branch {self.branch!r}",
                why="its HEAD was moved",
                fix=f"inspect it, and write 'ref: refs/heads/{self.branch}' to {self.admin}/HEAD",
            )
        for name in _UNFINISHED:
            if os.path.lexists(f"{self.admin}/{name}"):
                raise WorkspaceError(
                    f"the workspace {self.name} is in the middle of something",
                    why=f"{self.admin}/{name} is there",
                    fix="let the agent finish or abort it",
                )

    def _descends(self) -> bool:
        try:
            self._git.run("merge-base", "--is-ancestor", self.base, self.tip())
        except GitFailed:
            return False
        return True


def refuse_held(found: tuple[NeedsApproval, ...], allow: Collection[str], allow_protected: bool) -> None:
    """Raise the CommitRefused of `commit_all` if it would not accept these changes."""
    try:
        decided(Review((), (), (), found), "refuse", allow_protected, Allowed(allow))
    except CommitRefused as refused:
        fix = f"review them; allow=[{refused.held[0].path!r}, ...] commits those that it names"
        raise CommitRefused(
            refused.what, why=refused.why, fix=f"{fix}, allow_protected=True all", held=refused.held
        ) from None


def directories(root: str | None = None) -> Iterator[str]:
    """Every workspace directory, including incomplete ones."""
    where = data_directory(root)
    try:
        names = sorted(os.listdir(where))
    except FileNotFoundError:
        return
    yield from (f"{where}/{name}" for name in names if os.path.isdir(f"{where}/{name}"))


HOUR = 3600.0
#: Seconds for which a workspace is kept in a state. States not listed are kept forever.
RETENTION = {"published": 24 * HOUR, "failed": 72 * HOUR}


def reap(
    retention: Mapping[str, float] = RETENTION,
    *,
    root: str | None = None,
    now: float | None = None,
    dry_run: bool = False,
) -> tuple[str, ...]:
    """Remove workspaces that have been in a state for longer than `retention`; return their paths.

    Branches stay, so that no commit is lost. Claimed workspaces are not touched. A directory without a
    readable record was left by a crash, and counts as failed. With `dry_run` nothing is removed; the paths
    are those that would be.
    """
    unknown = set(retention) - set(records.TRANSITIONS)
    if unknown:
        raise WorkspaceError(
            f"there is no state {sorted(unknown)[0]!r}",
            fix=f"choose among {', '.join(records.TRANSITIONS)}",
            why="a workspace has one of these",
        )
    moment = time.time() if now is None else now
    gone = []
    for directory in directories(root):
        try:
            before = os.stat(directory)
            is_new = not os.path.exists(f"{directory}/claim")
            with records.Claim(directory):
                if not dry_run:
                    records.end_journal(directory)
                if is_new:  # our claim must not make a leftover look younger
                    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
                if _is_due(directory, retention, moment):
                    if not dry_run:
                        _remove(directory)
                    gone.append(directory)
        except (WorkspaceBusy, OSError):
            continue  # in use, or removed meanwhile
    return tuple(gone)


def _is_due(directory: str, retention: Mapping[str, float], now: float) -> bool:
    try:
        record = records.read(directory)
    except WorkspaceError:
        state, since = "failed", os.stat(directory).st_mtime
    else:
        # We have the claim, so the process that the record names has ended.
        state, since = "failed" if record.state == "running" else record.state, record.changed
    return state in retention and now - since >= retention[state]


def _remove(directory: str) -> None:
    try:
        workspace = Workspace(directory)
    except WorkspaceError:
        objects = f"{directory}/git/objects"
        common = os.path.dirname(os.readlink(objects)) if os.path.islink(objects) else directory
        erase(directory, common, os.path.basename(directory))
    else:
        erase(directory, workspace.common, workspace.name)
