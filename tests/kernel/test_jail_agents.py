"""Agents by name in a real jail: a stand-in with the same paths finds what its row promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.jail.agents import AGENTS
from staddle.jail.jail import RunOpts, new_jail
from staddle.jail.workspace import Workspace
from tests.support.git_plants import World
from tests.support.jail_runs import BACKENDS, make_world

#: Landlock makes no view: the home is a directory elsewhere, without anybody's configuration.
WITH_A_HOME = [name for name in BACKENDS if name != "landlock"]
#: Says what it was asked and given, writes down that it was here, and looks at the others.
STAND_IN = """#!/bin/bash
echo "asked: ${@: -1}"
key=${!KEY_NAME}; echo "key: ${key%%-key} and -key"  # whole, it would be hidden
for place in $WRITE; do test -d ~/$place && echo session > ~/$place/session && echo "wrote $place"; done
for place in $READ; do test -e ~/$place && echo "sees $place"; done
for place in $READ; do touch ~/$place/new 2> /dev/null && echo "wrote $place"; done
for place in $OTHERS; do test -e ~/$place && echo "sees $place of another"; done
cat ~/.ssh/id
echo fresh > ~/note
exit 0
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = make_world(tmp_path, monkeypatch)
    home = tmp_path / "home"
    for agent in AGENTS.values():
        for path in (*agent.write, *agent.read):
            if not path.endswith((".json", ".yml")):
                (home / path.removeprefix("~/")).mkdir(parents=True, exist_ok=True)
    (home / ".local/bin").mkdir(parents=True, exist_ok=True)
    return made


@pytest.mark.parametrize("backend", WITH_A_HOME)
@pytest.mark.parametrize("name", AGENTS)
def test_it_finds_its_own_home_and_nobody_elses(world: World, backend: str, name: str) -> None:
    agent = AGENTS[name]
    home = Path(os.environ["HOME"])
    program = home / ".local/bin" / agent.command[0]
    program.write_text(STAND_IN)
    program.chmod(0o755)
    write, read = (
        [path[2:] for path in paths if (home / path[2:]).is_dir()] for paths in (agent.write, agent.read)
    )
    others = [
        path[2:]
        for other in AGENTS.values()
        for path in other.write
        if path not in (*agent.write, *agent.read)
    ]
    env = [f"KEY_NAME={agent.key}", f"WRITE={' '.join(write)}", f"READ={' '.join(read)}"]
    opts = RunOpts(
        Workspace.create(str(world.repository)),
        agent.asked("fix $(id) it"),
        env=[*env, f"OTHERS={' '.join(others)}"],
        api_key="sk-the-key",
        timeout=60,
        agent=name,
    )
    said = new_jail(backend).run_capture(opts).decode().splitlines()
    assert said[0].endswith("fix $(id) it")
    assert said[1:] == [
        "key: sk-the and -key",
        *(f"wrote {place}" for place in write),
        *(f"sees {place}" for place in read),
    ]
    for place in write:
        assert (home / place / "session").read_text() == "session\n"
    assert not (home / "note").exists()
    told = opts.workspace.journal()[-1].facts["violations"]
    obeyed = [f"~/{place}" for place in write if f"~/{place}" in agent.obeyed]
    assert len(told) == len(obeyed)  # a row whose whole directory is obeyed says so


@pytest.mark.parametrize("backend", WITH_A_HOME)
def test_a_hook_that_it_leaves_for_the_users_own_agent_is_told(world: World, backend: str) -> None:
    settings = Path(os.environ["HOME"], ".claude/settings.json")
    script = "echo '{\"hooks\": {}}' > ~/.claude/settings.json; echo x > ~/.claude/history.jsonl"
    opts = RunOpts(
        Workspace.create(str(world.repository)), ["bash", "-c", script], timeout=60, agent="claude"
    )
    with new_jail(backend).prepare(opts) as run:
        run.ended(run.command.run().returncode)
    assert [event.what for event in run.events] == [str(settings)]
