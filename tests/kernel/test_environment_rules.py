"""Command rules in front of real commands: asked before anything happens, and never the boundary."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from staddle import AsyncSandbox, LocalEnvironment, Policy, Sandbox, wrap
from staddle.command_rules import shell_parser
from staddle.environment import AsyncLocalEnvironment, CommandRules, Rule
from staddle.errors import CommandNotUnderstood, CommandRefused, ExtraMissing
from tests.support.in_a_child import captured

RULES = CommandRules(deny=[Rule("touch", owner="write_file", reason="files are written with the file tools")])


@pytest.mark.same_for_everyone
def test_a_refused_command_leaves_nothing(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path, ["docs/**"], rules=RULES)
    for argv in (["touch", "docs/a"], ["bash", "-lc", "cd docs && touch a"], ["env", "touch", "docs/a"]):
        with pytest.raises(CommandRefused) as refusal:
            env.exec_command(argv[0], argv[1:])
        assert (refusal.value.program, refusal.value.owner) == ("touch", "write_file")
    with pytest.raises(CommandNotUnderstood):
        env.exec_command("sh", ["-c", "echo ("])
    assert os.listdir(tmp_path) == [], "not even the directory that a command would have got"
    assert env.exec_command("sh", ["-c", "mkdir docs; echo touch > docs/a; cat docs/a"]).stdout == "touch\n"


def test_what_the_rules_do_not_see_the_confinement_holds(tmp_path: Path) -> None:
    """They are advice: a script in a file gets round them, and not out of the directory."""
    (tmp_path / "outside").mkdir()
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    (work / "script").write_text("touch docs/inside ../outside/x other")
    env = LocalEnvironment(work, ["docs/**"], rules=RULES)
    assert env.exec_command("sh", ["script"]).exit_code != 0
    assert os.listdir(work / "docs") == ["inside"]
    assert sorted(os.listdir(work)) == ["docs", "script"]
    assert os.listdir(tmp_path / "outside") == []


@pytest.mark.same_for_everyone
def test_the_rules_see_what_the_agent_asked_and_not_what_the_hook_makes_of_it(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path, rules=RULES, command_wrapper=lambda argv: ["touch", *argv[1:]])
    env.exec_command("make", ["a"])
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.same_for_everyone
def test_the_awaited_tools_ask_them_too(tmp_path: Path) -> None:
    env = AsyncLocalEnvironment(LocalEnvironment(tmp_path, rules=RULES))
    with pytest.raises(CommandRefused):
        asyncio.run(env.exec_command("touch", ["a"]))


@pytest.mark.same_for_everyone
def test_without_the_parser_no_environment_with_rules_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_parser, "_places", list)
    with pytest.raises(ExtraMissing):
        LocalEnvironment(tmp_path, rules=RULES)
    assert LocalEnvironment(tmp_path).exec_command("true").exit_code == 0


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_rules_of_a_policy_hold_wherever_a_command_comes_in(tmp_path: Path) -> None:
    policy = Policy.agent().with_rules(RULES)
    with Sandbox(tmp_path, policy) as sb:
        for refused in (
            lambda: sb.run("echo a; touch b"),
            lambda: sb.run("touch b", user="root"),
            lambda: list(sb.stream("touch b")),
            lambda: sb.exec(["env", "touch", "b"]),
            lambda: sb.start("touch b"),
            lambda: sb.start(["touch", "b"]),
            lambda: sb.terminal(["touch", "b"]),
            lambda: sb.session("other").run("touch b"),
            lambda: sb.environment().exec_command("touch", ["b"]),
        ):
            with pytest.raises(CommandRefused, match="use write_file"):
                refused()
        assert sb.run("echo fine").stdout == "fine\n", "a refusal changes nothing"
        assert sb.start("sleep 1000").running
        assert len(sb.processes()) == 1, "what we run inside by ourselves is no command of the agent"
        assert not sb.diff()
    with pytest.raises(CommandRefused):
        wrap(["touch", "b"], policy)
    with pytest.raises(CommandRefused), LocalEnvironment(tmp_path, policy=policy) as env:
        env.exec_command("touch", ["b"])
    assert os.listdir(tmp_path) == []


def test_rules_of_a_policy_hold_for_awaited_commands(tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncSandbox(tmp_path, Policy.agent().with_rules(CommandRules(allow=["ls"]))) as sb:
            for refused in (sb.run("date"), sb.exec(["date"]), sb.start("date")):
                with pytest.raises(CommandRefused, match="not among"):
                    await refused
            with pytest.raises(CommandRefused):
                async for _ in sb.stream("date"):
                    pass
            assert (await sb.run("ls; echo a")).stdout == "a\n"

    asyncio.run(use())


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_rule_of_a_policy_file_holds_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[rules]\ndeny = [{command = "touch", owner = "write_file"}]\nready_made = ["git"]\n')
    (tmp_path / "work").mkdir()

    def staddle(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "staddle", *words]
        return captured(command, input=text, cwd=tmp_path / "work")

    told = "use write_file"
    done = staddle("run", "--policy", str(file), "--", "touch", "b")
    assert done.returncode == 125, done
    assert told in done.stderr
    done = staddle("run", "--policy", str(file), "-c", "echo a && git log")
    assert (done.returncode, done.stdout) == (125, ""), done
    done = staddle("shell", "--policy", str(file), text="echo a\ntouch b\n")
    assert (done.returncode, done.stdout) == (125, ""), done
    assert told in done.stderr
    done = staddle("shell", "--policy", str(file), text="echo a\nexit 3\n")
    assert (done.returncode, done.stdout) == (3, "a\n"), done
    done = staddle("shell", "--json", "--policy", str(file), text="touch b\necho a\n")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["error"]["fix"] == told
    assert second["stdout"] == "a\n"
