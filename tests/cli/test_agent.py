"""`staddle agent` and `staddle mcp`: what is asked for is understood, or refused with a sentence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from staddle.agents.launch import refuse_other_permissions, refuse_settings_of_project
from staddle.agents.table import CODING_AGENTS
from staddle.cli import main
from staddle.errors import InvalidCall

pytestmark = pytest.mark.same_for_everyone


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a Claude Code that prints what it is started with."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "claude"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$CLAUDE_CODE_SHELL_PREFIX" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agent", "nobody"], "staddle knows no agent 'nobody'"),
        (["agent", "codex", "--way", "mcp"], "has no way 'mcp'"),
        (["claude", "-p", "go"], "staddle claude -- -p go"),
        (["claude", "--policy", "a.toml"], "--policy is not for a whole agent"),
        (["claude", "--network", "deny", "--allow", "a.example"], "contradict each other"),
        (["claude", "--way", "shell", "--continue"], "--continue is for a whole agent"),
        (["agent", "claude", "--install", "--check"], "stands alone"),
        (["agent", "claude", "--install"], "add --yes"),
        (["agent", "claude", "--remove"], "is not installed"),
        (["agent", "claude", "--install", "--workspace", "/tmp"], "--workspace is not for settings"),
        (["agent", "gemini", "--way", "shell", "--print"], "--way mcp"),
        (["agent", "aider", "--print"], "has no setting"),
        (["claude", "--mode", "bind", "--keep", "a"], "--keep and --mode bind contradict each other"),
        (["claude", "--way", "shell", "--mode", "bind", "--keep", "a"], "--keep needs --mode overlay"),
        (["agent", "gemini"], "gemini is not on the PATH"),
        (["agent", "claude", "--way", "shell", "--", "--settings={}"], "--settings cannot be given"),
        (["agent", "vscode"], "--install"),
        (["mcp", "--http", "x"], "is not a port"),
        (["mcp", "--yes", "bash"], "names no tool that asks"),
        (["mcp", "a", "b"], "more than one workspace"),
    ],
)
def test_refusals(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 125
    assert said in capsys.readouterr().err


def test_an_agent_is_started_with_its_words_and_a_shim_that_is_gone_afterwards(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["agent", "claude", "--way", "shell", "--", "-p", "hi there"]) == 0
    shim, *words = capfd.readouterr().out.splitlines()
    # Also as an argument: the settings of a project would replace the variable.
    assert words == ["--settings", f'{{"env": {{"CLAUDE_CODE_SHELL_PREFIX": "{shim}"}}}}', "-p", "hi there"]
    assert shim.endswith("/prefix")
    assert not os.path.exists(shim)


def test_the_mcp_way_starts_the_server_with_the_options_of_the_sandbox(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "claude", "--way", "mcp", "--allow", "a.example", "--best-effort", "--", "-p"]) == 0
    words = capfd.readouterr().out
    for part in (
        '"--allow", "a.example", "--best-effort"',
        str(home / "project"),
        "--strict-mcp-config",
        "--tools",
    ):
        assert part in words


@pytest.mark.parametrize("name", CODING_AGENTS)
def test_settings_of_every_agent_are_printed_and_nothing_is_written(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(home.rglob("*"))
    for way, row in CODING_AGENTS[name].ways.items():
        if row.edits is not None:
            assert main(["agent", name, "--print", "--way", way]) == 0
            printed = capsys.readouterr().out
            assert printed.startswith(f"# {home}/.")
            assert ("/bash" in printed or "/prefix" in printed) if way == "shell" else '"mcp"' in printed
    assert sorted(home.rglob("*")) == before


def test_options_of_an_installation_mean_the_same_from_another_directory(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "project/policy.toml").write_text('network = "deny"\n')
    options = ["--policy", "policy.toml", "--read=../bin", "--keep", "fix", "--nested", "--best-effort"]
    assert main(["agent", "claude", *options, "--install", "--yes"]) == 0
    shim = (home / ".local/share/staddle/agents/claude/prefix").read_text()
    policy, read = f"--policy {home}/project/policy.toml", f"--read {home}/bin"
    assert f"--keep fix {policy} {read} --nested --best-effort --serve $$" in shim
    assert main(["agent", "claude", "--remove"]) == 0
    assert main(["agent", "claude", "--way", "mcp", *options, "--print"]) == 0
    assert f"{home}/project/policy.toml" in capsys.readouterr().out


@pytest.mark.parametrize(
    "settings",
    [
        '{"permission": {"*": "ask", "bash": "allow"}}',
        '{"agent": {"mine": {"permission": "allow"}}} // mine',
        '{"mode": {"build": {"tools": {"bash": true}}}}',
    ],
)
def test_permissions_that_opencode_would_merge_with_ours_are_refused(settings: str, home: Path) -> None:
    place = home / ".config/opencode/opencode.jsonc"
    place.parent.mkdir(parents=True)
    for given in ({"OPENCODE_CONFIG": str(home / "own.json")}, {}):
        (place if not given else home / "own.json").write_text(settings)
        with pytest.raises(InvalidCall, match="could allow opencode's own tools"):
            refuse_other_permissions(given)
    for harmless in ('{"model": "a/b", "agent": {"mine": {"prompt": "x"}}}', '{"permission": "allow"}'):
        place.write_text(harmless)
        refuse_other_permissions({})


def test_tools_in_the_settings_of_a_project_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    refuse_settings_of_project()
    (home / ".gemini").mkdir()
    for name in ("tools", "mcp", "mcpServers"):
        (home / ".gemini/settings.json").write_text(f'{{"{name}": {{}}}} // mine')
        with pytest.raises(InvalidCall, match="other tools"):
            refuse_settings_of_project()
    (home / ".gemini/settings.json").write_text('{"theme": "dark"}')
    refuse_settings_of_project()
