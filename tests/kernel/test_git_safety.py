"""Whatever an agent leaves in a repository, our own git calls run none of it.

Every plant fires under plain git: the control shows that it would have. The same plant is put
before a workspace is made of the repository, and into a workspace that exists.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.errors import GitFailed, GitRefused, StaddleError
from staddle.jail.git import COMMANDS
from staddle.jail.workspace import Workspace
from tests.support.git_plants import PLANTS, PROMISED, Plant, World

pytestmark = pytest.mark.same_for_everyone

EVERY_PLANT = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def make(world: World) -> Workspace:
    workspace = Workspace.create(str(world.repository), root=str(world.top / "data"))
    world.tree, world.admin = Path(workspace.path), Path(workspace.admin)
    return workspace


def everything(workspace: Workspace) -> None:
    """Every call that a host makes on a workspace. A refusal is fine; running something is not."""
    for call in (
        workspace.tip,
        workspace.has_uncommitted_changes,
        workspace.inspect,
        lambda: workspace.commit_all("what is left"),
        workspace.diff,
        lambda: workspace.diff(uncommitted=True),
        lambda: workspace.diff(uncommitted=True, stat=True),
        workspace.log,
        workspace.worth_a_look,
        workspace.publishable,
        workspace.changed_paths,
        lambda: workspace.remove(force=True),
    ):
        try:
            call()
        except (GitRefused, GitFailed, StaddleError):
            continue


def every_command(workspace: Workspace) -> None:
    """Every git command we may run at all, in the form most likely to fall for something."""
    tip = workspace.tip()
    arguments: dict[str, tuple[str, ...]] = {
        "cat-file": ("-p", PROMISED),
        "check-ref-format": ("refs/heads/x",),
        "checkout-index": ("--all", "--force", "--index"),
        "commit-tree": (f"{tip}^{{tree}}",),
        "diff": (),
        "diff-files": ("-p",),
        "diff-tree": ("-p", f"{tip}~1", tip),
        "fsck": ("--full",),
        "log": ("-p", "-2"),
        "ls-files": ("-m", "-o", "-d", "-s"),
        "ls-tree": ("-r", tip),
        "merge-base": (tip, tip),
        "read-tree": ("-m", "-u", f"{tip}~1"),
        "rev-list": ("--objects", tip),
        "rev-parse": ("HEAD",),
        "show": (tip,),
        "status": ("--untracked-files=all",),
        "update-index": ("--refresh", "--really-refresh"),
        "update-ref": ("refs/heads/made", tip),
        "write-tree": (),
    }
    assert arguments.keys() == COMMANDS.keys()
    for command, words in arguments.items():
        try:
            workspace._git.run(command, *words)
        except (GitRefused, GitFailed):
            continue


@EVERY_PLANT
def test_control_plain_git_falls_for_it(plant: Plant, world: World) -> None:
    if plant.name in ("commondir", "config.worktree"):
        make(world)  # what lies in a worktree's own git directory
    plant.put(world)
    assert not world.fired.exists()
    for command in plant.commands:
        world.fall_for_it(*command, data=plant.data)
    assert world.fired.exists()


@EVERY_PLANT
def test_planted_in_a_workspace_nothing_runs(plant: Plant, world: World) -> None:
    workspace = make(world)
    plant.put(world)
    world.fired.unlink(missing_ok=True)
    everything(workspace)
    assert not world.fired.exists()


@EVERY_PLANT
def test_planted_before_a_workspace_is_made_nothing_runs(plant: Plant, world: World) -> None:
    if plant.name not in ("commondir", "the worktree's pointer"):
        plant.put(world)
        world.fired.unlink(missing_ok=True)
    every_command(make(world))
    assert not world.fired.exists()


@EVERY_PLANT
def test_none_of_the_commands_falls_for_it(plant: Plant, world: World) -> None:
    workspace = make(world)
    plant.put(world)
    world.fired.unlink(missing_ok=True)
    every_command(workspace)
    assert not world.fired.exists()


@pytest.mark.parametrize(
    "plant",
    [plant for plant in PLANTS if plant.name not in ("a promised object", "a nested repository")],
    ids=lambda plant: plant.name,
)
def test_what_was_planted_is_reported(plant: Plant, world: World) -> None:
    workspace = make(world)
    assert workspace.inspect() == ()
    plant.put(world)
    assert workspace.inspect() != ()


def test_it_is_the_git_directory_of_our_own_that_holds(world: World) -> None:
    """The same call on the repository's own git directory falls for a filter, pinned settings or not."""
    workspace = make(world)
    next(plant for plant in PLANTS if plant.name == "filter.clean").put(world)
    workspace._git.run("diff")
    assert not world.fired.exists()
    own = workspace._git.directory
    (world.common / "alternates-then").touch()
    workspace._git.directory = str(world.common)
    workspace._git.run("diff")
    assert world.fired.exists()
    assert own != workspace._git.directory


def test_a_link_to_another_repository_is_shown_and_not_entered(world: World) -> None:
    workspace = make(world)
    next(plant for plant in PLANTS if plant.name == "a submodule").put(world)
    world.fired.unlink(missing_ok=True)
    assert b"+Subproject commit" in workspace.diff()
    assert b"+Subproject commit" in workspace.diff(uncommitted=True)
    assert [item.path for item in workspace.worth_a_look()] == ["nested"]
    assert not world.fired.exists()
    world.fall_for_it("diff", "--submodule=diff", workspace.base)  # control
    assert world.fired.exists()


def test_an_alias_or_a_program_on_the_path_is_no_command(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make(world)
    world.executable(world.top / "git")
    world.executable(world.top / "git-planted")
    monkeypatch.setenv("PATH", f"{world.top}:{os.environ['PATH']}")
    monkeypatch.setenv("GIT_EXEC_PATH", str(world.top))
    for command in ("planted", "st", "add", "commit", "fetch", "worktree", "-c", "--exec-path=/tmp"):
        with pytest.raises(GitRefused):
            workspace._git.run(command)
    workspace.has_uncommitted_changes()
    assert not world.fired.exists()


def test_the_environment_of_the_caller_does_not_reach_git(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make(world)
    world.edit()
    for name in ("GIT_EXTERNAL_DIFF", "GIT_SSH_COMMAND", "GIT_PAGER", "GIT_EDITOR", "PAGER", "GIT_ASKPASS"):
        monkeypatch.setenv(name, str(world.script))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(world.script))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    everything(workspace)
    assert not world.fired.exists()


def test_objects_from_elsewhere_are_refused(world: World) -> None:
    world.init(world.top / "elsewhere")
    (world.top / "elsewhere/secret").write_text("only here\n")
    blob = world.git("hash-object", "-w", "secret", where=world.top / "elsewhere").decode().strip()
    workspace = make(world)
    alternates = world.common / "objects/info/alternates"
    alternates.write_text(f"{world.top}/elsewhere/.git/objects\n")
    assert world.git("cat-file", "-p", blob, where=world.tree) == b"only here\n"  # control
    with pytest.raises(GitRefused, match="alternates"):
        workspace._git.run("cat-file", "-p", blob)


def test_replaced_objects_are_shown_as_they_are(world: World) -> None:
    workspace = make(world)
    real = world.git("rev-parse", "HEAD:file.txt", where=world.tree).decode().strip()
    (world.top / "fake").write_text("innocent\n")
    fake = world.git("hash-object", "-w", str(world.top / "fake"), where=world.tree).decode().strip()
    world.git("replace", real, fake, where=world.tree)
    assert world.git("cat-file", "-p", real, where=world.tree) == b"innocent\n"  # control
    assert workspace._git.run("cat-file", "-p", real) == b"one and more\n"
    assert any("refs/replace" in planted.path for planted in workspace.inspect())
    world.git("pack-refs", "--all", where=world.tree)
    assert workspace._git.run("cat-file", "-p", real) == b"one and more\n"
    assert any("packed-refs" in planted.path for planted in workspace.inspect())


def test_a_linked_log_is_not_written_to(world: World) -> None:
    victim = world.top / "victim"
    victim.write_text("mine\n")
    workspace = make(world)
    (world.admin / "logs").mkdir(exist_ok=True)
    (world.admin / "logs/HEAD").unlink(missing_ok=True)
    (world.admin / "logs/HEAD").symlink_to(victim)
    world.edit()
    assert workspace.commit_all("ours")
    assert victim.read_text() == "mine\n"
    world.git("commit", "-q", "--allow-empty", "-m", "$(planted)", where=world.tree)
    assert victim.read_text() != "mine\n"  # control


def test_a_linked_index_is_not_written_through(world: World) -> None:
    victim = world.top / "victim"
    victim.write_text("mine\n")
    workspace = make(world)
    (world.admin / "index").unlink()
    (world.admin / "index").symlink_to(victim)
    world.edit()
    assert workspace.commit_all("ours")
    assert victim.read_text() == "mine\n"
    assert world.git("status", "--porcelain", where=world.tree) == b""


@pytest.mark.parametrize("name", ["objects", "refs", "refs/heads", "refs/heads/staddle", "logs", "worktrees"])
def test_a_repository_that_leads_elsewhere_is_refused(world: World, name: str) -> None:
    workspace = make(world)
    world.edit()
    real = world.common / name
    real.rename(world.top / "moved")
    real.symlink_to(world.top / "moved")
    with pytest.raises(GitRefused, match=name):
        workspace.commit_all("ours")


def test_a_linked_git_directory_of_the_worktree_is_refused(world: World) -> None:
    workspace = make(world)
    world.edit()
    world.admin.rename(world.top / "moved")
    world.admin.symlink_to(world.top / "moved")
    before = (world.top / "moved/index").read_bytes()
    with pytest.raises(GitRefused):
        workspace.commit_all("ours")
    assert (world.top / "moved/index").read_bytes() == before


def test_what_the_agents_index_says_does_not_hide_a_change(world: World) -> None:
    workspace = make(world)
    world.git("update-index", "--assume-unchanged", "file.txt", where=world.tree)
    world.edit()
    assert world.git("status", "--porcelain", where=world.tree) == b""  # control
    assert workspace.changed_paths() == ("file.txt",)


def test_a_fifo_and_a_device_in_the_place_of_a_file_do_not_block(world: World) -> None:
    workspace = make(world)
    (world.admin / "HEAD").unlink()
    os.mkfifo(world.admin / "HEAD")
    assert workspace.inspect() != ()
    assert not workspace.publishable()
    with pytest.raises(StaddleError):
        workspace.commit_all("ours")
