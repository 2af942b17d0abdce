"""docs/agent-settings.md names the agents, ways and weaknesses that the code has."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from staddle.agents.install import home_of, plan
from staddle.agents.table import CODING_AGENTS, codex_program
from tests.docs.test_facts import TREE, code, rows, text

pytestmark = pytest.mark.same_for_everyone


def test_agents_ways_and_what_stays_outside() -> None:
    table = [
        (code(row[0])[0], code(row[1])[0], row[2] == "closed", row[3])
        for row in rows("agent-settings.md", "agent")
    ]
    assert table == [
        (agent.name, name, way.closed, way.outside)
        for agent in CODING_AGENTS.values()
        for name, way in agent.ways.items()
    ]


def test_every_way_is_compared() -> None:
    ways = {name for agent in CODING_AGENTS.values() for name in agent.ways}
    assert {code(row[0])[0] for row in rows("agent-settings.md", "way")} == ways


def test_results_of_the_agents_have_pages() -> None:
    sys.path.insert(0, str(TREE / "scripts"))
    try:
        import agent_results
    finally:
        sys.path.pop(0)
    for name in (agent_results.WHOLE_RUN, agent_results.CONFORMANCE):
        assert agent_results.BEGIN in (agent_results.DOCS / name).read_text()


def test_the_settings_to_paste_are_those_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting of the code is on the page, and the page has no other."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    page = text("agent-settings.md")
    written = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    written += re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    installed: list[object] = []
    for agent in CODING_AGENTS.values():
        for name, way in agent.ways.items():
            for change in plan(agent, name).changes if way.edits else ():
                places = {home_of(agent.name): "SHIMS", sys.executable: "PYTHON"}
                said = change.after.decode() if change.merge is None else json.dumps(change.merge)
                for path, word in places.items():
                    said = said.replace(path, word)
                said = said.replace(f"exec {codex_program() or 'codex'}", "exec CODEX")
                installed.append(said if change.merge is None else json.loads(said))
                assert f"`{change.path.replace(str(tmp_path), '~')}`" in page
    assert sorted(map(str, written)) == sorted(map(str, installed))


def test_reasons_why_something_was_not_run_are_on_the_page() -> None:
    page = text("agent-settings.md")
    for agent in CODING_AGENTS.values():
        for way in agent.ways.values():
            assert way.untried in page
