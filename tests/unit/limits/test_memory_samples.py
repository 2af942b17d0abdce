"""The sampler of memory looks at commands that last, and only at them."""

from __future__ import annotations

import pytest

from staddle.limits import memory_samples
from staddle.limits.memory_samples import MemorySampler, SampledCommand
from tests.support.waiting import until


def test_a_command_is_looked_at_from_the_second_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, command, looked_at = MemorySampler(), SampledCommand(), []

    def look(shell: int) -> int:
        looked_at.append((shell, command.peak))
        return 5 - len(looked_at)

    monkeypatch.setattr(memory_samples, "_TURN", 0.001)
    monkeypatch.setattr(memory_samples, "peak_of_tree", look)
    sampler.running[77] = command
    sampler.wake()
    assert until(lambda: len(looked_at) > 3)
    assert looked_at[:3] == [(77, 0), (77, 4), (77, 4)]
    del sampler.running[77]
    assert until(lambda: not sampler.is_awake)
    assert command.peak == 4
