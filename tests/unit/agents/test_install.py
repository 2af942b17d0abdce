"""Settings of coding agents are changed as shown, and put back byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staddle.agents.install import difference, home_of, install, plan, printed, remove
from staddle.agents.table import CODING_AGENTS
from staddle.errors import InvalidCall, UsageError

pytestmark = pytest.mark.same_for_everyone

INSTALLED = [
    (agent.name, name) for agent in CODING_AGENTS.values() for name, way in agent.ways.items() if way.edits
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(("name", "way"), INSTALLED)
def test_what_was_there_comes_back_byte_for_byte(name: str, way: str) -> None:
    agent = CODING_AGENTS[name]
    files = [Path(change.path) for change in plan(agent, way).changes]
    odd = b'{"mine" :  {"a":[1,2 ]},\n\n"env":{"X":"1"}}'
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        if number == 0 and file.suffix == ".json":
            file.write_bytes(odd)
    what = plan(agent, way, ["--allow", "a.example", "--way", way])
    assert what.words == ("--allow", "a.example")
    install(what)
    for change in what.changes:
        assert Path(change.path).read_bytes() == change.after
        if change.before is not None:
            settings = json.loads(change.after)
            assert settings["mine"] == {"a": [1, 2]}
            assert settings["env"]["X"] == "1"
    with pytest.raises(InvalidCall, match="already"):
        install(what)
    assert all("as it was" in line for line in remove(agent))
    assert [file.read_bytes() if file.exists() else None for file in files] == [
        change.before for change in what.changes
    ]
    assert not Path(home_of(name)).exists()


def test_a_file_that_was_changed_since_loses_only_our_part(home: Path) -> None:
    agent = CODING_AGENTS["claude"]
    install(plan(agent, "shell"))
    file = home / ".claude/settings.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "model": "other"}))
    assert "only staddle's part" in remove(agent)[0]
    assert json.loads(file.read_text()) == {"model": "other"}


def test_a_file_that_cannot_be_merged_is_left_alone(home: Path) -> None:
    (home / ".claude").mkdir()
    file = home / ".claude/settings.json"
    file.write_text('{"a": 1, // why\n}')
    with pytest.raises(InvalidCall, match="--print"):
        plan(CODING_AGENTS["claude"], "shell")
    (home / ".codex").mkdir()
    (home / ".codex/environments.toml").write_text("include_local = true\n")
    with pytest.raises(InvalidCall, match="exists"):
        plan(CODING_AGENTS["codex"], "shell")
    with pytest.raises(UsageError, match="--way mcp"):
        plan(CODING_AGENTS["gemini"], "shell")


def test_the_change_is_shown_before_it_is_made(home: Path) -> None:
    what = plan(CODING_AGENTS["claude"], "shell")
    assert '+    "CLAUDE_CODE_SHELL_PREFIX"' in difference(what)
    assert str(home / ".claude/settings.json") in printed(what)
    assert not (home / ".claude").exists()
