"""The task of a workspace is kept, and a reference belongs to one workspace at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from staddle.errors import GitFailed, GitRefused, PolicyError, WorkspaceBusy, WorkspaceError
from staddle.jail import record as records
from staddle.jail.agents import AGENTS, Agent
from staddle.jail.git import without_login
from staddle.jail.task import Task
from staddle.jail.workspace import Workspace, commit_identity, reap
from tests.support.git_plants import World

SOURCE = str(Path(__file__).parents[3] / "src")
ISSUE = Task("owner/name", "owner/name#12", "Totals are wrong", "Fix the totals.\nThen test.\n", "s-1")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("STADDLE_WORKSPACES", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return World(tmp_path)


def create(world: World, task: Task | None = None) -> Workspace:
    return Workspace.create(str(world.repository), task=task)


def test_a_task_is_kept_whole_beside_the_tree_and_only_its_owner_reads_it(world: World) -> None:
    made = create(world, ISSUE)
    assert Workspace.find(made.name).task == ISSUE
    assert os.stat(f"{made.directory}/task.json").st_mode & 0o777 == 0o600
    assert "task.json" not in os.listdir(made.path)
    assert create(world).task == Task()


def test_what_is_asked_later_is_kept_and_the_reference_stays(world: World) -> None:
    made = create(world, ISSUE)
    made.update_task(prompt="Once more", session="s-2")
    assert made.task == ISSUE.replace(prompt="Once more", session="s-2")
    with pytest.raises(WorkspaceError, match="cannot be changed"):
        made.update_task(reference="another")


@pytest.mark.parametrize(
    "wrong", [{"title": "two\nlines"}, {"prompt": "a\0b"}, {"session": "--evil"}, {"reference": 12}]
)
def test_a_task_that_cannot_be_is_an_error(wrong: dict[str, str]) -> None:
    with pytest.raises(PolicyError):
        Task(**wrong)


def test_a_reference_belongs_to_one_workspace_until_it_is_published_or_removed(world: World) -> None:
    first = create(world, ISSUE)
    with pytest.raises(WorkspaceBusy, match="being worked on") as refused:
        create(world, ISSUE)
    assert first.name in str(refused.value)
    assert [item.name for item in Workspace.list()] == [first.name]
    assert Workspace.find("owner/name#12").name == first.name
    first.remove()
    second = create(world, ISSUE)
    (Path(second.path) / "new").touch()
    second.commit_all("done")
    with second.claim():
        second.move_to("running")
        second.move_to("stopped")
    second.publish()
    assert create(world, ISSUE).task == ISSUE


def test_the_same_number_in_another_repository_is_another_reference(world: World) -> None:
    other = world.top / "other"
    world.init(other)
    number = Task(reference="12")
    Workspace.create(str(world.repository), task=number)
    Workspace.create(str(other), task=number)
    with pytest.raises(WorkspaceBusy):
        Workspace.create(str(other), task=number)
    create(world, Task(reference="13"))


def test_what_died_while_it_was_made_reserves_nothing(world: World) -> None:
    crashed = create(world, ISSUE)
    os.unlink(f"{crashed.directory}/workspace.json")
    with records.Claim(crashed.directory), pytest.raises(WorkspaceBusy):
        create(world, ISSUE)  # while it is being made it does
    assert create(world, ISSUE).task == ISSUE


def test_a_workspace_that_cannot_be_made_gives_its_reference_back(world: World) -> None:
    with pytest.raises(WorkspaceError):
        Workspace.create(str(world.repository), base="no-such", task=ISSUE)
    create(world, ISSUE)


def test_of_several_processes_that_want_one_reference_one_wins(world: World) -> None:
    script = (
        "import sys; from staddle import Task, Workspace; from staddle.errors import WorkspaceBusy\n"
        "sys.stdin.read()\n"
        "try: print(Workspace.create(sys.argv[1], task=Task(reference='r')).name)\n"
        "except WorkspaceBusy: print('busy')\n"
    )
    ours = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(world.repository)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        for _ in range(4)
    ]
    for process in ours:
        assert process.stdin is not None
        process.stdin.close()
    said = []
    for process in ours:
        assert process.stdout is not None
        said.append(process.stdout.read().strip())
        process.stdout.close()
        assert process.wait(60) == 0
    assert said.count("busy") == 3
    assert [item.name for item in Workspace.list()] == [name for name in said if name != "busy"]


def test_the_reaper_takes_the_task_with_the_workspace(world: World) -> None:
    made = create(world, ISSUE)
    assert reap({"prepared": 0.0}) == (made.directory,)
    assert create(world, ISSUE).task == ISSUE


# Who commits


def test_the_author_of_what_is_committed_can_be_chosen(world: World) -> None:
    made = create(world)
    (Path(made.path) / "new").touch()
    made.commit_all("mine", author="Ann Other <ann@example.invalid>")
    form = "--format=%an <%ae> %cn <%ce>"
    who = "Ann Other <ann@example.invalid>"
    assert (
        world.git("log", "-1", form, made.branch, where=world.repository).decode().strip() == f"{who} {who}"
    )


@pytest.mark.parametrize("author", ["", "Ann", "<a@b>", "Ann <>", "Ann <a@b> x", "Ann\n <a@b>", "A <<b>"])
def test_an_author_that_is_none_is_an_error(author: str) -> None:
    with pytest.raises(PolicyError, match="not an identity"):
        commit_identity(author)


# Publishing to a remote


def finished(world: World) -> Workspace:
    made = create(world)
    (Path(made.path) / "new").write_text("new\n")
    made.commit_all("work")
    with made.claim():
        made.move_to("running")
        made.move_to("stopped")
    return made


def remote(world: World, name: str = "origin.git") -> Path:
    place = world.top / name
    world.git("init", "-q", "--bare", str(place))
    return place


def tips(world: World, place: Path) -> bytes:
    return world.git("for-each-ref", "--format=%(refname) %(objectname)", where=place)


def test_publish_pushes_nothing_by_itself(world: World) -> None:
    place = remote(world)
    world.git("remote", "add", "origin", str(place), where=world.repository)
    finished(world).publish()
    assert tips(world, place) == b""


def test_publish_pushes_the_branch_to_a_named_remote_or_an_address(world: World) -> None:
    place, other = remote(world), remote(world, "other.git")
    world.git("remote", "add", "origin", "../origin.git", where=world.repository)
    made = finished(world)
    made.publish("origin")
    assert tips(world, place).decode() == f"refs/heads/{made.branch} {made.tip()}\n"
    assert made.status == "published"
    assert made.journal()[-1].facts["remote"] == str(place)
    second = finished(world)
    second.publish(str(other))
    assert second.tip().encode() in tips(world, other)


def test_a_push_that_fails_publishes_nothing_and_nothing_is_forced(world: World) -> None:
    place = remote(world)
    made = finished(world)
    world.git("push", "-q", str(place), f"main:refs/heads/{made.branch}", where=world.repository)
    theirs = world.top / "theirs"
    world.git("clone", "-q", "-b", made.branch, str(place), str(theirs))
    world.git("commit", "-q", "--allow-empty", "-m", "theirs", where=theirs)
    world.git("push", "-q", "origin", made.branch, where=theirs)
    before = tips(world, place)
    with pytest.raises(GitFailed, match="push"):
        made.publish(str(place))
    assert tips(world, place) == before
    assert made.status == "stopped"
    with pytest.raises(GitFailed):
        made.publish(str(world.top / "no-such.git"))


@pytest.mark.parametrize("plant", ["", "remote.origin.receivepack=REFUSER", "core.hooksPath=HOOKS"])
def test_a_push_runs_nothing_that_the_repository_says(world: World, plant: str) -> None:
    place = remote(world)
    world.git("remote", "add", "origin", str(place), where=world.repository)
    hooks = world.top / "hooks" if "HOOKS" in plant else world.common / "hooks"
    hooks.mkdir(exist_ok=True)
    if "receivepack" not in plant:
        world.executable(hooks / "pre-push")
    if plant:
        world.config(plant.replace("HOOKS", str(hooks)))
    made = finished(world)
    # The control: plain git falls for it.
    world.fall_for_it("push", "origin", "main:refs/heads/control", where=world.repository)
    assert world.fired.exists()
    world.fired.unlink()
    made.publish("origin")
    assert not world.fired.exists()
    assert made.tip().encode() in tips(world, place)


def test_a_remote_that_was_changed_meanwhile_is_refused(world: World) -> None:
    place, evil = remote(world), remote(world, "evil.git")
    world.git("remote", "add", "origin", str(place), where=world.repository)
    made = finished(world)
    world.git("remote", "set-url", "origin", str(evil), where=world.repository)
    with pytest.raises(GitRefused, match="has changed"):
        made.publish("origin")
    world.git("remote", "add", "later", str(evil), where=world.repository)
    with pytest.raises(GitRefused, match="has changed"):
        made.publish("later")
    assert tips(world, evil) == b""
    with pytest.raises(GitRefused, match="no remote"):
        made.publish("elsewhere")
    with pytest.raises(GitFailed):
        made.publish(f"ext::{world.script} x/y")
    assert not world.fired.exists()
    assert made.status == "stopped"


def test_a_token_in_an_address_is_not_told() -> None:
    assert without_login("https://me:token@host.invalid/a.git") == "https://host.invalid/a.git"
    assert without_login("git@host.invalid:a.git") == "git@host.invalid:a.git"


# Model and conversation


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_model_and_conversation_stand_before_the_prompt_as_the_row_says(agent: Agent) -> None:
    for field, said in (
        ("model", {"model": "m-1"}),
        ("resume", {"resume": "s-1"}),
        ("latest", {"resume": "last"}),
    ):
        words = getattr(agent, field)
        if not words:
            with pytest.raises(PolicyError, match="no words"):
                agent.asked("do it", **said)
            continue
        line = agent.asked("do it", **said)
        spelled = [word.replace("{model}", "m-1").replace("{session}", "s-1") for word in words]
        at = line.index(spelled[0])
        assert line[at : at + len(spelled)] == spelled
        assert "do it" in line[-1]
        assert agent.asked("do it") == line[:at] + line[at + len(spelled) :]
    last = agent.interactive_latest or agent.latest
    if agent.interactive and last:
        assert agent.attached()[-len(last) :] == list(last)
        assert not any("do it" in word for word in agent.attached())


@pytest.mark.parametrize(
    "agent", [agent for agent in AGENTS.values() if agent.interactive], ids=lambda a: a.name
)
def test_a_person_chooses_a_model_where_the_agent_takes_one_at_a_terminal(agent: Agent) -> None:
    if agent.interactive_model:
        assert "m-1" in agent.attached(model="m-1", resume="last" if agent.latest else "s-1")
    else:
        with pytest.raises(PolicyError, match="at a terminal"):
            agent.attached(model="m-1", resume="s-1")


def test_the_last_conversation_is_never_one_of_another_directory() -> None:
    with pytest.raises(PolicyError, match="no words for latest"):
        AGENTS["goose"].asked("do it", resume="last")


def test_a_model_that_looks_like_an_option_is_refused() -> None:
    for model in ("--dangerous", "", "a\0b"):
        with pytest.raises(PolicyError, match="cannot be passed on"):
            AGENTS["claude"].asked("x", model=model)
    line = AGENTS["claude"].asked("x", session="0-1")
    assert line[line.index("--session-id") + 1] == "0-1"


def test_a_task_of_another_version_is_told(world: World) -> None:
    made = create(world, ISSUE)
    Path(made.directory, "task.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(WorkspaceError, match="another version"):
        _ = made.task
