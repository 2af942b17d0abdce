"""Limits that nobody asked for: a command that takes too much is stopped and told; the host program lives."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from staddle import Limits, Policy, Reason, Sandbox, wrap
from staddle.limits import cgroup_layout, enforced, host_cgroups, memory_watch
from staddle.linux import cgroups
from staddle.linux.memory import ancestors
from tests.support.in_a_child import captured
from tests.support.sandboxes import open_none_in_advance

pytestmark = pytest.mark.both_users

_MEBI = 1 << 20
#: Takes 500 MiB, and keeps it until it is killed: where nothing holds the limit, for so many seconds.
KEPT = 10
TAKE = f"python3 -c 'import time; taken = bytearray(500 << 20); time.sleep({KEPT})'"


@pytest.fixture(autouse=True)
def _none_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is opened in advance would have the limits of the test before."""
    open_none_in_advance(monkeypatch)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has 400 MiB of memory available."""
    monkeypatch.setattr(enforced, "_sessions", {})
    monkeypatch.setattr(enforced, "available", lambda: 400 * _MEBI)
    monkeypatch.setattr(memory_watch.memory, "available", lambda age=0: 100 * _MEBI)


def is_told(why: str, name: str) -> bool:
    return f"the default of limits.{name} on this host" in why and "None for no limit" in why


def test_all_three_are_enforced_and_say_so() -> None:
    with Sandbox() as sandbox:
        held = [item.limit for item in sandbox.enforced.limits if item.default]
        assert held == ["memory", "processes", "disk"]
        assert not [gap for gap in sandbox.enforced.gaps if gap.protection.startswith("limits.")]


@pytest.mark.usefixtures("little")
def test_memory_of_a_session() -> None:
    with Sandbox() as sandbox:
        result = sandbox.run(TAKE)
        assert result.reason is Reason.memory, result
        assert is_told(result.why, "memory")
        assert sandbox.run("echo there").stdout == "there\n"


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_the_next_command_is_not_told_the_reason_of_the_last() -> None:
    with Sandbox() as sandbox:
        assert sandbox.run(TAKE).reason is Reason.memory
        for _ in range(3):
            result = sandbox.run("false")
            assert (result.reason, result.why) == (Reason.exited, "")
        assert sandbox.run(f"{TAKE} || true").ok  # it coped
        assert sandbox.run("false").reason is Reason.exited


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_without_limits_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy.agent().replace(limits=Limits.none(timeout=60))
    with Sandbox(policy=policy) as sandbox:
        assert sandbox.run(TAKE.replace(f"({KEPT})", "(0.5)")).ok
        assert not [item for item in sandbox.enforced.limits if item.default]


@pytest.mark.usefixtures("little")
def test_memory_of_a_single_command() -> None:
    done = wrap(["sh", "-c", TAKE], Policy.agent()).run(capture_output=True)
    assert done.returncode
    assert done.reason == "memory"
    assert is_told(done.why, "memory")


def test_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforced, "_sessions", {})
    monkeypatch.setattr(enforced, "_known", {os.getpid(): 80})
    # A policy of its own: what was made of the usual one has the default of this process.
    with Sandbox(policy=Policy.agent().with_limits(timeout=119)) as sandbox:
        result = sandbox.run("""python3 -c '
import os, time
for _ in range(100):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
'""")
        assert result.reason is Reason.processes, result
        assert is_told(result.why, "processes")


def test_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforced, "_sessions", {})
    monkeypatch.setattr(enforced, "default_disk", lambda store: 20 * _MEBI)
    with Sandbox() as sandbox:
        result = sandbox.run("for n in {1..60}; do head -c 5M /dev/zero >> big || break; sleep 0.05; done")
        assert result.reason is Reason.disk, result
        assert is_told(result.why, "disk")


def test_when_memory_has_no_room_layers_go_to_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STADDLE_LAYERS", raising=False)
    with Sandbox() as first:
        monkeypatch.setattr("staddle.layers.store.has_memory_for_more", lambda: False)
        with Sandbox() as second:
            homes = [sandbox._inside.workspace.stack.store.home for sandbox in (first, second)]
            assert homes[1].startswith(("/var/tmp/", "/tmp/"))
            for sandbox in (first, second):
                assert sandbox.run("echo x > file; cat file").stdout == "x\n"
                assert [change.path for change in sandbox.diff()] == ["/workspace/file"]
            with Sandbox() as third:
                assert third._inside.workspace.stack.store.home == homes[1]


HOST = """
import sys
from staddle import Sandbox
with Sandbox() as sandbox:
    for command in sys.argv[1:]:
        result = sandbox.run(command, timeout=100)
        print(result.reason.value, result.why, flush=True)
print("alive")
"""


@pytest.mark.slow
@pytest.mark.needs_root
def test_a_host_program_in_a_small_memory_group_lives() -> None:
    """The group is one of our own, below the one that we are in."""
    places = [place for place in host_cgroups.support().places if "memory" in place.controllers]
    assert places, "this machine has no memory controller that could be used"
    place = places[0]
    group = f"{place.base}/staddle-test-{os.urandom(6).hex()}"
    os.mkdir(group)
    try:
        for setting in cgroup_layout.settings(Limits.none(memory=300 * _MEBI), place.version):
            if os.path.exists(f"{group}/{setting.file}"):
                cgroups.write(group, setting.file, setting.text)
        done = captured(
            [sys.executable, "-c", HOST, "head -c 1G /dev/zero > big", "rm big", TAKE],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
            preexec_fn=lambda: cgroups.add(group, os.getpid()),
            timeout=110,
        )
    finally:
        _remove(group)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert lines[-1] == "alive"
    assert lines[-2].startswith("memory ")
    assert is_told(lines[-2], "memory")


def _remove(group: str) -> None:
    """Remove a cgroup of ours when all that was started in it has ended."""
    import time

    for _ in range(1000):
        for directory, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                time.sleep(0.01)
        if not os.path.exists(group):
            return
    raise AssertionError(f"{group} is still in use: {cgroups.members(group)}")


def test_the_groups_of_this_process_are_found() -> None:
    assert all(os.path.isdir(group) for _, group in ancestors("memory"))
