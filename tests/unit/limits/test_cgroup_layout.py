"""Which control groups are used on which kind of host: a table, no kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle import Limits
from staddle.limits import cgroup_layout, host_cgroups
from staddle.limits.cgroup_layout import (
    CgroupFacts,
    CgroupParent,
    CgroupSetting,
    CgroupSupport,
    CounterFile,
    Hierarchy,
    decide,
)
from staddle.limits.cgroup_tree import CgroupTree

ALL = frozenset({"memory", "cpu", "pids", "io", "cpuset"})
HELD = frozenset({"memory", "cpu", "pids"})
ROOT = "/sys/fs/cgroup"
SESSION = f"{ROOT}/user.slice/user-1000.slice/session-1.scope"


def unified(own: str, **more: object) -> Hierarchy:
    return Hierarchy(2, ALL, own, **{"writable": False, **more})  # type: ignore[arg-type]


def first(controller: str, **more: object) -> Hierarchy:
    known = {"own": f"{ROOT}/{controller}/here", "writable": True, **more}
    return Hierarchy(1, frozenset({controller}), **known)  # type: ignore[arg-type]


def held(means: CgroupSupport) -> frozenset[str]:
    return means.controllers & HELD


def test_the_root_of_the_unified_hierarchy_is_used_as_it_is() -> None:
    means = decide(CgroupFacts((unified(ROOT, writable=True, enabled=ALL),)))
    assert means == CgroupSupport((CgroupParent(2, ROOT, HELD),))


def test_what_is_not_enabled_there_is_not_enabled_by_us() -> None:
    means = decide(CgroupFacts((unified(ROOT, writable=True, enabled=frozenset({"pids"})),)))
    assert held(means) == {"pids"}
    assert [name for name, _, _ in means.why_not] == ["cpu", "memory"]
    assert "not enabled" in means.reason("memory")[0]
    assert "subtree_control" in means.reason("memory")[1]


def test_a_group_that_was_delegated_to_us_is_used_beside_our_own() -> None:
    mine = f"{ROOT}/user.slice/app.scope"
    facts = CgroupFacts((unified(f"{mine}/main", writable=True, above=mine, enabled=HELD),), systemd=True)
    assert decide(facts) == CgroupSupport((CgroupParent(2, mine, HELD),))


def test_controllers_of_a_group_that_was_delegated_to_us_are_ours_to_enable() -> None:
    mine = f"{ROOT}/system.slice/app.service"
    for enabled in (frozenset[str](), frozenset({"pids"})):
        facts = CgroupFacts(
            (unified(f"{mine}/main", writable=True, above=mine, enabled=enabled),), systemd=True
        )
        assert decide(facts) == CgroupSupport((CgroupParent(2, mine, HELD, given=True),))


PLAIN = f"{ROOT}/services/app"


def test_without_systemd_a_sibling_of_our_own_group_has_its_controllers() -> None:
    facts = CgroupFacts((unified(PLAIN, writable=True, beside=f"{ROOT}/services"),))
    assert decide(facts) == CgroupSupport((CgroupParent(2, f"{ROOT}/services", HELD),))


def test_systemd_alone_makes_siblings_of_its_units() -> None:
    facts = CgroupFacts((unified(PLAIN, writable=True, beside=f"{ROOT}/services"),), systemd=True)
    assert held(decide(facts)) == frozenset()


def test_no_sibling_escapes_the_limits_of_our_own_group() -> None:
    one = unified(PLAIN, writable=True, beside=f"{ROOT}/services", limited="memory.max")
    means = decide(CgroupFacts((one,)))
    assert means.places == (CgroupParent(2, PLAIN, frozenset()),)
    assert means.reason("memory") == (
        "our own control group contains processes, and a sibling would escape its memory.max",
        f"set memory.max on {ROOT}/services instead, or run staddle in a delegated group",
    )


def test_the_user_manager_is_asked_for_a_scope() -> None:
    facts = CgroupFacts(
        (unified(SESSION),), systemd=True, manager="user", manageable=frozenset({"memory", "pids"})
    )
    means = decide(facts)
    assert means.scope == "user"
    assert means.places == (CgroupParent(2, "", frozenset({"memory", "pids"}), given=True),)
    assert means.reason("cpu") == (
        "the user manager has no cpu controller to give",
        "Delegate=cpu for user@.service (systemctl edit user@.service)",
    )


def test_root_asks_the_system_manager_and_makes_no_group_beside_its_units() -> None:
    facts = CgroupFacts((unified(SESSION, writable=True),), systemd=True, manager="system", manageable=ALL)
    means = decide(facts)
    assert (means.scope, held(means), means.why_not) == ("system", HELD, ())
    assert all(not place.base for place in means.places)


def test_nobody_is_asked_when_nothing_is_wanted() -> None:
    facts = CgroupFacts((unified(SESSION),), systemd=True, manager="user", manageable=HELD)
    assert decide(facts, frozenset()) == CgroupSupport(())


def test_without_a_manager_its_absence_is_the_reason() -> None:
    facts = CgroupFacts((unified(SESSION),), systemd=True, no_manager="no user manager runs for uid 1000")
    assert held(decide(facts)) == frozenset()
    assert "no user manager runs for uid 1000" in decide(facts).reason("memory")[0]


def test_a_container_with_its_groups_read_only_has_none() -> None:
    means = decide(CgroupFacts((unified(ROOT, writable=True, enabled=ALL, read_only=True),)))
    assert means.places == ()
    assert "read-only" in means.reason("memory")[0]


def test_a_container_whose_own_group_is_not_shown_has_none() -> None:
    means = decide(CgroupFacts((unified(""),)))
    assert means.places == ()
    assert "not visible" in means.reason("pids")[0]


def test_a_container_without_controllers_still_has_a_group_to_end_it_by() -> None:
    means = decide(CgroupFacts((unified(ROOT, writable=True),)))
    assert means.places == (CgroupParent(2, ROOT, frozenset()),)
    assert held(means) == frozenset()


def test_the_first_version_has_a_place_for_each_controller() -> None:
    names = ("memory", "cpu", "pids", "freezer", "cpuacct", "blkio", "devices")
    means = decide(CgroupFacts(tuple(first(name) for name in names)))
    assert held(means) == HELD
    assert {place.base for place in means.places} == {f"{ROOT}/{name}/here" for name in names[:-2]}
    assert means.version("memory") == 1


def test_controllers_mounted_together_are_one_place() -> None:
    both = Hierarchy(1, frozenset({"cpu", "cpuacct"}), f"{ROOT}/cpu", writable=True)
    assert decide(CgroupFacts((both,))).places == (
        CgroupParent(1, f"{ROOT}/cpu", frozenset({"cpu", "cpuacct"})),
    )


EMPTY = Hierarchy(2, frozenset({"hugetlb"}), f"{ROOT}/unified/x", writable=True)


@pytest.mark.parametrize("missing", ["freezer", "cpuacct"])
def test_the_hybrid_layout_limits_with_the_first_and_ends_with_the_second(missing: str) -> None:
    names = {"memory", "cpu", "pids", "freezer", "cpuacct"} - {missing}
    means = decide(CgroupFacts((EMPTY, *(first(name) for name in sorted(names))), systemd=True))
    assert held(means) == HELD
    assert means.version("pids") == 1
    assert [place.base for place in means.places if place.version == 2] == [f"{ROOT}/unified/x"]
    assert not means.controllers & {"freezer", "cpuacct"}, "the second version does this"


def test_the_second_is_left_out_where_the_first_stops_and_measures_as_well() -> None:
    names = ("memory", "cpu", "pids", "freezer", "cpuacct")
    means = decide(CgroupFacts((EMPTY, *(first(name) for name in names)), systemd=True))
    assert {place.version for place in means.places} == {1}, (
        "it takes the kernel 10 ms to enter one of the second"
    )
    assert means.controllers == set(names)
    assert means.places[0].controllers == {"freezer"}, "what is left of others is thawed before it is ended"
    for_memory = means.reduced(frozenset({"memory"}))
    assert for_memory.controllers == {"memory", "freezer", "cpuacct"}


def test_a_share_of_the_processors_is_not_taken_to_measure_them() -> None:
    both = Hierarchy(1, frozenset({"cpu", "cpuacct"}), f"{ROOT}/cpu", writable=True)
    means = decide(CgroupFacts((EMPTY, both, first("memory"), first("freezer"))))
    assert means.reduced(frozenset({"memory"})).controllers == {"memory"}
    assert {place.version for place in means.places} == {1, 2}


def test_the_second_is_used_where_it_holds_a_limit() -> None:
    pids = unified(f"{ROOT}/unified", writable=True, enabled=frozenset({"pids"}))
    means = decide(CgroupFacts((pids, first("memory"), first("freezer"), first("cpuacct"))))
    assert means.version("pids") == 2
    assert not means.controllers & {"freezer", "cpuacct"}


def test_groups_of_the_first_version_that_are_somebody_elses_are_left_alone() -> None:
    means = decide(CgroupFacts((first("memory", writable=False), first("pids"))))
    assert held(means) == {"pids"}
    assert "another user" in means.reason("memory")[0]


def test_without_any_there_are_none() -> None:
    means = decide(CgroupFacts(()))
    assert means.places == ()
    assert [name for name, _, _ in means.why_not] == ["cpu", "memory", "pids"]
    assert all(why and fix for _, why, fix in means.why_not)


def test_no_group_is_made_before_the_scope_is_there() -> None:
    facts = CgroupFacts((unified(SESSION),), systemd=True, manager="user", manageable=HELD)
    with pytest.raises(ValueError, match="scope"):
        CgroupTree(decide(facts))


# ---------------------------------------------------------------- the facts, from files


def machine(root: Path, own: str, mountinfo: str, files: dict[str, str]) -> None:
    for path, text in {"proc/self/cgroup": own, "proc/self/mountinfo": mountinfo, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_facts_are_read_from_the_machine(tmp_path: Path) -> None:
    machine(
        tmp_path,
        "0::/a/b\n",
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        {
            "sys/fs/cgroup/a/b/cgroup.procs": "1\n",
            "sys/fs/cgroup/a/b/cgroup.controllers": "memory pids\n",
            "sys/fs/cgroup/a/b/cgroup.subtree_control": "pids\n",
        },
    )
    expected = Hierarchy(
        2, frozenset({"memory", "pids"}), "/sys/fs/cgroup/a/b", writable=True, enabled=frozenset({"pids"})
    )
    assert host_cgroups.observe(root=str(tmp_path)) == CgroupFacts((expected,))


def below(root: Path, own: str, **files: str) -> Hierarchy:
    """The facts about our own group, with these files in it, whose parent is writable."""
    parent = str(Path(own).parent)
    more = {f"sys/fs/cgroup{own}/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    said = {f"sys/fs/cgroup{group}/cgroup.procs": "1\n" for group in (own, parent)}
    mountinfo = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    machine(root, f"0::{own}\n", mountinfo, {**said, **more})
    (found,) = host_cgroups.observe(root=str(root)).hierarchies
    return found


def test_a_sibling_is_possible_where_the_parent_is_writable(tmp_path: Path) -> None:
    found = below(tmp_path, "/a/b", memory_max="max\n", cpu_max="max 100000\n", cpuset_cpus="\n")
    assert (found.beside, found.limited) == ("/sys/fs/cgroup/a", "")


@pytest.mark.parametrize("own", ["/system.slice/docker-1.scope/b", "/user.slice/b", "/a.service/x/b"])
def test_nothing_is_made_in_units_of_a_systemd_that_is_not_seen(tmp_path: Path, own: str) -> None:
    assert not below(tmp_path, own).beside


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory_max", "1048576\n"),
        ("cpu_max", "5000 100000\n"),
        ("cpuset_cpus", "0-1\n"),
        ("pids_max", "9\n"),
    ],
)
def test_a_limit_of_our_own_group_is_seen(tmp_path: Path, name: str, text: str) -> None:
    assert below(tmp_path, "/a/b", **{name: text}).limited == name.replace("_", ".", 1)


def test_of_two_mounts_of_one_hierarchy_the_upper_one_counts(tmp_path: Path) -> None:
    mounted = "30 23 0:26 / {} rw - cgroup cgroup rw,memory\n"
    machine(tmp_path, "4:memory:/x\n", mounted.format("/old") + mounted.format("/new"), {})
    assert [item.own for item in host_cgroups.observe(root=str(tmp_path)).hierarchies] == ["/new/x"]


def test_a_machine_that_tells_nothing_has_nothing(tmp_path: Path) -> None:
    assert host_cgroups.observe(root=str(tmp_path)) == CgroupFacts(())


def test_a_group_without_its_file_of_members_has_no_room_for_ours(tmp_path: Path) -> None:
    assert not host_cgroups.may_have_groups(str(tmp_path))
    (tmp_path / "cgroup.procs").write_text("")
    assert host_cgroups.may_have_groups(str(tmp_path))
    assert not host_cgroups.delegated(str(tmp_path)), "nobody has marked it"


# Which file of a group says what, for both versions.


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
