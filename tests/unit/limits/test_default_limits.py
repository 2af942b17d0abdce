"""Limits that a policy leaves to the host: a part of what the host has, and never a refusal."""

from __future__ import annotations

import os

import pytest

from staddle.limits import enforced
from staddle.limits.cgroup_layout import CgroupParent, CgroupSupport
from staddle.limits.enforced import OF_SESSION, asked, enforced_defaults, enforced_limits, rlimits, stand_ins
from staddle.limits.usage import Events, ran_into
from staddle.policy.limits import Limits

GROUPS = CgroupSupport((CgroupParent(2, "/x", frozenset({"memory", "cpu", "pids"})),))
NONE = CgroupSupport(())


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
