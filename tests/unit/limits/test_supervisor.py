"""Who has to go when memory is short: decided from a sample."""

from __future__ import annotations

import time
from typing import Any

import pytest

from staddle.limits import supervisor
from staddle.limits.supervisor import MemoryAction, Sample, Supervisor, judge

MB = 1 << 20


def sample(*sizes: int, shared: int = 0, exact: bool = True) -> Sample:
    return Sample(tuple((10 + at, size * MB) for at, size in enumerate(sizes)), shared * MB, exact)


def test_below_the_limit_nobody_goes() -> None:
    step = judge(sample(30, 30, shared=30), 100 * MB)
    assert (step.kill, step.closer) == ((), False)


@pytest.mark.parametrize(
    ("held", "shells", "victims"),
    [
        pytest.param(sample(100), set(), (), id="nobody at the limit itself"),
        pytest.param(sample(10, 200, 30), set(), (11,), id="the largest"),
        pytest.param(sample(60, 50), set(), (10,), id="the largest of two"),
        pytest.param(sample(80, 70, 60, 5), set(), (10, 11), id="as many as are needed"),
        pytest.param(sample(40, 40, 40, 40), set(), (10, 11), id="as many of equals"),
        pytest.param(sample(5, 40, 80), {10}, (12,), id="not a shell that waits"),
        pytest.param(sample(5, 1, shared=200), {10}, (11,), id="not a shell beside files in memory"),
        pytest.param(sample(150, 1), {10}, (10,), id="a shell that takes the memory itself"),
    ],
)
def test_these_go(held: Sample, shells: set[int], victims: tuple[int, ...]) -> None:
    assert judge(held, 100 * MB, shells=shells).kill == victims


def test_an_upper_bound_above_it_is_only_a_reason_to_look_closer() -> None:
    assert judge(sample(90, 90, exact=False), 100 * MB) == MemoryAction(closer=True)


def test_files_in_memory_that_take_it_all_end_whoever_could_write_more() -> None:
    assert set(judge(sample(1, 2, 3, shared=101), 100 * MB).kill) == {10, 11, 12}


def test_the_nearer_the_limit_the_sooner_the_next_look() -> None:
    far, near, at = (judge(sample(size), 1000 * MB, cores=2).again for size in (1, 900, 1000))
    assert 0.25 >= far > near > at > 0


def test_rest_makes_looks_rarer_but_never_rare() -> None:
    moving, resting = (judge(sample(900), 1000 * MB, resting=still).again for still in (False, True))
    assert moving < resting <= 0.25


def _busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize(("take", "blind"), [(time.sleep, 0.1), (_busy, 1.01)])
def test_open_files_that_take_long_to_look_at_are_looked_at_again_soon(
    monkeypatch: pytest.MonkeyPatch, take: Any, blind: float
) -> None:
    """Waiting for a processor is no reason to look later, and many descriptors are a short one."""
    looks = []

    class SlowFiles:
        def __init__(self, pids: list[int]) -> None:
            take(0.1)
            looks.append(pids)

        def memory(self, device: int, largest: int) -> tuple[int, int]:
            return 0, largest

    monkeypatch.setattr(supervisor, "OpenFiles", SlowFiles)
    watch = Supervisor(100 * MB, None, [], pids=list)
    for now in (0, 0.04, blind):
        watch.turn(now)
    assert len(looks) == 2
