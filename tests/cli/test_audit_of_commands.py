"""Audit logs of run, shell, wrap, jails and environments: whole, in order, without secrets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from staddle import LocalEnvironment, Policy, RunOpts, Sandbox, Workspace, new_jail, wrap
from staddle.errors import CommandTimeout, InvalidCall
from tests.support.staddle_command import staddle

KEY = "sk-live-0123456789abcdef"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, whose numbers are without a gap."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["n"] for line in found] == list(range(1, len(found) + 1))
    return found


def kinds_of(path: Path) -> list[str]:
    return [line["what"] for line in lines_of(path)]


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.parametrize("how", [(), ("--json",), ("--mode", "overlay")], ids=["live", "json", "overlay"])
def test_run_writes_what_ran_and_how_it_ended(tmp_path: Path, how: tuple[str, ...]) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    work.mkdir()
    done = staddle("run", "--audit", str(log), *how, "-c", f"echo {KEY}; exit 3", "--", cwd=work)
    assert done.returncode == 3
    found = lines_of(log)
    assert (found[0]["what"], found[-1]["what"]) == ("opened", "closed")
    (result,) = [line for line in found if line["what"] == "result"]
    assert result["exit_code"] == 3
    assert staddle("audit", str(log), "--check").returncode == 0


@pytest.mark.same_for_everyone
def test_a_log_that_the_command_could_write_is_refused(tmp_path: Path) -> None:
    done = staddle("run", "--audit", "log", "--mode", "bind", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert "audit log" in done.stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_shell_is_in_the_log(tmp_path: Path) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    work.mkdir()
    assert staddle("shell", "--audit", str(log), input="exit 4\n", cwd=work).returncode == 4
    assert kinds_of(log)[:2] == ["opened", "started"]


@pytest.mark.same_for_everyone
def test_wrap_writes_a_result_and_popen_that_it_started(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    wrap(["sh", "-c", "exit 5"], Policy.agent(), audit=told.append).run()
    assert [line["what"] for line in told] == ["opened", "command", "result", "closed"]
    assert (told[1]["command"], told[2]["exit_code"]) == (["sh", "-c", "exit 5"], 5)
    log = tmp_path / "log"
    process = wrap(["true"], Policy.agent(), audit=log).popen()
    assert process.wait() == 0
    assert kinds_of(log) == ["opened", "command", "closed"]


@pytest.mark.same_for_everyone
def test_an_environment_has_one_log_for_all_its_commands(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(InvalidCall):
        LocalEnvironment(tmp_path, audit=log)
    (work := tmp_path / "work").mkdir()
    policy = Policy.agent().with_env(SERVICE_API_KEY=KEY)
    with LocalEnvironment(work, policy=policy, audit=log) as environment:
        environment.exec_command("sh", ["-c", "exit 2"])
        environment.exec_command("echo", [KEY])
        with pytest.raises(CommandTimeout):
            environment.exec_command("sleep", ["1000"], timeout=0.2)
    assert kinds_of(log) == ["opened", *["command", "result"] * 3, "closed"]
    assert KEY not in log.read_text()
    assert lines_of(log)[6]["reason"] == "timeout"


@pytest.mark.same_for_everyone
def test_the_tools_of_a_sandbox_are_in_its_log_and_hooks_are_told() -> None:
    told: list[dict[str, Any]] = []
    starts: list[str] = []
    with Sandbox(audit=told.append, on_command=lambda start: starts.append(str(start))) as sb:
        assert sb.environment().exec_command("sh", ["-c", "echo x; exit 3"]).stdout == "x\n"
    assert [line["what"] for line in told] == ["opened", "command", "result", "closed"]
    assert told[2]["exit_code"] == 3
    assert starts == ["sh -c echo x; exit 3"]


@pytest.mark.same_for_everyone
def test_a_jail_writes_its_run(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    repository = tmp_path / "repository"
    subprocess.run([*git, "init", "-q", str(repository)], check=True)
    subprocess.run([*git, "-C", str(repository), "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    workspace = Workspace.create(str(repository), root=str(tmp_path / "workspaces"))
    log = tmp_path / "log"
    opts = RunOpts(workspace, ("sh", "-c", "echo $ANTHROPIC_API_KEY"), api_key=KEY, audit=log)
    assert new_jail("auto").run_capture(opts) == b"(hidden)\n"
    assert kinds_of(log) == ["opened", "command", "result", "closed"]
    assert KEY not in log.read_text()
