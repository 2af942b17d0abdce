"""A workspace: a git worktree for one agent, on a branch of its own, beside a record it cannot write.

    <data>/staddle/workspaces/<name>/tree            the worktree: all that the agent sees and writes
                                    /git             our own git directory for it (see `git`)
                                    /workspace.json  the record
                                    /claim           locked while somebody uses it

See `worktree` for how the tree is made and removed.
"""

from __future__ import annotations

import os

from ..errors import GitFailed, WorkspaceError
from . import git as safe_git
from . import record as records
from . import worktree
from .planted import Planted, look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Who commits what an agent left uncommitted, unless the caller says otherwise.
IDENTITY = {
    "GIT_AUTHOR_NAME": "staddle agent",
    "GIT_AUTHOR_EMAIL": "agent@staddle.invalid",
    "GIT_COMMITTER_NAME": "staddle agent",
    "GIT_COMMITTER_EMAIL": "agent@staddle.invalid",
}
#: Files of a worktree's git directory that say: in the middle of something.
_UNFINISHED = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


def data_directory(root: str | None = None) -> str:
    """Where workspaces live: `root`, $STADDLE_WORKSPACES, or below the user's data directory."""
    chosen = root or os.environ.get("STADDLE_WORKSPACES")
    if not chosen:
        data = os.environ.get("XDG_DATA_HOME", "")
        # The specification says that a relative one is to be ignored.
        base = data if data.startswith("/") else os.path.expanduser("~/.local/share")
        chosen = f"{base}/staddle/workspaces"
    return os.path.realpath(chosen)


class Workspace:
    """A git worktree for one agent. `path` is the tree, `branch` what it works on, `base` where it began."""

    def __init__(self, directory: str) -> None:
        """For `create`, `load` and `list`, which know where a workspace is."""
        self.directory = directory
        record = records.read(directory)
        self.name, self.branch, self.base = record.name, record.branch, record.base
        self.repository, self.common = record.repository, record.common
        self.path = f"{directory}/tree"
        self.admin = worktree.admin_directory(record.common, record.name)
        self._git = safe_git.Git(f"{directory}/git", record.common, self.path)

    @classmethod
    def create(
        cls, repo: str, branch: str | None = None, base: str = "HEAD", *, root: str | None = None
    ) -> Workspace:
        """A worktree of `repo` on the new branch `branch` (default: staddle/<name>), beginning at `base`."""
        import secrets

        git_directory, common = safe_git.locate(os.fspath(repo))
        name = secrets.token_hex(6)
        directory = f"{data_directory(root)}/{name}"
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
        os.mkdir(directory, 0o700)
        with records.Claim(directory):
            try:
                git = safe_git.build(f"{directory}/git", git_directory, common)
                made = (name, os.path.realpath(repo), branch or f"staddle/{name}")
                worktree.fill(git, directory, made, base)
            except BaseException:
                worktree.erase(directory, common, name)
                raise
        return cls(directory)

    @classmethod
    def load(cls, path: str, *, root: str | None = None) -> Workspace:
        """The workspace whose tree, or whose directory, is at `path`. Only where workspaces live.

        Anywhere else an agent could have made what looks like one, with a git directory of its choice.
        """
        place = os.path.realpath(path)
        directory = os.path.dirname(place) if os.path.basename(place) == "tree" else place
        where = data_directory(root)
        if os.path.dirname(directory) != where:
            raise WorkspaceError(
                f"there is no workspace at {path!r}",
                why=f"it is not directly below {where!r}, where workspaces live",
                fix="name the tree or the directory of one, or say root=",
            )
        return cls(directory)

    @classmethod
    def list(cls, *, root: str | None = None) -> tuple[Workspace, ...]:
        """Every workspace, oldest first. What cannot be read is left out; the reaper deals with it."""
        found = []
        for directory in directories(root):
            try:
                found.append((records.read(directory).created, directory))
            except WorkspaceError:
                continue
        return tuple(cls(directory) for _, directory in sorted(found))

    @property
    def status(self) -> str:
        """prepared, running, stopped, published or failed. Running means that somebody lives who runs it."""
        state = self.record.state
        return "failed" if state == "running" and not records.is_claimed(self.directory) else state

    @property
    def record(self) -> records.Record:
        """What is known about it now."""
        return records.read(self.directory)

    def claim(self) -> records.Claim:
        """Take it, until the claim is released or this process ends. WorkspaceBusy when it is taken."""
        return records.Claim(self.directory)

    def move_to(self, state: str) -> None:
        """Enter another state. For whoever has the claim; WorkspaceError when there is no way there."""
        record = self.record
        if record.state == "running" and state == "running":
            record = record.moved_to("failed")  # whoever ran it is gone: the claim is ours
        records.write(self.directory, record.moved_to(state))

    def publish(self) -> None:
        """Record that its branch has been taken over. Only what is `publishable`."""
        with self.claim():
            if not self.publishable():
                raise WorkspaceError(
                    f"the workspace {self.name} cannot be published",
                    why="it is not stopped, has nothing new, or has uncommitted changes",
                    fix="commit_all() what is left, and look at inspect()",
                )
            self.move_to("published")

    def tip(self) -> str:
        """The commit its branch is at."""
        return self._git.run("rev-parse", "--verify", f"refs/heads/{self.branch}^{{commit}}").decode().strip()

    def diff(self) -> bytes:
        """What the branch changed since its base, as git shows it. The bytes are the agent's: escape them."""
        return self._git.run("diff", "--no-renames", self.base, self.tip())

    def changed_paths(self) -> tuple[str, ...]:
        """What differs in the tree from the branch and is not ignored; not what is in nested repositories."""
        self._read_tip()
        return tuple(sorted({*self._tracked_changes(), *self._untracked()}))

    def has_uncommitted_changes(self) -> bool:
        """Whether the tree differs from its branch. The agent's index is not asked: it could say anything."""
        return bool(self.changed_paths())

    def commit_all(self, message: str) -> str | None:
        """Commit what the tree holds onto the branch; the new commit, or None when there was nothing to do.

        No hook, filter or signature is run. Nested repositories are left out, see `inspect`.
        """
        self._refuse_unfinished()
        tip = self._read_tip()
        paths = b"\0".join(os.fsencode(path) for path in (*self._tracked_changes(), *self._untracked()))
        if paths:
            self._git.run(
                "update-index", "--add", "--remove", "--replace", "-z", "--stdin", data=paths + b"\0"
            )
        tree = self._git.run("write-tree").decode().strip()
        if tree == self._git.run("rev-parse", "--verify", f"{tip}^{{tree}}").decode().strip():
            return None
        made = self._git.run(
            "commit-tree", tree, "-p", tip, data=message.encode("utf-8", "surrogateescape"), env=IDENTITY
        )
        commit = made.decode().strip()
        self._git.run("update-ref", f"refs/heads/{self.branch}", commit, tip)
        worktree.install_index(f"{self.directory}/git/index", self.admin)
        return commit

    def publishable(self) -> bool:
        """Stopped, something new on its branch, nothing uncommitted, HEAD and pointer where they belong."""
        return (
            self.status == "stopped"
            and safe_git.text(f"{self.path}/.git") == f"gitdir: {self.admin}\n"
            and safe_git.head(self.admin) == f"ref: refs/heads/{self.branch}"
            and self.tip() != self.base
            and self._descends()
            and not self.has_uncommitted_changes()
        )

    def inspect(self) -> tuple[Planted, ...]:
        """What lies in the repository and the tree that would make git, an editor or a shell run commands."""
        return look(self.common, self.admin, self.path, self.branch)

    def remove(self, *, force: bool = False) -> None:
        """Remove the worktree; the branch stays. Uncommitted changes are only dropped with `force`."""
        with self.claim():
            if not force and self.has_uncommitted_changes():
                raise WorkspaceError(
                    f"the workspace {self.name} has uncommitted changes",
                    fix="commit_all() them, or remove(force=True)",
                )
            worktree.erase(self.directory, self.common, self.name)

    def __repr__(self) -> str:
        return f"<Workspace {self.name} on {self.branch!r}>"

    def _read_tip(self) -> str:
        """Let our index be what the branch holds, keeping what it knows about unchanged files."""
        tip = self.tip()
        try:
            self._git.run("read-tree", "-m", tip)
        except GitFailed:
            self._git.run("read-tree", "--reset", tip)
        try:
            self._git.run("update-index", "-q", "--refresh")
        except GitFailed:
            pass  # says that files differ; that is what we ask about next
        return tip

    def _tracked_changes(self) -> Iterator[str]:
        links = {
            entry.partition(b"\t")[2]
            for entry in self._git.run("ls-files", "-s", "-z").split(b"\0")
            if entry.startswith(b"160000 ")
        }
        for path in set(self._git.run("ls-files", "-m", "-d", "-z").split(b"\0")):
            if path and path not in links:
                yield os.fsdecode(path)

    def _untracked(self) -> Iterator[str]:
        listed = self._git.run("ls-files", "-o", "--exclude-standard", "-z")
        # A name that ends with a slash is another repository. It is not ours to open.
        yield from (os.fsdecode(path) for path in listed.split(b"\0") if path and not path.endswith(b"/"))

    def _refuse_unfinished(self) -> None:
        if safe_git.head(self.admin) != f"ref: refs/heads/{self.branch}":
            raise WorkspaceError(
                f"the workspace {self.name} is not on its branch {self.branch!r}",
                why="its HEAD was moved",
                fix=f"look at it, and write 'ref: refs/heads/{self.branch}' to {self.admin}/HEAD",
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


def directories(root: str | None = None) -> Iterator[str]:
    """Every directory in which a workspace is, or should be."""
    where = data_directory(root)
    try:
        names = sorted(os.listdir(where))
    except FileNotFoundError:
        return
    yield from (f"{where}/{name}" for name in names if os.path.isdir(f"{where}/{name}"))
