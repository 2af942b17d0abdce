"""docs/coding-agents.md names the agents, ways and weaknesses that the code has."""

from __future__ import annotations

import pytest

from staddle.agents.table import CODING_AGENTS
from tests.docs.test_facts import code, rows

pytestmark = pytest.mark.same_for_everyone


def test_agents_ways_and_what_stays_outside() -> None:
    table = [
        (code(row[0])[0], code(row[1])[0], row[2] == "closed", row[3])
        for row in rows("coding-agents.md", "agent")
    ]
    assert table == [
        (agent.name, name, way.closed, way.outside)
        for agent in CODING_AGENTS.values()
        for name, way in agent.ways.items()
    ]


def test_every_way_is_compared() -> None:
    ways = {name for agent in CODING_AGENTS.values() for name in agent.ways}
    assert {code(row[0])[0] for row in rows("coding-agents.md", "way")} == ways
