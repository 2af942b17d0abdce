"""Which file of a group says what, for both versions."""

from __future__ import annotations

import pytest

from staddle import Limits
from staddle.limits import cgroup_layout
from staddle.limits.cgroup_layout import CgroupSetting, CounterFile


def written(limits: Limits, version: int, **more: bool) -> dict[str, str]:
    return {item.file: item.text for item in cgroup_layout.settings(limits, version, **more)}  # type: ignore[arg-type]


def test_nothing_asked_is_nothing_written() -> None:
    assert written(Limits(), 1) == written(Limits(), 2) == {}


@pytest.mark.parametrize(
    ("limits", "first", "second"),
    [
        (
            Limits(memory="64M"),
            {
                "memory.limit_in_bytes": "67108864",
                "memory.memsw.limit_in_bytes": "67108864",
                "memory.swappiness": "0",
                "memory.kmem.tcp.limit_in_bytes": "67108864",
            },
            {"memory.max": "67108864", "memory.swap.max": "0"},
        ),
        (
            Limits(cpu=1.5),
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"},
            {"cpu.max": "150000 100000"},
        ),
        (Limits(processes=64), {"pids.max": "64"}, {"pids.max": "64"}),
    ],
)
def test_each_limit_has_its_files(limits: Limits, first: dict[str, str], second: dict[str, str]) -> None:
    assert written(limits, 1) == first
    assert written(limits, 2) == second


def test_the_least_share_of_a_processor_is_one_that_the_kernel_takes() -> None:
    quota, period = map(int, written(Limits(cpu=0.01), 2)["cpu.max"].split())
    assert quota / period == pytest.approx(0.01)
    assert quota >= 1000


def test_all_go_together_only_when_asked() -> None:
    assert "memory.oom.group" not in written(Limits(memory=1 << 20), 2)
    assert written(Limits(memory=1 << 20), 2, together=True)["memory.oom.group"] == "1"


def test_the_limit_itself_is_needed_and_swap_is_not_everywhere() -> None:
    needed = {item.file for item in cgroup_layout.settings(Limits(memory=1 << 20), 1) if item.needed}
    assert needed == {"memory.limit_in_bytes"}
    assert CgroupSetting("pids", "pids.max", "3") in set(
        cgroup_layout.settings(Limits(processes=2), 2, ours=1)
    )


@pytest.mark.parametrize(
    ("source", "text", "number"),
    [
        (CounterFile("memory", "memory.peak"), "4096\n", 4096),
        (CounterFile("pids", "pids.max"), "max\n", None),
        (CounterFile("memory", "memory.events", "oom_kill"), "oom 3\noom_kill 2\n", 2),
        (CounterFile("memory", "memory.events", "oom_kill"), "oom 3\n", None),
        (CounterFile("memory", "memory.events", "oom_kill"), "", None),
    ],
)
def test_numbers_are_found(source: CounterFile, text: str, number: int | None) -> None:
    assert cgroup_layout.number(source, text) == number
