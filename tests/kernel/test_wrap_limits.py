"""Limits of one command alone: held as in a session, and told by what `run()` returns."""

from __future__ import annotations

import subprocess

import pytest

from staddle import Policy, wrap
from staddle.errors import PolicyNotEnforceable
from staddle.launch.subprocesses import Completed
from staddle.limits.enforced import usable
from tests.support.limited import HIDDEN, groups_in_use, no_groups_left  # noqa: F401 - a fixture for all
from tests.support.waiting import until

pytestmark = pytest.mark.both_users

grouped = pytest.mark.skipif(not usable().version("memory"), reason="only control groups can do that")

#: Starts processes until it cannot, leaves them, and says how many there were.
COUNTING_BOMB = """
import os, time
try:
    for turn in range(300):
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        started += 1
finally:
    print(started, flush=True)
"""


def alone(code: str, **limits: object) -> Completed:
    policy = Policy.agent().with_limits(**limits)
    wrapped = wrap(["python3", "-c", code], policy, backend="namespaces")
    return wrapped.run(capture_output=True, text=True)


def test_one_command_alone_is_held_to_its_memory_and_told_so() -> None:
    done = alone("import time\na = bytearray(150 << 20)\ntime.sleep(20)", memory="64M")
    assert (done.returncode, done.reason) == (137, "memory")
    assert "64 MiB" in done.why
    done = alone("a = bytearray(20 << 20)", memory="64M")
    assert (done.returncode, done.reason, done.why) == (0, "exited", "")
    assert groups_in_use() == []


def test_one_command_alone_is_held_to_its_processes_and_told_so() -> None:
    done = alone(f"started = 0\n{COUNTING_BOMB}", processes=20)
    assert (done.returncode, done.reason) == (1, "processes")
    assert done.stdout == "19\n"
    assert "BlockingIOError" in done.stderr
    assert groups_in_use() == []


def test_one_command_alone_lives_no_longer_than_a_sandbox_may() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        alone("import time; time.sleep(20)", max_lifetime=0.5, timeout=None)


@grouped
def test_one_command_alone_sees_no_groups() -> None:
    said = alone("print(open('/proc/self/cgroup').read())", processes=20).stdout
    assert {line.rsplit(":", 1)[1] for line in said.split()} == {"/"}


@grouped
def test_one_command_that_is_only_started_leaves_no_group_once_it_was_waited_for() -> None:
    process = wrap(["true"], Policy.agent().with_limits(memory="64M"), backend="namespaces").popen()
    assert process.wait() == 0
    del process
    assert until(lambda: groups_in_use() == [])


@grouped
def test_one_command_that_is_never_started_leaves_no_group() -> None:
    wrap(["true"], Policy.agent().with_limits(memory="64M"), backend="namespaces").close()
    assert groups_in_use() == []


@pytest.mark.skipif(bool(usable().version("cpu")), reason="there are control groups for it")
def test_without_control_groups_one_command_alone_with_a_share_of_the_processors_is_refused() -> None:
    with pytest.raises(PolicyNotEnforceable, match="control group"):
        alone("", cpu=0.5)


@pytest.mark.parametrize("limit", [{"memory": "64M"}, {"processes": 20}, {"cpu": 0.5}])
def test_with_best_effort_what_is_not_held_is_listed(limit: dict[str, object]) -> None:
    policy = Policy.agent().with_limits(**limit)
    wrapped = wrap(["true"], policy, backend="namespaces", best_effort=True)
    listed = [gap.protection for gap in wrapped.enforced.gaps]
    assert listed == (["limits.cpu"] if "cpu" in limit and not usable().version("cpu") else [])
    assert wrapped.run().returncode == 0


def test_no_command_alone_hides_from_who_holds_its_memory() -> None:
    done = alone(HIDDEN, memory="64M")
    assert (done.returncode, done.reason) == (137, "memory")


def test_it_is_the_kernels_choice_before_whoever_holds_its_memory() -> None:
    assert alone("print(open('/proc/self/oom_score_adj').read(), end='')", memory="64M").stdout == "500\n"


def test_one_command_alone_has_no_capability_though_who_watches_it_has() -> None:
    said = alone("print(open('/proc/self/status').read())", memory="64M", processes=20).stdout
    sets = [line.split()[1] for line in said.splitlines() if line.startswith("Cap")]
    assert set(sets) == {"0" * 16}
