"""A meter does not read /proc after a command that was too short to start a process."""

from __future__ import annotations

import pytest

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


def test_a_command_that_is_too_short_to_fork_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(monkeypatch)
    assert shell.runs(microseconds=149) == (False, 0)
    assert shell.runs(microseconds=151) == (True, 0)
    assert shell.runs(microseconds=600, forks=True) == (True, 1)
