"""The watch of memory without control groups: when it looks again."""

from __future__ import annotations

import pytest

from staddle.limits import memory_watch
from staddle.limits.memory_watch import MemoryWatch, _MemoryWatches


class _Slow(MemoryWatch):
    """A sandbox with so many open files that a look at it takes long."""

    def __init__(self, takes: float, clock: list[float]) -> None:
        super().__init__(1 << 30, lambda: 0, tuple)
        self._takes, self._clock = takes, clock

    def look(self) -> float:
        self._clock[0] += self._takes
        return 0.0


@pytest.mark.parametrize(("takes", "blind"), [(0.001, 0.02), (0.1, 0.5), (5.0, 1.0)])
def test_a_look_that_takes_long_is_soon_taken_again(
    monkeypatch: pytest.MonkeyPatch, takes: float, blind: float
) -> None:
    clock = [100.0]
    monkeypatch.setattr(memory_watch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(memory_watch.memory, "available", lambda age=0: 0)
    watches = _MemoryWatches()
    watches._several.append(_Slow(takes, clock))
    assert watches._look() == pytest.approx(blind)


def test_one_that_is_being_closed_does_not_keep_the_others_from_being_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_watch.memory, "available", lambda age=0: 0)
    clock, watches = [0.0], _MemoryWatches()
    broken = _Slow(0, clock)
    monkeypatch.setattr(broken, "look", lambda: 1 / 0)
    watches._several += [broken, _Slow(7, clock)]
    assert watches._look() is not None
    assert clock == [7]


def test_nothing_is_looked_at_while_the_host_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch.memory, "available", lambda age=0: 4 << 30)
    clock, watches = [0.0], _MemoryWatches()
    watches._several.append(_Slow(7, clock))
    assert watches._look() is not None
    assert clock == [0]
