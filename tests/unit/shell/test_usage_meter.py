"""How a meter knows that a command has started no process, without looking."""

from __future__ import annotations

import os

import pytest

from staddle.limits.memory_samples import SAMPLER
from staddle.limits.usage import ProcessMeter, ProcSample
from staddle.shell.command import Outcome
from staddle.shell.usage_meter import SandboxMeter, UsageMeter


class Agent:
    """Has started one process more each time it is asked."""

    def __init__(self) -> None:
        self.started = 0

    def count(self, *, whole: bool = False) -> tuple[int, ...]:
        self.started += 1
        return (0, 0, 0, 0, 0, self.started)


class Shell:
    """A shell with a meter. `faults` are those of the processes that it has waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        agent = Agent()
        self.meter = UsageMeter(SandboxMeter(agent, None), agent, None)  # type: ignore[arg-type]
        self._looks = self._faults = 0
        monkeypatch.setattr(ProcessMeter, "now", self._look)

    def _look(self, _: object = None) -> ProcSample:
        self._looks += 1
        return ProcSample(0.0, 0.0, 0, 0, self._faults)

    def runs(self, *, microseconds: int, forks: bool = False) -> tuple[bool, int | None]:
        """(whether it was looked at the shell at the end of such a command, how many processes it had)."""
        self.meter.begin()
        looks, self._faults = self._looks, self._faults + forks
        outcome = Outcome(0, None, "exited", False, microseconds / 1e6, "/", None)
        self.meter.end(outcome)
        assert outcome.usage is not None
        return self._looks > looks, outcome.usage.processes


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


def test_a_command_that_is_too_short_to_fork_is_not_looked_at(shell: Shell) -> None:
    assert shell.runs(microseconds=149) == (False, 0)
    assert shell.runs(microseconds=600, forks=True) == (True, 1)


def test_on_a_slow_machine_more_is_too_short(shell: Shell) -> None:
    assert shell.runs(microseconds=300) == (True, 0)
    assert shell.runs(microseconds=200) == (True, 0), "none was quicker yet: it may be as quick to fork"
    assert shell.runs(microseconds=200) == (False, 0)
    assert shell.runs(microseconds=499) == (False, 0)
    assert shell.runs(microseconds=500, forks=True) == (True, 1)
    assert shell.runs(microseconds=140) == (False, 0)
    assert shell.runs(microseconds=430, forks=True) == (True, 1), "it is not so slow"


def test_what_forks_is_no_measure_of_what_does_not(shell: Shell) -> None:
    for microseconds in (200, 400, 300):
        assert shell.runs(microseconds=microseconds, forks=True) == (True, 1)


def test_what_the_sampler_sees_of_a_command_that_has_ended_is_not_the_next_ones(shell: Shell) -> None:
    pid = os.getpid()
    seen = []
    for _ in range(2):
        shell.meter.begin(pid)
        seen.append(SAMPLER.running[pid])
        shell.meter.end(Outcome(0, None, "exited", False, 0.0001, "/", None))
    assert seen[0] is not seen[1], "the sampler may write into it after its end"
    assert pid not in SAMPLER.running
