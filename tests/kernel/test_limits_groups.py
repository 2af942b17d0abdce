"""Limits that the kernel holds, in real control groups of this machine, beneath one of our own.

What versions there are is the machine's: with the hybrid layout the controllers are of version 1, and
version 2 could end, freeze and count. `python -m tests.hosts limits` runs them with version 2 alone. The
names of the tests say what holds, whichever does it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from staddle import Limits
from staddle.ipc.wire import close_all
from staddle.limits import cgroup_layout, host_cgroups, prewarm
from staddle.limits.cgroup_tree import CgroupTree, tidy
from staddle.limits.prewarm import PrewarmedCgroups
from staddle.limits.sandbox_cgroups import SandboxCgroups
from staddle.limits.usage import GroupMeter, Usage
from staddle.linux import cgroups, process, process_tree, userns
from staddle.linux.syscalls import call
from tests.containment.namespaces import same_user
from tests.support.in_a_child import SRC
from tests.support.limited import family, leftovers, limited, means, ran, started
from tests.support.waiting import next_line, until

pytestmark = pytest.mark.needs_root


@pytest.fixture(autouse=True, scope="module")
def no_other_groups() -> None:
    """Those of sandboxes that an earlier test of this process has kept ready."""
    host_cgroups.close()


#: Most distributions have no hierarchy of version 1.
HAS_FIRST = any(item.version == 1 for item in host_cgroups.observe().hierarchies)
needs_first = pytest.mark.skipif(not HAS_FIRST, reason="this machine has version 2 alone")
BY_VERSION = ["unified", pytest.param("first version", marks=needs_first)]


def stopping_by(how: str) -> cgroup_layout.CgroupSupport:
    """The support of this machine, with another one of the two versions that ends and freezes."""
    facts = host_cgroups.observe()
    if how == "first version":
        kept = [item for item in facts.hierarchies if item.version == 1]
    else:
        kept = [item for item in facts.hierarchies if not item.controllers & {"freezer", "cpuacct"}]
    found = cgroup_layout.decide(facts.replace(hierarchies=tuple(kept)))
    assert ("freezer" in found.controllers) == (how == "first version")
    return found


def cpu(usage: Usage) -> float:
    assert usage.user is not None
    assert usage.system is not None
    return usage.user + usage.system


def test_this_machine_has_the_controllers() -> None:
    assert means().controllers >= {"memory", "cpu", "pids"}


@pytest.mark.parametrize(
    "hog",
    [
        "kept = [bytearray(1 << 20) for _ in range(300)]",
        "fd = os.memfd_create('x')\nfor _ in range(300): os.write(fd, bytes(1 << 20))",
        "import mmap; shared = mmap.mmap(-1, 300 << 20)\nfor at in range(0, 300 << 20, 4096): shared[at] = 1",
        """
        import subprocess; subprocess.run(['mount', '-t', 'tmpfs', 'none', '/mnt'], check=True)
        with open('/mnt/file', 'wb') as file:
            for _ in range(300): file.write(bytes(1 << 20))
        """,
    ],
    ids=["own", "memory file", "shared", "tmpfs"],
)
def test_more_memory_than_the_limit_is_the_end_of_who_takes_it(hog: str) -> None:
    code = f"""
    from staddle.limits.process_attributes import go_first
    pid = os.fork()
    if pid == 0:
        go_first()
        exec({hog!r}.replace(chr(10) + '        ', chr(10)).strip())
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    with limited(Limits(memory="100M")) as group:
        meter = GroupMeter(group)
        meter.begin()
        said, status = ran(group, code)
        assert (said, status) == (str(-signal.SIGKILL), 0), "the hog goes, who started it stays"
        assert meter.events().out_of_memory >= 1
        memory = meter.end(1.0).memory
        assert memory is not None
        assert 50 << 20 < memory <= 100 << 20
        meter.park()


@pytest.mark.parametrize("how", BY_VERSION, ids=["cgroup.kill", "freeze and kill"])
def test_nothing_survives_being_killed(how: str) -> None:
    stubborn = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for kind in range(4):
        for _ in range(16):
            if os.fork() == 0:
                if kind == 0: os.setsid()
                if kind == 1 and os.fork(): os._exit(0)
                if kind == 2: os.kill(os.getpid(), signal.SIGSTOP)
                if kind == 3:
                    while True:
                        if os.fork() == 0: os._exit(0)
                        try: os.waitpid(-1, os.WNOHANG)
                        except OSError: pass
                        time.sleep(0.001)
                time.sleep(60)
    print('ready', flush=True)
    time.sleep(60)
    """
    whole = CgroupTree(stopping_by(how))
    try:
        group = whole.group(Limits(processes=200))
        with started(group, stubborn) as child:
            assert next_line(child) == "ready\n"
            assert len(group.members()) > 48  # those that fork may have run into the limit by now
            group.kill()
            assert until(lambda: not group.members())
            child.wait(60)
        assert group.close()
    finally:
        whole.close()
    assert leftovers() == []


@pytest.mark.parametrize("how", BY_VERSION)
def test_a_frozen_group_stands_still_and_goes_on(how: str) -> None:
    whole = CgroupTree(stopping_by(how))
    try:
        group = whole.group(Limits())
        with started(group, "for at in range(2000): print(at, flush=True); time.sleep(0.005)") as child:
            assert next_line(child) == "0\n"
            assert group.freezes
            assert group.freeze()
            os.set_blocking(child.stdout.fileno(), False)
            while child.stdout.readline():
                pass
            time.sleep(0.1)
            assert not child.stdout.readline()
            group.thaw()
            assert until(child.stdout.readline)
            group.kill()
        assert group.close()
    finally:
        whole.close()


@pytest.mark.slow
def test_usage_is_of_one_command_and_of_all() -> None:
    with limited(Limits()) as group:
        meter = GroupMeter(group)
        meter.begin()
        ran(
            group,
            "kept = bytearray(80 << 20)\nwhile time.process_time() < 0.3: pass",
        )
        first = meter.end(1.0)
        meter.begin()
        ran(group, "pass")
        second = meter.end(0.5)
        assert first.memory is not None
        assert second.memory is not None
        assert cpu(first) > 0.15 > cpu(second)
        assert first.memory > 80 << 20 > second.memory, "what an earlier command took is not this one's"
        total = meter.total(1.5)
        assert total.memory == first.memory
        assert cpu(total) >= cpu(first) + cpu(second) - 0.001
        meter.park()
        meter.begin()
        assert meter.end(0.0).user is not None, "it reads on after it was parked"
        meter.park()


def test_a_process_is_put_in_from_outside() -> None:
    with limited(Limits(processes=20)) as group:
        child = subprocess.Popen(["sleep", "20"])
        group.add(child.pid)
        assert group.members() == {child.pid}
        group.kill()
        assert child.wait(60) == -signal.SIGKILL


def test_somebody_without_any_right_puts_itself_in_by_a_door_that_was_opened_for_it() -> None:
    with limited(Limits(processes=20)) as group:
        cgroup_fds = group.cgroup_fds()
        said, say = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                process.become(4321, 4321)
                call("unshare", userns.CLONE_NEWUSER | userns.CLONE_NEWCGROUP)
                cgroups.enter(cgroup_fds)
                os.write(say, b"in all of them")
                time.sleep(20)
            finally:
                os._exit(1)
        for fd in (*cgroup_fds, say):
            os.close(fd)
        assert os.read(said, 99) == b"in all of them"
        os.close(said)
        assert group.members() == {pid}
        group.kill()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_who_puts_itself_in_does_not_wait_for_others_that_are_being_started() -> None:
    """In version 1, by the file of threads; that the whole process is in is seen above."""
    with limited(Limits(processes=20)) as group:
        cgroup_fds = group.cgroup_fds()
        try:
            names = [os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2] for fd in cgroup_fds]
        finally:
            for fd in cgroup_fds:
                os.close(fd)
    versions = {place.version for place in means().places}
    assert set(names) == {{1: "tasks", 2: "cgroup.procs"}[version] for version in versions}


def test_a_group_that_is_gone_has_used_what_it_had_used() -> None:
    with family() as whole:
        group = whole.group(Limits())
        meter = GroupMeter(group)
        ran(group, "while time.process_time() < 0.05: pass")
        before = meter.total(1.0)
        meter.begin()
        assert group.close()
        used, after = meter.end(0.0), meter.total(1.0)
        assert (used.user, used.system) == (0.0, 0.0)
        assert cpu(after) >= cpu(before) > 0
        meter.park()


def test_groups_of_a_sandbox_that_ended_while_it_waited_are_removed_and_no_others() -> None:
    with family() as whole:
        cgroups_ahead = PrewarmedCgroups(whole, spares=1)
        close_all(cgroups_ahead.cgroup_fds())  # of two, which nobody enters
        before = list(cgroups_ahead._waiting)
        cgroup_fds = cgroups_ahead.cgroup_fds()
        lost = list(cgroups_ahead._waiting)[-1]
        pid = os.fork()
        if pid == 0:
            cgroups.enter(cgroup_fds)
            time.sleep(60)
            os._exit(0)
        close_all(cgroup_fds)
        assert until(lost.members)
        cgroups_ahead.restock()  # which sees that somebody is there
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert until(lambda: not lost.members())
        cgroups_ahead.restock()
        assert list(cgroups_ahead._waiting) == before
        assert lost.at("pids") is None, "it is removed"
        cgroups_ahead.close()


def test_groups_of_sandboxes_that_failed_before_anybody_looked_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with family() as whole:
        cgroups_ahead = PrewarmedCgroups(whole, spares=2)
        for _ in range(9):
            close_all(cgroups_ahead.cgroup_fds(again=True))
        cgroups_ahead.restock()
        assert len(cgroups_ahead._waiting) >= 9, "they may still be entered"
        newest = list(cgroups_ahead._waiting)[-2:]
        monkeypatch.setattr(prewarm, "_LATEST", 0.0)
        cgroups_ahead.restock()
        assert list(cgroups_ahead._waiting) == newest
        assert len(leftovers_below(whole)) == 3, "those, and the stock"
        cgroups_ahead.close()


def leftovers_below(whole: CgroupTree) -> set[str]:
    return {path.name for own in whole._own.values() for path in Path(own).iterdir() if path.is_dir()}


def test_a_program_has_one_family_and_a_fork_of_it_none() -> None:
    made = host_cgroups.group(Limits(processes=5))
    assert made is not None
    try:
        pid = os.fork()
        if pid == 0:
            host_cgroups.close()  # of the parent's nothing
            os._exit(0)
        os.waitpid(pid, 0)
        assert leftovers()
        assert made.at("pids") is not None
        assert made.close()
    finally:
        host_cgroups.close()
    assert leftovers() == []


def test_closing_ends_what_is_inside() -> None:
    with family() as whole:
        group = whole.group(Limits())
        child = subprocess.Popen(["sleep", "20"])
        group.add(child.pid)
        assert group.close()
        assert group.close(), "a second time does nothing"
        assert child.wait(60) == -signal.SIGKILL


def test_many_sandboxes_leave_nothing() -> None:
    with family() as whole:
        groups = [whole.group(Limits(memory="64M", cpu=1, processes=10)) for _ in range(50)]
        assert all(group.close() for group in groups)


def test_a_limit_that_cannot_be_set_is_an_error_and_leaves_nothing() -> None:
    from staddle.errors import LaunchFailed

    with family() as whole:
        broken = SandboxCgroups(
            {cgroup_layout.CgroupParent(1, "/nowhere", frozenset({"pids"})): "/proc/nowhere"}
        )
        with pytest.raises(LaunchFailed, match=r"limits\.processes"):
            broken.limit(Limits(processes=1))
        assert whole.group(Limits()).close()


def test_when_the_program_is_killed_its_groups_go() -> None:
    code = f"""
import sys, time; sys.path.insert(0, {str(SRC)!r})
from staddle import Limits
from staddle.limits import cgroup_layout, host_cgroups
from staddle.limits.cgroup_tree import CgroupTree
tree = CgroupTree(cgroup_layout.decide(host_cgroups.observe()))
group = tree.group(Limits(memory="64M"))
print(*tree._own.values(), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True) as child:
        paths = [Path(word) for word in next_line(child).split()]
        assert paths
        assert all(path.is_dir() for path in paths)
        child.kill()
    assert until(lambda: not any(path.exists() for path in paths))


@pytest.mark.parametrize("how", BY_VERSION)
def test_when_the_program_is_killed_what_it_had_stopped_ends(how: str) -> None:
    """In version 1 not even SIGKILL ends a process that is stopped there."""
    code = f"""
import os, sys, time; sys.path.insert(0, {str(SRC)!r})
from staddle import Limits
from staddle.linux import cgroups, process
from staddle.limits.cgroup_layout import CgroupParent, CgroupSupport
from staddle.limits.cgroup_tree import CgroupTree
tree = CgroupTree({stopping_by(how)!r})
group = tree.group(Limits())
cgroup_fds = group.cgroup_fds()
if (pid := os.fork()) == 0:
    process.death_signal(process.SIGKILL)
    tree.let_go()
    cgroups.enter(cgroup_fds)
    time.sleep(60)
while group.members() != {{pid}}:
    time.sleep(0.001)
assert group.freeze()
print(pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True) as child:
        stopped = int(next_line(child))
        assert Path(f"/proc/{stopped}").exists()
        child.kill()
    assert until(lambda: not Path(f"/proc/{stopped}").exists())
    assert until(lambda: not leftovers(child.pid))


def test_groups_of_a_program_that_has_ended_are_removed_and_nobody_elses() -> None:
    place = next(place for place in means().places if "pids" in place.controllers)
    space = os.stat("/proc/self/ns/pid").st_ino
    gone = subprocess.Popen(["true"])
    gone.wait()
    kept = [f"staddle-{space}-{os.getpid()}-other", f"staddle-{space}-{os.getpid()}-7", "staddle-mine"]
    dead = f"staddle-{space}-{gone.pid}-7-1"
    made = [Path(place.base) / name for name in (*kept, dead)]
    try:
        for path in made:
            path.mkdir()
        (made[-1] / "1").mkdir()
        tidy(place.base)
        assert [path.exists() for path in made] == [True, True, True, False]
    finally:
        for path in made:
            if path.exists():
                path.rmdir()


#: A program that is the second process of a pid namespace, whose first ends with it.
IN_A_NAMESPACE = f"""
import os, sys; sys.path.insert(0, {str(SRC)!r})
from staddle import Sandbox
from staddle.limits import host_cgroups
sandbox = Sandbox()
sandbox.run("true")
own = [path for tree in host_cgroups._families.values() for path in tree._own.values()]
print(os.getpid(), *own, flush=True)
sys.stdin.read()
"""


def test_a_command_in_a_pid_namespace_of_its_own_leaves_no_groups(tmp_path: Path) -> None:
    words = [*same_user(), sys.executable, "-m", "staddle", "shell", "--backend", "namespaces"]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("echo there\n")
        child.stdin.flush()
        assert child.stdout.readline() == "there\n"
        (first,) = process_tree.descendants(child.pid)[:1]
        space = os.stat(f"/proc/{first}/ns/pid").st_ino
        paths = [path for path in leftovers(2) if f"/staddle-{space}-" in path]
        assert paths
        child.stdin.close()
    assert [path for path in paths if os.path.exists(path)] == []


def in_a_namespace() -> tuple[subprocess.Popen[str], list[Path]]:
    """It, and its groups."""
    child = subprocess.Popen(
        [*same_user(), sys.executable, "-I", "-c", IN_A_NAMESPACE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    pid, *paths = child.stdout.readline().split()
    assert pid == "2"
    assert paths
    return child, [Path(path) for path in paths]


def test_a_program_that_ends_with_its_pid_namespace_removes_its_groups_before() -> None:
    child, paths = in_a_namespace()
    with child:
        assert all(path.is_dir() for path in paths)
    assert [path for path in paths if path.exists()] == []


def test_groups_of_a_program_that_was_killed_with_its_pid_namespace_are_removed_by_the_next() -> None:
    living, theirs = in_a_namespace()
    with living:
        for _ in range(5):
            killed, paths = in_a_namespace()
            with killed:
                (first,) = process_tree.descendants(killed.pid)[:1]
                os.kill(first, signal.SIGKILL)
            if all(path.exists() for path in paths):
                break  # else a program of another test has begun just now, and removed them
        assert all(path.exists() for path in paths), "who would have removed them was killed as well"
        made = [below for path in theirs for below in path.iterdir() if below.is_dir()]
        empty = [path for path in made if not cgroups.members(str(path))]
        assert empty, "there is none in advance"
        for path in paths:
            tidy(str(path.parent))
        assert [path for path in paths if path.exists()] == []
        assert [path for path in (*theirs, *made) if not path.is_dir()] == []


@pytest.mark.parametrize("why", ["in a container", "hidepid"])
def test_where_not_every_process_is_seen_the_groups_of_other_namespaces_stay(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "hidepid":
        monkeypatch.setattr(process_tree, "read_if_there", lambda path: b"")
    else:
        monkeypatch.setattr(process_tree, "_FIRST_NAMESPACE", 1)
    place = means().places[0]
    other = Path(place.base, f"staddle-{os.stat('/proc/self/ns/pid').st_ino + 1}-2-7-1")
    other.mkdir()
    try:
        tidy(place.base)
        assert other.exists()
    finally:
        other.rmdir()


@needs_first
def test_groups_in_hierarchies_that_the_next_program_does_not_use_are_removed() -> None:
    whole = host_cgroups.support()
    used = {place.base for place in whole.reduced(frozenset({"memory"})).places}
    unused = next(place for place in whole.places if place.base not in used)
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead = Path(unused.base, f"staddle-{os.stat('/proc/self/ns/pid').st_ino}-{gone.pid}-7-1")
    dead.mkdir()
    try:
        assert host_cgroups.tree(whole.reduced(frozenset({"memory"}))) is not None
        assert not dead.exists()
    finally:
        host_cgroups.close()
        if dead.exists():
            dead.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize("how", BY_VERSION)
def test_time_of_the_processors_is_counted_to_the_microsecond(how: str) -> None:
    """Version 1 has whole ticks only of the user's and the system's part: 4 ms on most kernels."""
    code = "end = time.perf_counter() + 0.0015\nwhile time.perf_counter() < end: pass"
    whole = CgroupTree(stopping_by(how))
    try:
        group = whole.group(Limits())
        meter = GroupMeter(group)
        used = []
        for _ in range(8):
            meter.begin()
            ran(group, code)
            used.append(meter.end(1.0))
        assert all(cpu(one) > 0.001 for one in used), used
        assert any(round(cpu(one) * 1e6) % 1000 for one in used), used
        assert cpu(meter.total(1.0)) == pytest.approx(sum(cpu(one) for one in used), abs=1e-4)
        ran(group, "while time.process_time() < 0.3: sum(range(20000))")
        long = meter.end(1.0)
        assert (long.user or 0) > 0.1 > (long.system or 0)
        meter.park()
        assert group.close()
    finally:
        whole.close()
