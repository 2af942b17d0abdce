"""Without a control group, a limit of whole processors is held by CPU affinity that cannot be changed."""

from __future__ import annotations

import os

import pytest

from staddle import Policy, Sandbox, wrap
from staddle.errors import PolicyNotEnforceable
from staddle.limits import enforced, host_cgroups
from staddle.limits.cgroup_layout import CgroupSupport

ALL = len(os.sched_getaffinity(0))
CODE = """
import os
before = os.sched_getaffinity(0)
for wanted in (range(64), set(range(64)) - before):
    for target in (0, os.getpid()):
        try:
            os.sched_setaffinity(target, wanted)
        except OSError as error:
            print(error.errno, end=" ")
print(os.sched_getaffinity(0) == before, len(before))
"""
PINNED = "1 1 1 1 True 1\n"

needs_two = pytest.mark.skipif(ALL < 2, reason="there is one processor, which is the limit")


@pytest.fixture(params=["namespaces", "landlock"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that has no control group, whatever this host has."""
    for name in ("usable", "session_cgroups"):
        monkeypatch.setattr(enforced, name, lambda *_: CgroupSupport(()))
    monkeypatch.setattr(host_cgroups, "support", lambda: CgroupSupport(()))
    return str(request.param)


def policy(cpu: float) -> Policy:
    return Policy.agent(nested=True).with_limits(cpu=cpu)


@needs_two
def test_a_command_stays_on_its_processors(backend: str) -> None:
    made = wrap(["python3", "-c", CODE], policy(1), backend=backend)
    assert made.run(capture_output=True, text=True).stdout == PINNED
    (held,) = [item for item in made.enforced.limits if item.limit == "cpu"]
    assert "CPU affinity" in held.by
    assert held.exact


@pytest.mark.slow
@needs_two
def test_a_session_stays_on_its_processors(backend: str) -> None:
    with Sandbox(policy=policy(1), backend=backend) as sb:
        for _ in range(3):  # the later ones are started by a process that was confined ahead
            assert sb.exec(["python3", "-c", CODE]).stdout == PINNED
        assert sb.run(f"python3 - <<'END'\n{CODE}\nEND").stdout == PINNED
        assert not [gap for gap in sb.enforced.gaps if gap.protection == "limits.cpu"]
        if backend == "namespaces":
            assert sb.exec(["python3", "-c", CODE], user="root").stdout == PINNED


def test_more_than_there_are_is_no_limit(backend: str) -> None:
    code = "import os; os.sched_setaffinity(0, os.sched_getaffinity(0)); print(len(os.sched_getaffinity(0)))"
    made = wrap(["python3", "-c", code], policy(ALL + 0.5), backend=backend)
    assert made.run(capture_output=True, text=True).stdout == f"{ALL}\n"


@needs_two
def test_a_part_of_a_processor_is_refused(backend: str) -> None:
    with pytest.raises(PolicyNotEnforceable, match="whole number of cores"):
        wrap(["true"], policy(0.5), backend=backend)
    with pytest.raises(PolicyNotEnforceable, match="whole number of cores"):
        Sandbox(policy=policy(0.5), backend=backend)
