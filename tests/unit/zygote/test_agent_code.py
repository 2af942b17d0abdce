"""The agent's code is small, whole, and comes over the line."""

from __future__ import annotations

import marshal

from staddle.zygote import plain
from tests.unit.test_imports import HEAVY, loaded_by


def test_the_agent_stays_light() -> None:
    loaded = loaded_by("import staddle.zygote.agent, staddle.zygote.plain")
    assert sorted(loaded & {*HEAVY, "enum", "signal", "socket", "threading"}) == []


def test_the_code_that_is_sent_is_all_that_is_needed() -> None:
    sent = {name for name, _, _ in marshal.loads(plain.code())}  # noqa: S302 - our own
    loaded = loaded_by("import staddle.zygote.agent, staddle.zygote.plain")
    assert {name for name in loaded if name.partition(".")[0] == "staddle"} <= sent


def test_the_command_line_shows_nothing_of_ours() -> None:
    assert "/src/" not in " ".join(plain.command())
    assert plain.command()[1:4] == ("-I", "-S", "-c")
