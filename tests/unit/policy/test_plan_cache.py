"""A value that was derived from a plan is cached for that very plan."""

from __future__ import annotations

from staddle import Policy
from staddle.policy.compiler import compile
from staddle.policy.plan import all_derived


def test_an_answer_is_known_for_the_same_plan_and_question() -> None:
    plan = compile(Policy.agent(), cwd="/")
    plan.derived["shell"] = "/bin/bash"
    assert plan.derived["shell"] == "/bin/bash"
    assert "other" not in plan.derived


def test_a_plan_that_only_looks_the_same_is_another_one() -> None:
    plan = compile(Policy.agent(), cwd="/")
    plan.derived["shell"] = "/bin/bash"
    assert "shell" not in plan.replace().derived


def test_only_those_of_the_last_plans_are_kept() -> None:
    plan = compile(Policy.agent(), cwd="/")
    plans = [plan.replace() for _ in range(100)]
    for number, one in enumerate(plans):
        one.derived["number"] = number
    assert plans[99].derived["number"] == 99
    assert "number" not in plans[0].derived
    assert [value for _, value in all_derived("number")][:2] == [99, 98]
