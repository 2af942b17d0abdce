"""On landlock the next sandbox of the same kind finds an agent that waits; one that does not fit is ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Network, Policy, Sandbox
from staddle.background import wait_for_jobs
from staddle.sandbox.open.spare_agents import SPARES, SpareAgent
from tests.support.waiting import until

AGENT = Policy.agent()


def opened(workspace: str | None = None, policy: Policy = AGENT) -> Sandbox:
    return Sandbox(workspace, policy=policy, backend="landlock")


def waiting() -> SpareAgent:
    assert until(lambda: SPARES._spare is not None), "no spare was started"
    found = SPARES._spare
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def none_before() -> Iterator[None]:
    wait_for_jobs()  # one may be in the making
    SPARES.close()
    SPARES._opened = 1
    yield
    wait_for_jobs()
    SPARES.close()


def test_the_next_sandbox_takes_the_one_that_waits() -> None:
    with opened() as first:
        home = first.run("echo left > ~/file; echo $HOME").stdout
        spare = waiting()
        with opened() as second:
            assert second._now().agent is spare.opened[0]
            assert second.run("echo $HOME; ls ~").stdout.splitlines()[0] != home.strip()
            assert not second.run("cat ~/file").ok
            assert second.run("x=1; echo $x").stdout == "1\n"
    place = os.path.dirname(home.strip())
    assert until(lambda: not os.path.exists(place))


def test_a_program_that_opens_one_starts_no_other() -> None:
    SPARES._opened = 0
    with opened() as only:
        only.run(":")
    wait_for_jobs()
    assert SPARES._spare is None


@pytest.mark.slow
def test_another_policy_ends_it() -> None:
    with opened():
        spare = waiting()
    with opened(policy=AGENT.with_network(Network.open())) as other:
        assert other._now().agent is not spare.opened[0]
        assert other.run("echo works").stdout == "works\n"
    assert until(lambda: spare.opened[0]._closed)


def test_one_that_was_killed_is_not_handed_out() -> None:
    with opened():
        spare = waiting()
    spare.opened[0].kill()
    with opened() as next_one:
        assert next_one._now().agent is not spare.opened[0]
        assert next_one.run("echo works").stdout == "works\n"


def test_a_copy_of_the_workspace_is_as_new(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    with opened(str(tmp_path)) as first:
        first.run("echo changed > a")
        spare = waiting()
        before = first.snapshot()  # a copy as well, which is not in the directory of the next sandbox
        first.restore(before)
        (tmp_path / "b").write_text("two\n")
        with opened(str(tmp_path)) as second:
            assert second._now().agent is spare.opened[0]
            assert second.run("cat a b").stdout == "one\ntwo\n"
            second.run("echo more >> b")
            assert [change.kind for change in second.diff()] == ["modified"]
            second.commit()
    assert (tmp_path / "b").read_text() == "two\nmore\n"
    assert (tmp_path / "a").read_text() == "one\n"
