"""Make and remove a git worktree by hand, as described in gitrepository-layout(5).

`git worktree add` would run hooks and filters that an earlier agent may have left. The user's git accepts the
result as one of its worktrees.
"""

from __future__ import annotations

import os
import time

from ..errors import GitFailed, GitRefused, WorkspaceError
from . import record as records
from .review import GitIndex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .git import Git


def fill(git: Git, directory: str, made: tuple[str, str, str], base: str) -> None:
    """Make everything of a new workspace.

    The record comes last, so that a workspace with a record is complete.
    """
    name, repository, branch = made
    try:
        git.run("check-ref-format", f"refs/heads/{branch}")
        possible = not branch.startswith("-")  # git commands would take it for an option
    except GitFailed:
        possible = False
    if not possible:
        raise WorkspaceError(
            f"{branch!r} cannot be the name of a branch",
            why="git refuses it",
            fix="use letters, digits and dashes",
        )
    try:
        found = git.run("rev-parse", "--verify", "--end-of-options", f"{base}^{{commit}}")
    except GitFailed as error:
        raise WorkspaceError(
            f"the base {base!r} is not a commit of {repository!r}",
            why=error.why,
            fix="name a branch, a tag or a commit",
        ) from None
    commit = found.decode().split()[-1]
    try:
        git.run("update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
    except GitFailed as error:
        raise WorkspaceError(
            f"the branch {branch!r} cannot be made", why=error.why, fix="choose another name"
        ) from None
    try:
        git.point_head(f"ref: refs/heads/{branch}")
        git.tree = tree = f"{directory}/tree"
        admin = admin_directory(git.common, name)
        _make_admin(admin)
        os.makedirs(f"{git.common}/logs", exist_ok=True)  # git makes it at the first commit
        os.mkdir(tree)
        for path, said in (
            (f"{admin}/gitdir", f"{tree}/.git"),
            (f"{admin}/commondir", "../.."),
            (f"{admin}/HEAD", f"ref: refs/heads/{branch}"),
            (f"{tree}/.git", f"gitdir: {admin}"),
        ):
            with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
                file.write(said + "\n")
        with GitIndex(git) as index:
            index.read(commit)
            index.check_out()
        install_index(f"{git.directory}/index", admin)
        now = time.time()
        record = records.WorkspaceRecord(name, repository, git.common, branch, commit, "prepared", now, now)
        records.write(directory, record)
    except BaseException:
        git.run("update-ref", "-d", f"refs/heads/{branch}", commit)
        raise


def admin_directory(common: str, name: str) -> str:
    """The directory in which the repository keeps this worktree's own files."""
    return f"{common}/worktrees/staddle-{name}"


def _make_admin(admin: str) -> None:
    """Make the directory; retry if git removes its parent meanwhile with the last other worktree."""
    for attempt in range(20):
        try:
            return os.makedirs(admin)
        except FileNotFoundError:
            if attempt == 19:
                raise
    return None


def install_index(source: str, admin: str) -> None:
    """Give the worktree our index, by descriptor and under a new name: the agent owns the directory."""
    import secrets

    from ..linux.openat2 import open_without_symlinks

    try:
        directory = open_without_symlinks(admin, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise GitRefused(
            f"{admin!r} cannot be written",
            why=error.strerror or str(error),
            fix="become the owner of the repository, or copy it",
        ) from None
    try:
        name = f"index.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            open(source, "rb") as ours,
            open(os.open(name, flags, 0o644, dir_fd=directory), "wb") as theirs,
        ):
            theirs.write(ours.read())
        os.rename(name, "index", src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)


def unlock(common: str, name: str, branch: str) -> None:
    """Remove the locks of a killed git: in the worktree's own git directory, and on its branch.

    The caller must have the claim, and nothing may run in it. The agent could write both directories, so this
    uses descriptors and follows no link. Locks of other branches stay: they may be in use.
    """
    from ..linux.openat2 import open_without_symlinks

    upper, _, last = f"{common}/refs/heads/{branch}".rpartition("/")
    for place, names in ((admin_directory(common, name), None), (upper, (f"{last}.lock",))):
        try:
            directory = open_without_symlinks(place, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # missing or replaced: `inspect` and the next git call report it
        try:
            for entry in names or [entry for entry in os.listdir(directory) if entry.endswith(".lock")]:
                try:
                    os.unlink(entry, dir_fd=directory)
                except OSError:
                    continue  # no such lock
        finally:
            os.close(directory)


def erase(directory: str, common: str, name: str) -> None:
    """Remove the worktree from the disk and the repository. Needs the claim; follows no link."""
    import shutil

    admin = admin_directory(common, name)
    if os.path.islink(admin):
        os.unlink(admin)
    _open_up(admin)
    shutil.rmtree(admin, ignore_errors=True)
    try:
        os.rmdir(f"{common}/worktrees")  # git does so with the last one
    except OSError:
        pass
    _open_up(directory)
    shutil.rmtree(directory)


def _open_up(directory: str) -> None:
    """Undo a `chmod 000` by the agent, which would keep us from removing the content."""
    for place, names, _ in os.walk(directory):
        for name in names:
            if not os.path.islink(f"{place}/{name}"):
                os.chmod(f"{place}/{name}", 0o700)  # before the walk enters it
