"""Questions about a tree do not get into each other's way, and a killed one locks nobody out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.errors import GitFailed
from staddle.jail.review import GitIndex
from staddle.jail.workspace import Workspace
from tests.support.git_plants import World
from tests.support.threads import at_once


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(str(World(tmp_path).repository), root=str(tmp_path / "data"))


def leftovers(workspace: Workspace) -> list[str]:
    return [name for name in os.listdir(f"{workspace.directory}/git") if name.startswith("index.")]


def test_a_lock_that_a_killed_git_left_locks_nobody_out(workspace: Workspace) -> None:
    Path(workspace.directory, "git/index.lock").touch()
    Path(workspace.path, "new").touch()
    assert workspace.changed_paths() == ("new",)
    assert workspace.commit_all("new")


def test_many_ask_at_once(workspace: Workspace) -> None:
    Path(workspace.path, "new").touch()

    def ask() -> tuple[object, bool]:
        return workspace.changed_paths(), b"new" in workspace.diff(uncommitted=True)

    assert at_once(*[ask] * 8) == [(("new",), True)] * 8
    assert leftovers(workspace) == []


def test_a_change_in_the_same_tick_is_seen(workspace: Workspace) -> None:
    """A copy of the index must not look newer than the original, or git would trust old sizes and times."""
    file = Path(workspace.path, "file.txt")
    for number in range(10):
        text = f"text {number}\n"
        file.write_text(text)
        assert workspace.commit_all("change")
        file.write_text(text.replace("t", "T", 1))
        assert workspace.changed_paths() == ("file.txt",)


def test_an_error_leaves_the_kept_one_as_it_was(workspace: Workspace) -> None:
    kept = Path(workspace.directory, "git/index")
    before = kept.read_bytes()
    with pytest.raises(GitFailed), GitIndex(workspace._git) as index:
        index.read("0" * 40)
    assert kept.read_bytes() == before
    assert leftovers(workspace) == []


def test_old_copies_are_swept_up(workspace: Workspace) -> None:
    old = Path(workspace.directory, "git/index.0123456789abcdef")
    new = Path(workspace.directory, "git/index.fedcba9876543210")
    for path in (old, new):
        path.touch()
    os.utime(old, (1, 1))
    workspace.changed_paths()
    assert not old.exists()
    assert new.exists()
