"""Every coding agent is one row, and a row is all it takes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle.errors import PolicyError
from staddle.jail import agents
from staddle.jail.agents import AGENTS, PROMPT, Agent, agent_named, changed_settings, fingerprint
from staddle.jail.options import RunOpts, bootstrap, confinement
from staddle.jail.workspace import Workspace
from staddle.policy import Network, Policy
from staddle.policy.compiler import compile
from staddle.policy.plan import Plan
from staddle.policy.presets import AGENT_CONFIG, denied
from tests.support.git_plants import World

EVERY_AGENT = pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def workspace(tmp_path: Path, home: Path) -> Workspace:
    return Workspace.create(str(World(tmp_path).repository), root=str(tmp_path / "data"))


def fill(home: Path) -> None:
    """Everything that any agent has, in one home."""
    for agent in AGENTS.values():
        for path in (*agent.write, *agent.read):
            place = home / path.removeprefix("~/")
            if place.suffix in (".json", ".yml"):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
            else:
                place.mkdir(parents=True, exist_ok=True)


def plan(opts: RunOpts) -> Plan:
    return compile(confinement(opts), cwd=opts.workspace.path)


@EVERY_AGENT
def test_a_row_makes_sense(agent: Agent) -> None:
    assert AGENTS[agent.name] is agent
    assert sum(PROMPT in word for word in agent.command) == 1
    assert agent.key.isupper()
    assert all(path.startswith("~/") for path in (*agent.write, *agent.read, *agent.obeyed))
    for path in (*agent.obeyed, *(path for path, _ in agent.mixed)):
        assert any(f"{path}/".startswith(f"{place}/") for place in agent.write), path
    assert Network.allow(*agent.hosts).mode == "allow"


@EVERY_AGENT
def test_no_row_asks_for_what_is_hidden_from_every_agent(agent: Agent) -> None:
    for path in (*agent.write, *agent.read):
        for secret in denied("coding-agent"):
            assert not f"{path}/".startswith(f"{secret}/")
            assert not f"{secret}/".startswith(f"{path}/")


def test_every_configuration_that_the_preset_grants_belongs_to_an_agent() -> None:
    known = {path for agent in AGENTS.values() for path in (*agent.write, *agent.read)}
    assert set(AGENT_CONFIG) <= known


@pytest.mark.parametrize("prompt", ["fix it", "--help", "two\nlines", "$(id) `id` 'quoted'", "{prompt}"])
@EVERY_AGENT
def test_a_prompt_is_one_argument_whatever_it_holds(agent: Agent, prompt: str) -> None:
    words = agent.asked(prompt)
    assert len(words) == len(agent.command)
    (word,) = (word for word, was in zip(words, agent.command, strict=True) if PROMPT in was)
    assert word.endswith(prompt)
    if word == prompt:
        assert words[words.index(word) - 1] == "--"  # never taken for an option


@EVERY_AGENT
def test_its_own_places_are_granted_and_nobody_elses(agent: Agent, workspace: Workspace, home: Path) -> None:
    fill(home)
    found = plan(RunOpts(workspace, ["x"], agent=agent.name))
    for path in agent.write:
        assert found.access(f"{home}/{path[2:]}") == "write", path
    for path in agent.read:
        assert found.access(f"{home}/{path[2:]}") == "read", path
    mine = (*agent.write, *agent.read)
    for other in AGENTS.values():
        for path in other.write:
            if path not in mine:
                assert not found.shows(f"{home}/{path[2:]}"), path


@EVERY_AGENT
def test_what_is_missing_is_left_out(agent: Agent, workspace: Workspace, home: Path) -> None:
    found = plan(RunOpts(workspace, ["x"], agent=agent))
    assert not any(grant.path.startswith(f"{home}/") for grant in found.grants)


@EVERY_AGENT
def test_the_key_is_in_its_own_variable(agent: Agent, workspace: Workspace) -> None:
    found = bootstrap(RunOpts(workspace, ["x"], agent=agent.name, api_key="sk-1"))
    assert [name for name, value in found.items() if value == "sk-1"] == [agent.key]


def test_an_agent_of_ones_own(workspace: Workspace, home: Path) -> None:
    (home / ".mine").mkdir()
    mine = Agent("mine", ("mine", PROMPT), "MY_KEY", write=("~/.mine",))
    opts = RunOpts(workspace, mine.asked("do it"), agent=mine, api_key="k", policy=Policy.coding_agent(home))
    assert plan(opts).access(str(home / ".mine")) == "write"
    assert bootstrap(opts)["MY_KEY"] == "k"
    assert "agent='mine'" in repr(opts)


def test_an_unknown_agent_is_an_error_that_lists_the_known(workspace: Workspace) -> None:
    with pytest.raises(PolicyError, match=r"claude, codex, gemini"):
        agent_named("hal")
    with pytest.raises(PolicyError, match="hal"):
        RunOpts(workspace, ["x"], agent="hal")
    with pytest.raises(PolicyError):
        RunOpts(workspace, ["x"], agent=5)  # type: ignore[arg-type]


# A change in what an agent obeys when it starts is seen, whatever it is.


@pytest.fixture
def config(tmp_path: Path) -> Path:
    place = tmp_path / "config"
    (place / "hooks").mkdir(parents=True)
    (place / "settings.json").write_text("{}")
    (place / "hooks/run").write_text("#!/bin/sh\n")
    return place


CHANGES: dict[str, Callable[[Path], object]] = {
    "another text of the same length": lambda place: (place / "settings.json").write_text("[]"),
    "a new file": lambda place: (place / "hooks/new").touch(),
    "a file that went": lambda place: (place / "hooks/run").unlink(),
    "a file that can be run now": lambda place: (place / "hooks/run").chmod(0o755),
    "a link in its place": lambda place: (
        (place / "settings.json").unlink(),
        (place / "settings.json").symlink_to("/dev/null"),
    ),
    "a fifo in its place": lambda place: (
        (place / "settings.json").unlink(),
        os.mkfifo(place / "settings.json"),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_is_seen(config: Path, change: Callable[[Path], object]) -> None:
    before = fingerprint([str(config)])
    change(config)
    assert len(changed_settings(before, fingerprint([str(config)]))) == 1


def test_nothing_is_nothing(config: Path) -> None:
    before = fingerprint([str(config), str(config / "missing")])
    os.utime(config / "settings.json")
    assert changed_settings(before, fingerprint([str(config), str(config / "missing")])) == ()


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_BYTES_IN_ALL"])
def test_what_is_large_is_told_apart_by_size_and_time(
    config: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(agents, limit, 1)
    before = fingerprint([str(config)])
    assert changed_settings(before, fingerprint([str(config)])) == ()
    info = os.stat(config / "settings.json")
    (config / "settings.json").write_text("[]")
    os.utime(config / "settings.json", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert changed_settings(before, fingerprint([str(config)])) == (f"{config}/settings.json",)


STATE = {
    "starts": 1,
    "mcpServers": {},
    "projects": {"/a": {"cost": 3, "mcpServers": {"x": {"command": "x"}}}},
}
HARMLESS = [
    {**STATE, "starts": 2},
    {**STATE, "projects": {**STATE["projects"], "/b": {"cost": 9, "mcpServers": {}}}},  # type: ignore[dict-item]
]
HARMFUL = [
    {**STATE, "mcpServers": {"new": {"command": "sh"}}},
    {**STATE, "projects": {"/a": {"cost": 3, "mcpServers": {"x": {"command": "y"}}}}},
    {**STATE, "projects": {"/b": {"mcpServers": {"x": {"command": "x"}}}}},
    {**STATE, "projects": [{"mcpServers": {"x": {"command": "x"}}}]},
]


@pytest.mark.parametrize(("after", "told"), [*((s, False) for s in HARMLESS), *((s, True) for s in HARMFUL)])
def test_of_state_and_settings_in_one_file_only_the_settings_count(
    tmp_path: Path, after: object, told: bool
) -> None:
    file = tmp_path / "state.json"
    mixed = [(str(file), ("mcpServers",))]
    file.write_text(json.dumps(STATE))
    before = fingerprint([], mixed)
    file.write_text(json.dumps(after, indent=3))
    assert bool(changed_settings(before, fingerprint([], mixed))) is told


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
def test_what_is_no_json_counts_as_a_whole(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text("{}")
    before = fingerprint([], [(str(file), ("x",))])
    file.write_text(text)
    assert changed_settings(before, fingerprint([], [(str(file), ("x",))])) == (str(file),)


def test_links_are_not_followed(config: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (config / "link").symlink_to(tmp_path / "elsewhere")
    before = fingerprint([str(config)])
    (tmp_path / "elsewhere/new").touch()
    assert changed_settings(before, fingerprint([str(config)])) == ()
