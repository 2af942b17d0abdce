"""`staddle claude` and the key of its model: a placeholder inside, the key in requests to the model.

The agent is a script, the model a server with TLS on the made-up host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from staddle.files.remove_tree import remove
from tests.support.egress_world import GATEWAY, MODEL, PLAIN, World, on_a_host

KEY = "sk-ant-api03-" + "real" * 20 + "the-end-of-the-key-1"
#: Runs its last argument. Options of the real agent come before it.
AGENT = '#!/bin/bash\nexec bash -c "${!#}"\n'
ASK = 'curl -sSf -H "x-api-key: $ANTHROPIC_API_KEY" '


class Desk:
    """A home with an agent in it, and a project."""

    def __init__(self, world: World, state: str) -> None:
        self.state = state
        self.world, self.home = world, world.directory / "home"
        self.project = self.home / "app"
        self.project.mkdir(parents=True)
        (self.home / "bin").mkdir()
        for name in ("claude", "aider"):
            (self.home / "bin" / name).write_text(AGENT)
            (self.home / "bin" / name).chmod(0o755)

    def run(self, *words: str, name: str = "claude", **env: str) -> str:
        """What the agent prints, with all that staddle says."""
        usual = {"HOME": str(self.home), "PATH": f"{self.home}/bin:{os.environ['PATH']}"}
        usual |= {"XDG_STATE_HOME": self.state, "ANTHROPIC_API_KEY": KEY}
        done = subprocess.run(
            [sys.executable, "-m", "staddle", name, "--no-redact", *words],
            cwd=self.project,
            env={**{key: each for key, each in os.environ.items() if "CA_" not in key}, **usual, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def last(self) -> dict[str, Any]:
        """The headers of the last request."""
        return {name.lower(): value for name, value in self.world.requests()[-1]["headers"].items()}


@contextmanager
def at_a_desk(world: World) -> Iterator[Desk]:
    """A desk. The sandboxes of root, which are another user's, are kept where everybody may pass."""
    state = tempfile.mkdtemp(prefix="staddle-kept-", dir="/var/tmp")
    os.chmod(state, 0o711)
    try:
        yield Desk(world, state)
    finally:
        remove((os.fsencode(state),))


@pytest.mark.slow
@on_a_host
def test_the_model_gets_the_key_and_the_agent_a_placeholder(world: World) -> None:
    with at_a_desk(world) as desk:
        look = "env; cat /proc/*/environ ~/.claude.json 2>/dev/null; "
        (desk.home / ".claude.json").write_text(
            json.dumps({"customApiKeyResponses": {"approved": [KEY[-20:]]}, "theme": "dark"})
        )
        said = desk.run(f'{look}{ASK}-d "$(env)" https://{MODEL}/v1/messages')
        assert "your ANTHROPIC_API_KEY stays outside: requests to api.anthropic.com get it" in said
        assert desk.last()["x-api-key"] == KEY
        assert KEY not in said, "neither the agent nor the server's echo shows the key"
        assert KEY[-20:] not in said
        held = next(line for line in said.splitlines() if line.startswith("ANTHROPIC_API_KEY="))
        assert held.startswith("ANTHROPIC_API_KEY=sk-ant-api03-")
        assert f'"{held[-20:]}"' in said, "the agent is told that its placeholder is approved"
        desk.run("--allow", PLAIN, f"{ASK}https://{PLAIN}/x")
        assert desk.last()["x-api-key"].startswith("sk-ant-api03-")
        assert KEY not in json.dumps(world.requests()[-1])
        assert KEY in desk.run("--key-inside", "env")  # the control


@pytest.mark.slow
@on_a_host
def test_what_the_agent_remembers_brings_no_key_in_later(world: World) -> None:
    with at_a_desk(world) as desk:
        held = '{\\"approved\\": [\\"${ANTHROPIC_API_KEY: -20}\\"]}'
        desk.run(
            f'echo "{{\\"customApiKeyResponses\\": {held}, \\"userID\\": \\"$ANTHROPIC_API_KEY\\", '
            '\\"theme\\": \\"dark\\"}" > ~/.claude.json'
        )
        state = json.loads((desk.home / ".claude.json").read_text())
        assert state == {"customApiKeyResponses": {"approved": [KEY[-20:]]}, "theme": "dark"}
        assert KEY[-20:] not in desk.run("cat ~/.claude.json")


@pytest.mark.slow
@on_a_host
def test_the_address_of_another_model_gets_the_key(world: World) -> None:
    with at_a_desk(world) as desk:
        said = desk.run(f"env; {ASK}https://{GATEWAY}/v1", ANTHROPIC_BASE_URL=f"https://{GATEWAY}/v1")
        assert f"stays outside: requests to {GATEWAY} get it" in said
        assert desk.last()["x-api-key"] == KEY
        assert KEY not in said
        said = desk.run("env", ANTHROPIC_BASE_URL=f"http://{GATEWAY}")
        assert "your ANTHROPIC_API_KEY is inside: ANTHROPIC_BASE_URL is not https" in said
        assert KEY in said


@pytest.mark.slow
@on_a_host
def test_every_key_of_an_agent_stays_outside(world: World) -> None:
    others = {"OPENAI_API_KEY": "sk-the-key-of-openai", "DEEPSEEK_API_KEY": "sk-the-key-of-deepseek"}
    with at_a_desk(world) as desk:
        said = desk.run("env", name="aider", **others)
    for name, value in {"ANTHROPIC_API_KEY": KEY, **others}.items():
        assert f"your {name} stays outside" in said
        assert value not in said
