"""Workspaces: worktrees on branches of their own, committed, listed, removed and reaped."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from staddle.errors import CommitRefused, GitRefused, InvalidCall, StaddleError, WorkspaceBusy, WorkspaceError
from staddle.jail import record as records
from staddle.jail.workspace import HOUR, Workspace, data_directory, reap
from tests.support.git_plants import World
from tests.support.threads import at_once


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("STADDLE_WORKSPACES", str(tmp_path / "data"))
    return World(tmp_path)


@pytest.fixture
def workspace(world: World) -> Workspace:
    made = Workspace.create(str(world.repository))
    world.tree, world.admin = Path(made.path), Path(made.admin)
    return made


def test_it_is_a_worktree_that_the_users_git_knows(world: World, workspace: Workspace) -> None:
    assert workspace.status == "prepared"
    assert workspace.path.encode() in world.git("worktree", "list", where=world.repository)
    assert world.git("status", "--porcelain", where=world.tree) == b""
    assert world.git("branch", "--show-current", where=world.tree).decode().strip() == workspace.branch
    assert (world.tree / "file.txt").read_text() == "one and more\n"
    assert workspace.base == workspace.tip()
    assert world.git("fsck", "--strict", where=world.repository) == b""


def test_a_branch_and_a_base_can_be_chosen(world: World) -> None:
    made = Workspace.create(str(world.repository), "feature/x", "main~1")
    assert made.branch == "feature/x"
    assert Path(made.path, "file.txt").read_text() == "one\n"


@pytest.mark.parametrize("branch", ["main", "a..b", "-x", "a b", "x.lock", "main/below", "\n"])
def test_a_branch_that_cannot_be_made_is_an_error_and_leaves_nothing(world: World, branch: str) -> None:
    before = world.git("for-each-ref", where=world.repository)
    with pytest.raises(StaddleError):
        Workspace.create(str(world.repository), branch)
    assert os.listdir(world.top / "data") == []
    assert not (world.common / "worktrees").exists()
    assert world.git("for-each-ref", where=world.repository) == before


@pytest.mark.parametrize("base", ["no-such", "--all", "", "HEAD:file.txt"])
def test_a_base_that_is_no_commit_is_an_error(world: World, base: str) -> None:
    with pytest.raises(WorkspaceError, match="base"):
        Workspace.create(str(world.repository), base=base)
    assert os.listdir(world.top / "data") == []


def test_what_is_no_repository_is_an_error(world: World, tmp_path: Path) -> None:
    with pytest.raises(GitRefused, match="not a git repository"):
        Workspace.create(str(tmp_path))


def test_it_can_be_made_from_a_worktree_a_bare_repository_and_odd_names(world: World) -> None:
    odd = world.top / os.fsdecode(b"odd \xff'\"$x")
    world.git("clone", "-q", "--bare", str(world.repository), str(odd))
    bare = Workspace.create(str(odd))
    again = Workspace.create(bare.path)
    assert again.common == bare.common == str(odd)
    assert Path(again.path, "file.txt").read_text() == "one and more\n"
    Path(again.path, "new").touch()
    assert again.commit_all("from a worktree of a bare one")
    assert world.git("status", "--porcelain", where=Path(again.path)) == b""


def test_sha256_repositories_work(world: World) -> None:
    other = world.top / "sha256"
    world.git("init", "-q", "-b", "main", "--object-format=sha256", str(other))
    (other / "a").write_text("a")
    world.git("add", "a", where=other)
    world.git("commit", "-qm", "one", where=other)
    made = Workspace.create(str(other))
    Path(made.path, "b").touch()
    assert len(made.commit_all("two") or "") == 64


def test_an_unknown_extension_is_refused(world: World) -> None:
    world.config("core.repositoryformatversion=1", "extensions.refStorage=reftable")
    with pytest.raises(GitRefused, match="refstorage"):
        Workspace.create(str(world.repository))


def test_all_of_the_tree_is_committed(world: World, workspace: Workspace) -> None:
    tree = world.tree
    (tree / ".gitignore").write_text("*.log\n")
    (tree / "x.log").touch()
    (tree / "other.txt").unlink()
    (tree / "other.txt").mkdir()
    (tree / "other.txt/now a directory").touch()
    (tree / os.fsdecode(b"\xff\n")).write_text("odd")
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("/etc/passwd")
    assert workspace.has_uncommitted_changes()
    commit = workspace.commit_all("all\n\nwith a body: $(x) `y`", allow=["run", "link"])
    assert commit == workspace.tip()
    assert not workspace.has_uncommitted_changes()
    assert world.git("status", "--porcelain", where=tree) == b""
    listed = world.git("ls-tree", "-r", "-z", "HEAD", where=tree)
    assert b"120000 blob" in listed
    assert b"100755 blob" in listed
    assert b"x.log" not in listed
    assert b"\xff\n" in listed
    assert b"$(x) `y`" in world.git("log", "-1", "--format=%B", where=tree)
    assert workspace.commit_all("nothing left") is None


def test_a_commit_holds_back_what_other_programs_would_obey(world: World, workspace: Workspace) -> None:
    tree, tip = world.tree, workspace.tip()
    (tree / ".envrc").write_text("evil\n")
    (tree / ".vscode").mkdir()
    (tree / ".vscode/tasks.json").write_text("{}\n")
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "in").symlink_to("run")
    (tree / "plain.txt").write_text("plain\n")
    with pytest.raises(
        CommitRefused, match=r"4 paths would need a second look.*allow_protected=True"
    ) as raised:
        workspace.commit_all("all")
    assert {item.path: item.why for item in raised.value.held} == {
        ".envrc": ".envrc is a protected name",
        ".vscode/tasks.json": ".vscode is a protected name",
        "out": "it is a link that points out of the tree, to '/etc/passwd'",
        "run": "it is a new executable",
    }
    assert workspace.tip() == tip
    with pytest.raises(CommitRefused, match=r"one path.*\.envrc"):
        workspace.commit_all("all", allow=["run", "out", ".vscode/*"])
    assert workspace.commit_all("all", allow_protected=True)
    (tree / "run").write_text("#!/bin/sh\ntrue\n")
    assert workspace.commit_all("an executable that the branch has")
    (tree / ".envrc").unlink()
    with pytest.raises(CommitRefused, match=r"\.envrc is a protected name"):
        workspace.commit_all("gone")


def test_a_task_that_is_no_task_is_refused(world: World) -> None:
    with pytest.raises(InvalidCall, match=r"it is not a Task; use task=Task"):
        Workspace.create(str(world.repository), task={"prompt": "x"})  # type: ignore[arg-type]
    assert not [item for item in Workspace.list() if item.repository == str(world.repository)]


def test_a_nested_repository_is_left_out_and_reported(world: World, workspace: Workspace) -> None:
    world.init(world.tree / "nested")
    assert workspace.changed_paths() == ()
    assert workspace.commit_all("x") is None
    assert any("nested" in planted.path for planted in workspace.inspect())


def test_the_agents_own_commits_count(world: World, workspace: Workspace) -> None:
    world.edit()
    world.git("commit", "-qam", "by the agent", where=world.tree)
    assert not workspace.has_uncommitted_changes()
    assert workspace.tip() != workspace.base
    assert b"+edited" in workspace.diff()


def test_a_moved_head_is_not_committed_onto(world: World, workspace: Workspace) -> None:
    world.git("checkout", "-q", "--detach", where=world.tree)
    world.edit()
    with pytest.raises(WorkspaceError, match="HEAD"):
        workspace.commit_all("x")
    assert workspace.inspect()


def test_an_unfinished_merge_is_not_committed(world: World, workspace: Workspace) -> None:
    (world.admin / "MERGE_HEAD").write_text("0" * 40)
    with pytest.raises(WorkspaceError, match="MERGE_HEAD"):
        workspace.commit_all("x")


def test_publishable_is_stopped_with_something_new_and_nothing_left(
    world: World, workspace: Workspace
) -> None:
    assert not workspace.publishable()
    workspace.move_to("running")
    workspace.move_to("stopped")
    assert not workspace.publishable()
    world.edit()
    assert not workspace.publishable()
    workspace.commit_all("x")
    assert workspace.publishable()
    workspace.publish()
    assert workspace.status == "published"
    with pytest.raises(WorkspaceError):
        workspace.publish()


def test_a_rewritten_history_is_not_publishable(world: World, workspace: Workspace) -> None:
    workspace.move_to("running")
    workspace.move_to("stopped")
    world.git("reset", "-q", "--hard", "HEAD~1", where=world.tree)
    assert not workspace.publishable()


def test_running_without_anybody_who_runs_it_is_failed(workspace: Workspace) -> None:
    with workspace.claim():
        workspace.move_to("running")
        assert workspace.status == "running"
    assert workspace.status == "failed"
    with workspace.claim():
        workspace.move_to("running")
        assert workspace.status == "running"


def test_load_and_list_find_it_and_skip_what_is_broken(world: World, workspace: Workspace) -> None:
    second = Workspace.create(str(world.repository))
    (world.top / "data/broken").mkdir()
    (world.top / "data/a file").touch()
    assert [item.name for item in Workspace.list()] == [workspace.name, second.name]
    assert Workspace.load(workspace.path).name == workspace.name
    assert Workspace.load(workspace.directory).name == workspace.name
    with pytest.raises(WorkspaceError, match="no workspace"):
        Workspace.load(str(world.repository))


def test_what_an_agent_made_to_look_like_a_workspace_is_not_loaded(
    world: World, workspace: Workspace
) -> None:
    fake = world.tree / "fake"
    (fake / "git").mkdir(parents=True)
    record = Path(workspace.directory, "workspace.json").read_text()
    (fake / "workspace.json").write_text(record)
    for path in (fake, fake / "tree", world.tree / "tree", world.tree / "file.txt"):
        with pytest.raises(WorkspaceError, match="no workspace"):
            Workspace.load(str(path))


@pytest.mark.slow
def test_one_can_be_made_while_the_last_other_goes(world: World) -> None:
    def churn() -> None:
        for _ in range(8):
            Workspace.create(str(world.repository)).remove()

    at_once(*[churn] * 4)
    assert os.listdir(world.top / "data") == []


def test_the_list_of_a_place_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert Workspace.list(root=str(tmp_path / "none")) == ()


def test_remove_keeps_the_branch_and_asks_before_it_drops_work(world: World, workspace: Workspace) -> None:
    world.edit()
    with pytest.raises(WorkspaceError, match="uncommitted"):
        workspace.remove()
    with workspace.claim(), pytest.raises(WorkspaceBusy):
        workspace.remove(force=True)
    workspace.remove(force=True)
    assert os.listdir(world.top / "data") == []
    assert not (world.common / "worktrees").exists()
    assert workspace.branch.encode() in world.git("branch", "--list", "staddle/*", where=world.repository)
    assert world.git("fsck", where=world.repository) == b""


def test_remove_follows_no_link(world: World, workspace: Workspace) -> None:
    (world.top / "precious").mkdir()
    (world.top / "precious/file").touch()
    (world.tree / "link").symlink_to(world.top / "precious")
    world.admin.rename(world.top / "aside")
    world.admin.symlink_to(world.top / "precious")
    workspace.remove(force=True)
    assert (world.top / "precious/file").exists()


def test_what_the_agent_closed_up_can_be_removed(world: World, workspace: Workspace) -> None:
    (world.tree / "closed/deeper").mkdir(parents=True)
    (world.tree / "closed/deeper/file").touch()
    for path in ("closed/deeper", "closed", ""):
        (world.tree / path).chmod(0)
    (world.admin / "logs").mkdir(exist_ok=True)
    (world.admin / "logs").chmod(0)
    world.admin.chmod(0o700)
    workspace.remove(force=True)
    assert os.listdir(world.top / "data") == []
    assert not world.admin.exists()


def test_the_reaper_takes_what_is_old_and_nobodys(world: World) -> None:
    made = [Workspace.create(str(world.repository)) for _ in range(5)]
    kept, failed, published, busy, lost = made
    for item, state in ((failed, "failed"), (published, "published"), (busy, "failed"), (lost, "running")):
        records.write(item.directory, item.record.replace(state=state))
    Path(world.top / "data/crashed").mkdir()
    later = kept.record.created
    with busy.claim():
        assert reap(now=later + 23 * HOUR) == ()
        assert reap(now=later + 25 * HOUR) == (published.directory,)
        assert set(reap(now=later + 73 * HOUR)) == {
            *(failed.directory, lost.directory, f"{world.top}/data/crashed"),
        }
    assert {item.name for item in Workspace.list()} == {kept.name, busy.name}
    assert len(os.listdir(world.common / "worktrees")) == 2


def test_a_crash_while_making_one_is_reaped_with_its_part_of_the_repository(
    world: World, workspace: Workspace
) -> None:
    os.unlink(f"{workspace.directory}/workspace.json")
    assert reap({"failed": 0.0}) == (workspace.directory,)
    assert not world.admin.exists()


def test_a_look_at_a_crash_leftover_does_not_make_it_younger(world: World) -> None:
    crashed = Path(world.top / "data/crashed")
    crashed.mkdir(parents=True)
    long_ago = time.time() - 71 * HOUR
    os.utime(crashed, (long_ago, long_ago))
    assert reap() == ()
    assert reap(now=time.time() + 2 * HOUR) == (str(crashed),)


def test_the_reaper_knows_no_other_states() -> None:
    with pytest.raises(WorkspaceError, match="done"):
        reap({"done": 1.0})


def test_the_reaper_can_only_say_what_it_would_do(world: World, workspace: Workspace) -> None:
    records.write(workspace.directory, workspace.record.replace(state="failed"))
    assert reap({"failed": 0.0}, dry_run=True) == (workspace.directory,)
    assert Workspace.list()


def test_it_is_found_as_a_person_means_it(
    world: World, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Workspace.create(str(world.repository), "feature/x")
    for said in (workspace.name, workspace.name[:11], workspace.branch, workspace.path, workspace.directory):
        assert Workspace.find(said).name == workspace.name
    assert Workspace.find("feature/x").name == other.name
    monkeypatch.chdir(workspace.path)
    assert Workspace.find(".").name == workspace.name
    (world.tree / "feature/x").mkdir(parents=True)
    assert Workspace.find("feature/x").name == other.name
    with pytest.raises(WorkspaceError, match="no workspace 'nothing'"):
        Workspace.find("nothing")
    with pytest.raises(WorkspaceError, match="no workspace ''"):
        Workspace.find("")
    with pytest.raises(WorkspaceError, match="no workspace at"):
        Workspace.find(str(world.repository))


def test_a_beginning_that_several_share_is_an_error(
    world: World, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import secrets

    monkeypatch.setattr(secrets, "token_hex", lambda _: f"{workspace.name[:11]}!")
    Workspace.create(str(world.repository))
    with pytest.raises(WorkspaceError, match="several"):
        Workspace.find(workspace.name[:5])
    assert Workspace.find(workspace.name).name == workspace.name


def test_the_difference_holds_what_is_not_committed_when_asked(world: World, workspace: Workspace) -> None:
    (world.tree / "committed").write_text("one\n")
    workspace.commit_all("one\n\nand more")
    (world.tree / "not yet").write_text("two\n")
    (world.tree / "other.txt").unlink()
    (world.tree / "file.txt").write_text("changed\n")
    assert b"+one" in workspace.diff()
    assert b"+two" not in workspace.diff()
    whole = workspace.diff(uncommitted=True)
    for part in (b"+one", b"+two", b"-two", b"+changed", b"deleted file"):
        assert part in whole
    assert b"4 files changed" in workspace.diff(uncommitted=True, stat=True)
    assert workspace.changed_paths() == ("file.txt", "not yet", "other.txt")  # asking changed nothing
    assert world.git("fsck", "--strict", where=world.repository) == b""
    ((_, subject),) = workspace.log()
    assert subject == "one"


def test_a_difference_can_be_asked_for_whatever_the_repository_is_called(world: World) -> None:
    odd = world.top / os.fsdecode(b'odd:"\\\xff $x')
    world.git("clone", "-q", "--bare", str(world.repository), str(odd))
    made = Workspace.create(str(odd))
    Path(made.path, "new").write_text("here\n")
    assert b"+here" in made.diff(uncommitted=True)
    assert not [name for name in os.listdir(f"{made.directory}/git") if "objects." in name]
    assert world.git("fsck", "--strict", where=odd) == b""


def test_what_is_easy_to_read_past_is_told(world: World, workspace: Workspace) -> None:
    tree = world.tree
    (tree / "sub").mkdir()
    for name, target in (
        *(("inside", "file.txt"), ("sub/up", "../file.txt"), ("abs", "/etc/passwd"), ("sub/out", "../../x")),
        *(("back", "sub/../../x"), ("long", "x/" * 1000)),
    ):
        (tree / name).symlink_to(target)
    (tree / "run").touch()
    (tree / "run").chmod(0o755)
    (tree / "file.txt").chmod(0o755)
    commit = workspace.tip()
    assert workspace.worth_a_look() == ()
    world.git("update-index", "--add", "--cacheinfo", f"160000,{commit},module", where=tree)
    world.git("add", "abs", "back", "file.txt", "inside", "long", "run", "sub", where=tree)
    world.git("commit", "-qm", "all", where=tree)
    found = {item.path: item.what for item in workspace.worth_a_look()}
    assert set(found) == {"abs", "back", "file.txt", "module", "run", "sub/out"}
    assert "/etc/passwd" in found["abs"]
    for difference in (workspace.diff(), workspace.diff(uncommitted=True)):
        assert b"+Subproject commit" in difference


def test_only_its_own_locks_are_removed_and_through_no_link(world: World, workspace: Workspace) -> None:
    heads = world.common / "refs/heads"
    mine = [world.admin / "index.lock", heads / f"{workspace.branch}.lock"]
    others = [heads / "main.lock", world.common / "packed-refs.lock", world.common / "index.lock"]
    for path in (*mine, *others):
        path.touch()
    workspace.unlock()
    assert not any(path.exists() for path in mine)
    assert all(path.exists() for path in others)
    victim = world.top / "victim"
    victim.mkdir()
    (victim / "index.lock").touch()
    world.admin.rename(world.top / "moved")
    world.admin.symlink_to(victim)
    workspace.unlock()
    assert (victim / "index.lock").exists()


def test_what_happened_is_in_its_journal(world: World, workspace: Workspace) -> None:
    (world.tree / "new").touch()
    commit = workspace.commit_all("new")
    records.write(workspace.directory, workspace.record.replace(state="stopped"))
    workspace.publish()
    created, committed, published = workspace.journal()
    assert created.facts["branch"] == workspace.branch
    assert committed.facts == {"commit": commit}
    assert published.facts["commit"] == commit


def test_the_place_is_the_users_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STADDLE_WORKSPACES", raising=False)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_DATA_HOME", "/x")
    assert data_directory() == "/x/staddle/workspaces"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert data_directory() == "/h/.local/share/staddle/workspaces"
    assert data_directory("/given") == "/given"


def test_what_is_beside_the_tree_is_for_its_owner_only(workspace: Workspace) -> None:
    assert os.stat(workspace.directory).st_mode & 0o077 == 0
    assert os.stat(f"{workspace.directory}/workspace.json").st_mode & 0o077 == 0


def test_git_that_says_no_is_an_error_with_its_words(workspace: Workspace) -> None:
    with pytest.raises(StaddleError, match="ended with 128"):
        workspace._git.run("cat-file", "-p", "nothing")
