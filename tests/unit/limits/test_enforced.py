"""Every limit that was asked for is held by something, or it is said why not."""

from __future__ import annotations

import pytest

from staddle import Limits
from staddle.limits.cgroup_layout import CgroupFacts, CgroupParent, CgroupSupport, Hierarchy, decide
from staddle.limits.enforced import RESERVE, RLIMIT_DATA, RLIMIT_NPROC, enforced_limits, rlimits

EVERYTHING = Limits(
    timeout=1,
    memory="1G",
    cpu=1,
    processes=64,
    output="1M",
    file_size="1G",
    disk="1G",
    open_files=256,
    max_lifetime=60,
    idle=30,
)
GROUPS = CgroupSupport((CgroupParent(2, "/x", frozenset({"memory", "cpu", "pids"})),))
NONE = decide(CgroupFacts(()))


def test_with_control_groups_all_of_them_hold_exactly() -> None:
    holds, gaps = enforced_limits(EVERYTHING, GROUPS, inside=True, layer="memory")
    assert gaps == ()
    assert {item.limit for item in holds} == set(Limits._fields) - {"defaults"}
    assert all(item.exact for item in holds)
    assert next(item.by for item in holds if item.limit == "memory") == "a control group (version 2)"


def test_without_them_a_process_of_ours_stands_in_for_all_but_parts_of_a_processor() -> None:
    holds, gaps = enforced_limits(EVERYTHING.replace(cpu=0.5), NONE, inside=True, layer="memory")
    assert [gap.protection for gap in gaps] == ["limits.cpu"]
    assert "a whole number of cores" in gaps[0].fix
    by = {item.limit: item for item in holds}
    assert "supervisor" in by["memory"].by
    assert not by["memory"].exact
    assert "RLIMIT_NPROC" in by["processes"].by


def test_without_them_whole_processors_are_held_by_being_on_no_others() -> None:
    holds, gaps = enforced_limits(Limits(cpu=1), NONE, inside=True, layer="memory")
    assert not gaps
    assert "CPU affinity" in next(item.by for item in holds if item.limit == "cpu")


def test_without_either_there_are_gaps_that_say_why() -> None:
    _, gaps = enforced_limits(EVERYTHING, NONE, inside=False, layer="none")
    assert {gap.protection for gap in gaps} == {
        f"limits.{name}" for name in ("memory", "cpu", "processes", "disk")
    }
    assert all(gap.why and gap.fix and not gap.documented for gap in gaps)


def test_what_was_not_asked_for_is_neither() -> None:
    holds, gaps = enforced_limits(Limits(timeout=None, output=None), NONE, inside=False, layer="none")
    assert (holds, gaps) == ((), ())


@pytest.mark.parametrize(("layer", "exact"), [("memory", True), ("directory", False)])
def test_disk_is_held_where_the_layer_is_ours(layer: str, exact: bool) -> None:
    holds, gaps = enforced_limits(Limits(disk="1G"), NONE, inside=True, layer=layer)  # type: ignore[arg-type]
    assert gaps == ()
    assert next(item for item in holds if item.limit == "disk").exact is exact


def test_a_gap_has_the_hosts_own_reason() -> None:
    read_only = Hierarchy(2, frozenset({"cpu"}), "/x", writable=True, read_only=True)
    _, gaps = enforced_limits(Limits(cpu=0.5), decide(CgroupFacts((read_only,))), inside=True, layer="memory")
    assert "read-only" in gaps[0].why


def test_resource_limits_stand_in_only_where_no_group_does() -> None:
    assert list(rlimits(EVERYTHING, GROUPS)) == []
    assert list(rlimits(Limits(), NONE)) == []
    assert {number: value for _, number, value in rlimits(EVERYTHING, NONE)} == {
        RLIMIT_DATA: RESERVE << 30,
        RLIMIT_NPROC: 64,
    }
