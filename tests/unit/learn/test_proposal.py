"""A proposal grants what was used, is bounded whatever a hostile run does, and gives its reasons."""

from __future__ import annotations

import time

from staddle import Policy
from staddle.learn.facts import Fact, HostFact, Measured, Recording
from staddle.learn.proposal import World, propose
from staddle.policy.compiler import compile

HOME = "/home/ada"


def world(**more: object) -> World:
    plan = compile(Policy.agent(toolchains=False), cwd="/")
    shown = compile(Policy(read=["/etc/hosts"], system=False), cwd="/")
    return World(Policy.agent(toolchains=False), plan, shown, HOME, None, **more)  # type: ignore[arg-type]


def run(*facts: Fact, **more: object) -> Recording:
    return Recording(facts, commands=("job",), **{"succeeded": True, **more})  # type: ignore[arg-type]


def test_a_run_that_reads_everything_is_proposed_in_seconds_and_said_not_to_be_whole() -> None:
    facts = [Fact(f"{HOME}/{number}", "read", "find") for number in range(4_000)]
    facts += [Fact(f"/srv/{number}/{number}", "read", "find") for number in range(1_000)]
    began = time.monotonic()
    learned = propose(run(*facts), world())
    assert time.monotonic() - began < 30
    assert len(learned.policy.read) <= 100
    assert "too many files" in learned.text()
    assert len(learned.text()) < 256 << 10


def test_what_the_run_did_without_is_no_grant_and_what_it_failed_for_is() -> None:
    fact = Fact("/srv/data/x", "read", "cat", "hidden")
    assert propose(run(fact), world()).policy.read == ()
    assert "did without" in propose(run(fact), world()).text()
    failed = propose(run(fact, succeeded=False), world())
    assert failed.policy.read == ("/srv/data/x",)
    assert "the run failed" in failed.text()


def test_limits_have_headroom_and_only_grow() -> None:
    recording = run(measured=Measured(20.0, 1 << 30, 100))
    limits = propose(recording, world()).policy.limits
    assert (limits.timeout, limits.memory, limits.processes) == (60.0, 3 << 29, 200)
    more = world().replace(policy=Policy.agent().with_limits(timeout=900, memory="1G"))
    limits = propose(recording, more).policy.limits
    assert (limits.timeout, limits.memory) == (900.0, 3 << 29)


def test_a_refused_host_is_a_comment_and_a_reached_one_an_entry() -> None:
    hosts = HostFact("a.example:443", True), HostFact("b.example:443", False)
    learned = propose(run(hosts=hosts), world())
    assert [str(rule) for rule in learned.policy.network.rules] == ["a.example:443"]
    assert "b.example" in "".join(learned.warnings)
