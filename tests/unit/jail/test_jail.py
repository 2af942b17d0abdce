"""What a jail asks of its backend, and what it makes of the answer. Nothing is confined here."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from staddle import backends
from staddle.enforcement import Gap
from staddle.errors import (
    CommandCancelled,
    CommandFailed,
    CommandTimeout,
    LaunchFailed,
    PolicyError,
    PolicyNotEnforceable,
    UnknownBackend,
)
from staddle.jail.jail import KEY, RunOpts, bootstrap, confinement, new_jail
from staddle.jail.workspace import Workspace
from staddle.policy import Network, Policy
from staddle.policy.compiler import compile
from staddle.testing import FakeBackend, Scripted
from tests.support.git_plants import World


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Workspace.create(str(World(tmp_path).repository), root=str(tmp_path / "data"))


@pytest.mark.parametrize("name", [*backends.NAMES, "auto", "systemd-run"])
def test_every_backend_has_a_jail(name: str) -> None:
    assert new_jail(name)


def test_an_unknown_backend_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(UnknownBackend, match=r"bwrap, systemd, landlock.*systemd-run"):
        new_jail("docker")


def test_a_runner_can_be_injected(workspace: Workspace) -> None:
    asked: list[Any] = []

    def runner(argv: list[str], policy: Policy, **options: Any) -> Any:
        asked.append((argv, policy, options))
        raise LaunchFailed("not here")

    with pytest.raises(LaunchFailed):
        new_jail("systemd-run", runner).run(RunOpts(workspace, ["claude", "-p", "x y"], env=["A=1"]))
    argv, policy, options = asked[0]
    assert argv == ["claude", "-p", "x y"]
    assert policy.preset == "coding-agent"
    assert options["backend"] == "systemd"
    assert options["cwd"] == workspace.path
    assert options["env"]["A"] == "1"
    assert workspace.status == "prepared"  # nothing ran
    assert workspace.journal()[-1].what == "refused"


def test_the_status_is_the_commands(workspace: Workspace) -> None:
    with FakeBackend([Scripted(exit_code=3), Scripted(exit_code=-9), Scripted()]) as fake:
        jail = new_jail("bwrap")
        assert [jail.run(RunOpts(workspace, ["agent"])) for _ in range(3)] == [3, 137, 0]
    assert fake.commands == [["agent"]] * 3
    assert workspace.status == "stopped"


def test_captured_output_is_bytes_and_a_failure_is_an_error_with_them(workspace: Workspace) -> None:
    with FakeBackend([Scripted(b"\xff\0out"), Scripted(b"part", exit_code=2)]):
        jail = new_jail("bwrap")
        assert jail.run_capture(RunOpts(workspace, ["agent"])) == b"\xff\0out"
        with pytest.raises(CommandFailed) as failure:
            jail.run_capture(RunOpts(workspace, ["agent"]))
    assert (failure.value.status, failure.value.output) == (2, b"part")


def test_a_timeout_is_an_error_and_leaves_it_failed(workspace: Workspace) -> None:
    with FakeBackend([Scripted(delay=30)]), pytest.raises(CommandTimeout) as late:
        new_jail("bwrap").run(RunOpts(workspace, ["agent"], timeout=0.2))
    assert late.value.status == 124
    assert workspace.status == "failed"


def test_the_home_is_hidden_and_only_what_a_commit_writes_is_writable(workspace: Workspace) -> None:
    plan = compile(confinement(RunOpts(workspace, ["x"])), cwd=workspace.path)
    common = workspace.common
    writable = {grant.path for grant in plan.grants if grant.access == "write"}
    assert writable == {
        workspace.path,
        workspace.admin,
        *(f"{common}/{part}" for part in ("objects", "refs", "logs")),
    }
    for name in ("config", "hooks", "info", "packed-refs"):
        assert plan.access(f"{common}/{name}") == "read"
    assert not any(f"{workspace.directory}/".startswith(f"{grant.path}/") for grant in plan.grants)
    assert plan.limits.timeout is None


def test_another_policy_keeps_the_workspace_writable(workspace: Workspace) -> None:
    mine = Policy.agent().with_network(Network.open())
    policy = confinement(RunOpts(workspace, ["x"], timeout=5, policy=mine))
    assert policy.network == Network.open()
    assert workspace.path in policy.write
    assert policy.limits.timeout == 5


def test_the_environment_has_what_an_agent_needs(workspace: Workspace) -> None:
    found = bootstrap(RunOpts(workspace, ["x"], env=["A=b=c", "E=", "GIT_AUTHOR_NAME=me"]))
    assert found["MISE_YES"] == "1"
    assert found["MISE_TRUSTED_CONFIG_PATHS"] == workspace.path
    assert found["GIT_COMMITTER_EMAIL"]
    assert (found["A"], found["E"], found["GIT_AUTHOR_NAME"]) == ("b=c", "", "me")
    assert KEY not in found
    assert bootstrap(RunOpts(workspace, ["x"], api_key="k"))[KEY] == "k"
    plan = compile(confinement(RunOpts(workspace, ["x"])), cwd=workspace.path)
    assert ".local/share/mise/shims:" in plan.environment()["PATH"]


@pytest.mark.parametrize("text", ["NOEQUALS", "=value", "", "A\0B=c", "A=b\0c", "\ud800=x"])
def test_a_malformed_variable_is_an_error(workspace: Workspace, text: str) -> None:
    with pytest.raises(PolicyError):
        RunOpts(workspace, ["x"], env=["GOOD=1", text])


def test_an_error_about_a_variable_does_not_show_it(workspace: Workspace) -> None:
    for text in ("sk-secret-without-a-name", "TOKEN=sk-secret\0"):
        with pytest.raises(PolicyError) as error:
            RunOpts(workspace, ["x"], env=[text])
        assert "sk-secret" not in str(error.value)


@pytest.mark.parametrize("key", ["", "a\0b", 5])
def test_a_key_that_cannot_be_passed_is_an_error(workspace: Workspace, key: Any) -> None:
    with pytest.raises(PolicyError):
        RunOpts(workspace, ["x"], api_key=key)


@pytest.mark.parametrize("command", ["claude -p x", [], ()])
def test_a_command_is_a_list(workspace: Workspace, command: Any) -> None:
    with pytest.raises(PolicyError):
        RunOpts(workspace, command)


def test_nothing_secret_is_in_the_repr(workspace: Workspace) -> None:
    shown = repr(RunOpts(workspace, ["x"], env=["A=sk-secret"], api_key="sk-secret"))
    assert "sk-secret" not in shown
    assert "'A'" in shown


@pytest.mark.parametrize("timeout", [0, -1, True, float("nan"), "soon"])
def test_a_timeout_that_means_nothing_is_an_error(workspace: Workspace, timeout: Any) -> None:
    with pytest.raises(PolicyError):
        RunOpts(workspace, ["x"], timeout=timeout)


def test_what_cancels_can_be_asked(workspace: Workspace) -> None:
    with pytest.raises(PolicyError, match=r"threading\.Event"):
        RunOpts(workspace, ["x"], cancel="now")  # type: ignore[arg-type]


def test_a_cancelled_run_is_an_error_and_leaves_it_failed(workspace: Workspace) -> None:
    cancel = threading.Event()
    cancel.set()
    with FakeBackend([Scripted(delay=30)]), pytest.raises(CommandCancelled):
        new_jail("bwrap").run(RunOpts(workspace, ["agent"], cancel=cancel))
    assert workspace.status == "failed"
    assert workspace.journal()[-1].facts["reason"] == "cancelled"


def test_best_effort_is_asked_for_only_when_it_is_wanted(workspace: Workspace) -> None:
    gap = Gap("network", "not here")
    with FakeBackend(declares=[gap]):
        jail = new_jail("bwrap")
        with pytest.raises(PolicyNotEnforceable):
            jail.run(RunOpts(workspace, ["agent"]))
        assert workspace.status == "prepared"
        assert jail.run(RunOpts(workspace, ["agent"], best_effort=True)) == 0


def test_a_change_in_what_the_users_agent_obeys_is_told(workspace: Workspace, tmp_path: Path) -> None:
    config = tmp_path / "home/.claude"
    config.mkdir()
    (config / "settings.json").write_text("{}")
    with FakeBackend():
        jail = new_jail("bwrap")
        with jail.prepare(RunOpts(workspace, ["claude"], agent="claude")) as run:
            (config / "settings.json").write_text('{"hooks": {}}')
            (config / "history.jsonl").write_text("its own business")
            run.ended(0)
    assert [event.what for event in run.events] == [str(config / "settings.json")]
    assert str(config / "settings.json") in workspace.journal()[-1].facts["violations"][0]


def test_an_error_says_no_secret(workspace: Workspace) -> None:
    def runner(argv: list[str], policy: Policy, **options: Any) -> Any:
        raise LaunchFailed(f"cannot start with {options['env']['MY_TOKEN']}", why="key sk-123456789")

    opts = RunOpts(workspace, ["x"], env=["MY_TOKEN=tk-123456789"], api_key="sk-123456789")
    with pytest.raises(LaunchFailed) as failure:
        new_jail("bwrap", runner).run(opts)
    assert "123456789" not in str(failure.value)
    assert "123456789" not in Path(workspace.directory, "journal.jsonl").read_text()
