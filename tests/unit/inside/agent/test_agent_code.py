"""The agent's code is small, whole, and comes over the line."""

from __future__ import annotations

import marshal

from staddle.inside.agent import standalone
from tests.unit.test_imports import HEAVY, loaded_by


def test_the_agent_stays_light() -> None:
    loaded = loaded_by("import staddle.inside.agent.agent, staddle.inside.agent.standalone")
    assert sorted(loaded & {*HEAVY, "enum", "signal", "socket", "threading"}) == []


def test_the_code_that_is_sent_is_all_that_is_needed() -> None:
    sent = {name for name, _, _ in marshal.loads(standalone.code())[1]}  # noqa: S302 - our own
    loaded = loaded_by("import staddle.inside.agent.agent, staddle.inside.agent.standalone")
    assert {name for name in loaded if name.partition(".")[0] == "staddle"} <= sent


def test_the_command_line_shows_nothing_of_ours() -> None:
    assert "/src/" not in " ".join(standalone.command())
    assert standalone.command()[1:4] == ("-I", "-S", "-c")
