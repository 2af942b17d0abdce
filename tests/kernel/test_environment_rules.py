"""Command rules in front of real commands: asked before anything happens, and never the boundary."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from staddle import LocalEnvironment
from staddle.environment import AsyncLocalEnvironment, CommandRules, Rule, shell_parser
from staddle.errors import CommandNotUnderstood, CommandRefused, ExtraMissing

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
