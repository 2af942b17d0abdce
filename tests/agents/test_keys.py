"""`staddle NAME` with real agents, whose key stays outside: their model has TLS, and sees the key."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile

import pytest

from staddle.agents.scripted_model import ScriptedModel
from staddle.files.remove_tree import remove
from tests.support.egress_world import World, on_a_host

from .conftest import PATIENCE, STADDLE, Bench

KEY = "real" * 20 + "the-end-of-the-key-1"


def works_without_its_key(
    world: World, name: str, variable: str, begin: str, header: str, *words: str
) -> None:
    """The agent prints its variables by a command, and its conversation goes on."""
    bench, key = Bench(world.directory), begin + KEY
    state = tempfile.mkdtemp(prefix="staddle-kept-", dir="/var/tmp")
    os.chmod(state, 0o711)
    bench.environment |= {variable: key, "XDG_STATE_HOME": state}
    subprocess.run(["git", "init", "-q"], cwd=bench.project, env=bench.environment, check=True)
    try:
        with ScriptedModel(["env; echo confined=$STADDLE_SANDBOX", "echo second"]) as model:
            (world.directory / "model").write_text(model.url.rpartition(":")[2])
            done = subprocess.run(
                [*STADDLE, name, "--no-redact", "--", *words],
                cwd=bench.project,
                env=bench.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=PATIENCE,
                check=False,
            )
            seen = [
                {name.lower(): value for name, value in each["headers"].items()} for each in world.requests()
            ]
            found = done.stdout, model.results, model.missing, world.requests()[-3:]
            assert done.returncode == 0, found
            assert f"your {variable} stays outside" in done.stdout
            assert len(model.results) > 1, found
            assert "confined=1" in model.results[0], found
            assert "second" in model.results[1], found
            assert key not in json.dumps(model.results)
            assert f"{variable}={begin}" in model.results[0], found
            assert any(key in each.get(header, "") for each in seen), seen
    finally:
        remove((os.fsencode(state),))


@pytest.mark.row("claude", "inside", "`staddle claude` with ANTHROPIC_API_KEY outside")
@on_a_host
def test_claude(world: World) -> None:
    words = ("-p", "go", "--dangerously-skip-permissions", "--model", "claude-sonnet-4-5")
    works_without_its_key(world, "claude", "ANTHROPIC_API_KEY", "sk-ant-api03-", "x-api-key", *words)


@pytest.mark.row("codex", "inside", "`staddle codex` with CODEX_API_KEY outside")
@on_a_host
def test_codex(world: World) -> None:
    words = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    works_without_its_key(
        world, "codex", "CODEX_API_KEY", "sk-", "authorization", *words, "-m", "scripted", "go"
    )


@pytest.mark.row("gemini", "inside", "`staddle gemini` with GEMINI_API_KEY outside")
@on_a_host
def test_gemini(world: World) -> None:
    words = ("-p", "go", "--yolo", "-m", "gemini-2.5-flash")
    works_without_its_key(world, "gemini", "GEMINI_API_KEY", "AIza", "x-goog-api-key", *words)


@pytest.mark.row("opencode", "inside", "`staddle opencode` with ANTHROPIC_API_KEY outside")
@on_a_host
def test_opencode(world: World) -> None:
    words = ("run", "-m", "anthropic/claude-sonnet-4-5", "go")
    works_without_its_key(world, "opencode", "ANTHROPIC_API_KEY", "sk-ant-api03-", "x-api-key", *words)
