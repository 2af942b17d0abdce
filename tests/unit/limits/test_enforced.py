"""Every limit that was asked for is held by something, or it is said why not."""

from __future__ import annotations

import os

import pytest

from staddle import Limits
from staddle.limits import enforced
from staddle.limits.cgroup_layout import CgroupFacts, CgroupParent, CgroupSupport, Hierarchy, decide
from staddle.limits.enforced import (
    OF_SESSION,
    RESERVE,
    RLIMIT_DATA,
    RLIMIT_NPROC,
    asked,
    enforced_defaults,
    enforced_limits,
    rlimits,
    stand_ins,
)
from staddle.limits.usage import Events, ran_into

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


# Limits that a policy leaves to the host: a part of what the host has, and never a refusal.


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforced, "available", lambda: 8 << 30)


@pytest.mark.usefixtures("available")
def test_memory_is_half_of_what_is_available() -> None:
    assert enforced.fill_in(Limits()).memory == 4 << 30


@pytest.mark.usefixtures("available")
def test_what_is_said_is_left_as_it_is() -> None:
    filled = enforced.fill_in(Limits(memory="1G", processes=None), "/")
    assert (filled.memory, filled.processes) == (1 << 30, None)
    assert filled.defaults == ("disk",)
    assert filled.disk
    assert enforced.fill_in(Limits.none()) == Limits.none()


def test_however_little_there_is_a_shell_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforced, "available", lambda: 0)
    assert enforced.default_memory() == enforced.LEAST_MEMORY


def test_processes_are_at_most_4096() -> None:
    assert enforced.LEAST_PROCESSES <= enforced.default_processes() <= 4096


def test_half_of_the_processes_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 1000))
    monkeypatch.setattr(enforced, "ancestors", lambda controller: iter(()))
    monkeypatch.setattr(enforced, "_known", {})
    assert enforced.default_processes() == 500


@pytest.mark.usefixtures("available")
def test_disk_is_a_quarter_and_on_a_disk_at_most_10_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs("/")
    for memory, blocks, expected in (
        (False, 1 << 30, 10 << 30),
        (False, 1 << 20, 1 << 30),
        (True, 1 << 30, 2 << 30),
    ):
        monkeypatch.setattr(enforced, "in_memory", lambda place, memory=memory: memory)
        made = os.statvfs_result((4096, 4096, 0, 0, blocks, *status[5:]))
        monkeypatch.setattr(os, "statvfs", lambda place, made=made: made)
        assert enforced.default_disk("/x") == expected


def test_a_default_needs_no_cgroup_and_refuses_nothing() -> None:
    assert not asked(Limits())
    assert list(rlimits(enforced.fill_in(Limits()), NONE)) == []
    assert enforced_limits(Limits(), NONE, inside=False, layer="none")[1] == ()


def test_what_holds_a_default_is_told() -> None:
    holds, gaps = enforced_defaults(Limits(), NONE, by=OF_SESSION, layer="directory")
    assert [item.limit for item in holds] == ["memory", "processes", "disk"]
    assert all(item.default for item in holds)
    assert gaps == ()
    holds, _ = enforced_defaults(Limits(), GROUPS, by={})
    assert [(item.limit, item.by) for item in holds] == [
        ("memory", "a control group (version 2)"),
        ("processes", "a control group (version 2)"),
    ]


def test_one_that_nothing_holds_is_a_declared_gap() -> None:
    holds, gaps = enforced_defaults(Limits(), NONE, by={})
    assert holds == ()
    assert [gap.protection for gap in gaps] == ["limits.memory", "limits.processes", "limits.disk"]
    assert all(gap.documented and gap.why and gap.fix for gap in gaps)
    assert enforced_defaults(Limits.none(), NONE, by={}) == ((), ())


def test_the_agent_of_a_session_watches_no_default() -> None:
    _, memory, processes = stand_ins(Limits())
    assert (memory, processes) == (0, 0)


@pytest.mark.parametrize("name", ["memory", "processes", "disk"])
def test_a_command_is_told_that_it_is_a_default_and_how_to_raise_it(name: str) -> None:
    events = {"memory": Events(1, 0), "processes": Events(0, 1), "disk": Events()}[name]
    for limits, expected in (
        (Limits.none(**{name: 1 << 20}), False),
        (Limits().replace(**{name: 1 << 20}, defaults=(name,)), True),
    ):
        found = ran_into(limits, 137, Events(), events, full=name == "disk")
        assert found is not None
        assert found.limit == name
        assert f"limits.{name}" in found.sentence
        assert ("default" in found.sentence and "None for no limit" in found.sentence) is expected
