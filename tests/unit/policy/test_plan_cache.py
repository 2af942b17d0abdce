"""A value that was derived from a plan is cached for that very plan."""

from __future__ import annotations

from staddle import Policy
from staddle.policy.compiler import compile
from staddle.policy.plan import cache, cached


def test_an_answer_is_known_for_the_same_plan_and_question() -> None:
    plan = compile(Policy.agent(), cwd="/")
    cache(plan, "shell", "/bin/bash")
    assert cached(plan, "shell") == "/bin/bash"
    assert cached(plan, "other") is None


def test_a_plan_that_only_looks_the_same_is_another_one() -> None:
    plan = compile(Policy.agent(), cwd="/")
    cache(plan, "shell", "/bin/bash")
    assert cached(plan.replace(), "shell") is None


def test_only_the_last_answers_are_kept() -> None:
    plan = compile(Policy.agent(), cwd="/")
    for number in range(100):
        cache(plan, number, str(number))
    assert cached(plan, 99) == "99"
    assert cached(plan, 0) is None
