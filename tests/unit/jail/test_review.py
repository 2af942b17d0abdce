"""What was shown of a workspace is what is committed, whatever a process does to the tree meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from staddle.errors import CommitRefused, WorkspaceError
from staddle.jail.review import GitIndex
from staddle.jail.workspace import Workspace
from tests.support.git_plants import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("STADDLE_WORKSPACES", str(tmp_path / "data"))
    return World(tmp_path)


@pytest.fixture
def workspace(world: World) -> Workspace:
    made = Workspace.create(str(world.repository))
    world.tree, world.admin = Path(made.path), Path(made.admin)
    return made


def rewrite(path: Path, text: str) -> None:
    """As another process does it."""
    subprocess.run([sys.executable, "-c", f"open({str(path)!r}, 'w').write({text!r})"], check=True)


def content(world: World, workspace: Workspace, path: str) -> str:
    return world.git("show", f"{workspace.branch}:{path}", where=world.repository).decode()


@pytest.mark.both_users
def test_what_was_reviewed_is_committed_and_later_changes_stay(world: World, workspace: Workspace) -> None:
    (world.tree / "file.txt").write_text("shown\n")
    (world.tree / "new").write_text("shown too\n")
    review = workspace.review()
    assert [(item.kind, item.path) for item in review.changed] == [("modified", "file.txt"), ("added", "new")]
    assert b"+shown too" in workspace.diff(uncommitted=review)
    rewrite(world.tree / "file.txt", "evil!\n")  # of the same size
    rewrite(world.tree / ".envrc", "evil\n")
    (world.tree / "new").unlink()
    assert workspace.commit_all("as shown", review=review) == workspace.tip()
    assert content(world, workspace, "file.txt") == "shown\n"
    assert content(world, workspace, "new") == "shown too\n"
    assert workspace.changed_paths() == (".envrc", "file.txt", "new")
    status = world.git("status", "--porcelain", where=world.tree)
    assert status == b" M file.txt\n D new\n?? .envrc\n"


def test_a_review_can_be_named_by_its_digest(world: World, workspace: Workspace) -> None:
    world.edit()
    review = workspace.review()
    rewrite(world.tree / "file.txt", "other\n")
    assert workspace.review().digest != review.digest
    assert workspace.review(review.digest) == review
    assert workspace.commit_all("as shown", review=workspace.review(review.digest))
    assert content(world, workspace, "file.txt") == "edited\n"
    assert world.git("diff", *review.digest.split(".."), where=world.repository)


def test_a_branch_that_moved_is_refused_with_what_changed(world: World, workspace: Workspace) -> None:
    (world.tree / "new").write_text("shown\n")
    review = workspace.review()
    world.edit()
    world.git("commit", "-qm", "by the agent", "file.txt", where=world.tree)
    tip = workspace.tip()
    with pytest.raises(CommitRefused, match=r"has moved since the review.*'file.txt'") as raised:
        workspace.commit_all("as shown", review=review)
    assert [item.path for item in raised.value.conflicts] == ["file.txt"]
    assert workspace.tip() == tip


def test_a_branch_that_moves_at_the_last_moment_is_refused(
    world: World, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.tree / "new").write_text("shown\n")
    real = workspace._git.run

    def run(command: str, *arguments: str, **how: object) -> bytes:
        if command == "update-ref":
            world.edit()
            world.git("commit", "-qm", "by the agent", "file.txt", where=world.tree)
        return real(command, *arguments, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(workspace._git, "run", run)
    with pytest.raises(CommitRefused, match="has moved since the review"):
        workspace.commit_all("as shown")
    assert [subject for _, subject in workspace.log()] == ["by the agent"]


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (lambda tree: (tree / "link").symlink_to("/etc/passwd"), lambda tree: (tree / "link").unlink()),
        (
            lambda tree: [(tree / name).write_text(name) for name in ("HEAD", "commondir", "hooks")],
            lambda tree: (tree / "HEAD").unlink(),
        ),
    ],
    ids=["link", "repository"],
)
def test_names_are_checked_in_what_is_committed_not_in_the_tree_of_a_moment_later(
    world: World, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, now: object, then: object
) -> None:
    now(world.tree)  # type: ignore[operator]
    real = GitIndex.tree

    def tree(index: GitIndex) -> str:
        written = real(index)
        then(world.tree)  # type: ignore[operator]
        return written

    monkeypatch.setattr(GitIndex, "tree", tree)
    with pytest.raises(CommitRefused, match="second look"):
        workspace.commit_all("x")
    assert workspace.tip() == workspace.base


def test_links_are_followed_in_the_tree_that_is_committed(world: World, workspace: Workspace) -> None:
    (world.tree / "deep/er").mkdir(parents=True)
    for name, target in (("deep/er/in", "../../file.txt"), ("deep/out", "up/../../x"), ("deep/up", "er/..")):
        (world.tree / name).symlink_to(target)
    (world.tree / os.fsdecode(b"odd\n\xff")).symlink_to(os.fsdecode(b"/odd\n\xff"))
    held = {item.path: item.why for item in workspace.review().held}
    assert set(held) == {"deep/out", os.fsdecode(b"odd\n\xff")}
    assert held[os.fsdecode(b"odd\n\xff")].endswith(repr(os.fsdecode(b"/odd\n\xff")))


@pytest.mark.parametrize(
    "digest", ["", "x", "HEAD..HEAD", "0" * 40, f"{'0' * 40}..{'0' * 40}", "--all..--all"]
)
def test_what_is_no_review_is_refused(workspace: Workspace, digest: str) -> None:
    with pytest.raises(WorkspaceError, match=r"has no review.*jail diff"):
        workspace.review(digest)


def test_the_parts_of_a_digest_are_what_they_say(workspace: Workspace) -> None:
    review = workspace.review()
    with pytest.raises(WorkspaceError, match="a commit and a tree"):
        workspace.review(f"{review.tree}..{review.tree}")
    with pytest.raises(WorkspaceError, match="a commit and a tree"):
        workspace.review(f"{review.tip}..{review.tip}")


def test_nothing_is_published_that_was_not_reviewed(world: World, workspace: Workspace) -> None:
    world.edit()
    seen = workspace.commit_all("x")
    workspace.move_to("running")
    workspace.move_to("stopped")
    (world.tree / "more").touch()
    world.git("add", "more", where=world.tree)
    world.git("commit", "-qm", "by the agent", where=world.tree)
    with pytest.raises(WorkspaceError, match="moved since it was reviewed"):
        workspace.publish(commit=seen)
    assert workspace.publish(commit=workspace.tip()) == workspace.tip()
