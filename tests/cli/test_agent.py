"""`staddle agent` and `staddle mcp`: what is asked for is understood, or refused with a sentence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from staddle.cli import main

pytestmark = pytest.mark.same_for_everyone


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a Claude Code that prints what it is started with."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
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
        (["agent", "claude", "go"], "staddle agent claude -- go"),
        (["agent", "claude", "--install", "--check"], "stands alone"),
        (["agent", "claude", "--install"], "add --yes"),
        (["agent", "claude", "--remove"], "is not installed"),
        (["agent", "claude", "--way", "inside", "--keep", "a"], "there is no layer"),
        (["agent", "claude", "--mode", "bind", "--keep", "a"], "--keep needs --mode overlay"),
        (["agent", "gemini"], "gemini is not on the PATH"),
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
    assert main(["agent", "claude", "--", "-p", "hi there"]) == 0
    shim, *words = capfd.readouterr().out.splitlines()
    assert words == ["-p", "hi there"]
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
