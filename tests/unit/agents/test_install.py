"""Settings of coding agents are changed as shown, and put back byte for byte."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from staddle.agents.install import InstallPlan, difference, home_of, install, plan, printed, remove
from staddle.agents.json_text import parse, put
from staddle.agents.table import CODING_AGENTS
from staddle.errors import InvalidCall, UsageError
from tests.support.threads import at_once

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
    what = plan(agent, way, ["--allow", "a.example"])
    assert what.words == ("--allow", "a.example")
    if way == "mcp":  # the server is started with them
        assert any(b"a.example" in change.after for change in what.changes)
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
    for damaged in (b'{"a": 1', b'{"a" 1}', b"[]", b"{} {}", b'{"a": "\xff"}', b"{" * 1000, b'{"a": tru}'):
        file.write_bytes(damaged)
        with pytest.raises(InvalidCall, match=r"--print|move it away"):
            plan(CODING_AGENTS["claude"], "shell")
        assert file.read_bytes() == damaged
    (home / ".codex").mkdir()
    (home / ".codex/environments.toml").write_text("include_local = true\n")
    with pytest.raises(InvalidCall, match="exists"):
        plan(CODING_AGENTS["codex"], "shell")
    with pytest.raises(UsageError, match="--way mcp"):
        plan(CODING_AGENTS["gemini"], "shell")


#: Settings files as people have them.
ODD = {
    "empty": b"",
    "blank": b" \n",
    "no members": b"{}",
    "comments": b'// mine\n{\n  "a": 1, // why\n  /* env */ "env": {"X": "1"}, // last\n}\n// end',
    "line ends of Windows": b'{\r\n\t"a": "\\"}//",\r\n\t"env": {\r\n\t\t"X": "1"\r\n\t}\r\n}\r\n',
    "no line end": b'{"a": [1, {"b": null}]}',
    "a mark at its beginning": b'\xef\xbb\xbf{"a": 1}\n',
    "not ASCII": '{"ä": "ö/*ü*/"}'.encode(),
    "other servers and hooks": b'{"hooks": {"PreToolUse": []}, "mcpServers": {"mine": {"command": "x"}},\n'
    b' "permissions": {"deny": ["Bash"], "allow": ["Read"]}, "permission": {"*": "ask", "bash": "allow"},\n'
    b' "tools": {"core": ["run_shell_command"]}, "shell": "/bin/zsh"}',
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(("name", "way"), [each for each in INSTALLED if each[0] != "codex"])
def test_odd_files_keep_the_rest_and_come_back(name: str, way: str, odd: str) -> None:
    agent = CODING_AGENTS[name]
    files = [Path(change.path) for change in plan(agent, way).changes]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(ODD[odd])
        file.chmod(0o664)
    what = plan(agent, way)
    install(what)
    for file, change in zip(files, what.changes, strict=True):
        now = file.read_bytes()
        assert b"\r\n" not in ODD[odd] or now.count(b"\n") == now.count(b"\r\n")
        for comment in (b"// mine", b"// why", b"/* env */", b"// last", b"// end"):
            assert odd != "comments" or comment in now
        value, before = parse(now.decode()).value, parse(ODD[odd].decode().strip() or "{}").value
        assert change.merge is not None
        for key, ours in change.merge.items():
            is_whole = (key,) in change.whole
            assert (
                value[key] == ours
                if is_whole or not isinstance(ours, dict)
                else ours.keys() <= value[key].keys()
            )
        assert {key: value[key] for key in before if key not in change.merge} == {
            key: before[key] for key in before if key not in change.merge
        }
        assert file.stat().st_mode & 0o777 == 0o664
        # As another program would leave it: one member more, then ours is taken out again.
        file.write_text(put(now.decode(), ("later",), True), newline="")
    assert all("only staddle's part" in line for line in remove(agent))
    for file in files:
        assert parse(file.read_bytes().decode()).value == {
            **parse(ODD[odd].decode().strip() or "{}").value,
            "later": True,
        }
        file.write_bytes(ODD[odd])
    install(plan(agent, way))
    assert all("as it was" in line for line in remove(agent))
    assert [file.read_bytes() for file in files] == [ODD[odd]] * len(files)


def test_what_a_user_had_allowed_is_not_allowed_any_more(home: Path) -> None:
    """Lists of what is allowed are replaced, not merged: Gemini's tools, opencode's permissions."""
    given = json.loads(ODD["other servers and hooks"])
    for name, path in (("gemini", ".gemini/settings.json"), ("opencode", ".config/opencode/opencode.json")):
        file = home / path
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(given))
        install(plan(CODING_AGENTS[name], "mcp"))
    assert "run_shell_command" not in (home / ".gemini/settings.json").read_text()
    assert "mine" in json.loads((home / ".gemini/settings.json").read_text())["mcpServers"]
    permission = json.loads((home / ".config/opencode/opencode.json").read_text())["permission"]
    assert list(permission.items()) == [("*", "deny"), ("staddle_*", "allow")]


def test_links_directories_and_homes_with_spaces(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home / "a home"))
    claude, real = home / "a home/.claude", home / "dotfiles/claude.json"
    real.parent.mkdir()
    real.write_bytes(b'{"a":1}')
    claude.mkdir(parents=True)
    (claude / "settings.json").symlink_to(real)
    (claude / "settings.json.staddle").write_text("left by one that was killed")
    install(plan(CODING_AGENTS["claude"], "shell"))
    assert (claude / "settings.json").is_symlink()
    shim = json.loads(real.read_text())["env"]["CLAUDE_CODE_SHELL_PREFIX"]
    assert shim == f"{home}/a home/.local/share/staddle/agents/claude/prefix"
    assert os.access(shim, os.X_OK)
    remove(CODING_AGENTS["claude"])
    assert real.read_bytes() == b'{"a":1}'
    for name, way in INSTALLED:  # directories that were made for it are removed with it
        install(plan(CODING_AGENTS[name], way))
        remove(CODING_AGENTS[name])
    assert sorted(path.name for path in (home / "a home").iterdir()) == [".claude", ".local"]


def test_all_or_nothing(home: Path) -> None:
    claude = CODING_AGENTS["claude"]
    (home / ".claude").mkdir()
    first, second = home / ".claude/settings.json", home / ".claude.json"
    first.write_bytes(b'{"a":1}')
    second.write_bytes(b'{"b":2}')
    second.chmod(0o444)
    with pytest.raises(InvalidCall, match="read-only"):
        install(plan(claude, "mcp"))
    second.chmod(0o644)
    (home / ".claude.json.staddle").mkdir()  # in the way of writing the second
    with pytest.raises(InvalidCall, match="nothing was installed"):
        install(plan(claude, "mcp"))
    (home / ".claude.json.staddle").rmdir()
    what = plan(claude, "mcp")
    second.write_bytes(b'{"b":3}')
    with pytest.raises(InvalidCall, match="changed just now"):
        install(what)
    assert (first.read_bytes(), second.read_bytes()) == (b'{"a":1}', b'{"b":3}')
    assert not Path(home_of("claude")).exists()


def test_two_at_once_install_once(home: Path) -> None:
    first = home / ".claude/settings.json"
    first.parent.mkdir()
    first.write_bytes(b'{"a":1}')
    plans = [plan(CODING_AGENTS["claude"], "shell") for _ in range(8)]

    def one(what: InstallPlan) -> str:
        try:
            install(what)
        except InvalidCall as error:
            return str(error)
        return "done"

    ended = at_once(*(partial(one, each) for each in plans))
    assert ended.count("done") == 1
    assert all(said == "done" or "already" in said for said in ended)
    remove(CODING_AGENTS["claude"])
    assert first.read_bytes() == b'{"a":1}'


def test_the_change_is_shown_before_it_is_made(home: Path) -> None:
    what = plan(CODING_AGENTS["claude"], "shell")
    assert '+    "CLAUDE_CODE_SHELL_PREFIX"' in difference(what)
    assert str(home / ".claude/settings.json") in printed(what)
    assert not (home / ".claude").exists()
