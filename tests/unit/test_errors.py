"""Every error says what happened, why, and what to do; the drawn tree is the real one."""

from __future__ import annotations

import inspect
import pickle

import pytest

from staddle import errors
from staddle.enforcement import Gap

ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.StaddleError)
]


@pytest.mark.parametrize("kind", ALL)
def test_the_sentence_has_all_three_parts(kind: type[errors.StaddleError]) -> None:
    error = kind("it broke", why="it was old", fix="buy another")
    assert str(error) == "it broke: it was old; buy another"
    assert (error.what, error.why, error.fix) == ("it broke", "it was old", "buy another")
    assert str(kind("it broke")) == "it broke"
    assert str(kind("it broke", fix="buy another")) == "it broke; buy another"


@pytest.mark.parametrize("kind", ALL)
def test_it_has_a_docstring(kind: type[errors.StaddleError]) -> None:
    assert kind.__doc__


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    above = ["StaddleError"]
    for line in (errors.__doc__ or "").splitlines():
        marks = line.find("├── ") if "├── " in line else line.find("└── ")
        if marks < 0:
            continue
        depth = (marks - 4) // 4 + 1
        name = line[marks + 4 :].split()[0]
        above[depth:] = [name]
        drawn[name] = above[depth - 1]
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in ALL if kind is not errors.StaddleError}
    assert drawn == real


def test_what_is_also_a_value_error_can_be_caught_as_one() -> None:
    assert issubclass(errors.PolicyError, ValueError)
    assert issubclass(errors.UnknownBackend, ValueError)


def test_a_timeout_is_one_class_under_both_of_its_names() -> None:
    assert errors.CommandTimedOut is errors.CommandTimeout
    late = errors.CommandTimeout("x", output=b"y", result=1)
    assert isinstance(late, errors.CommandEnded)
    assert isinstance(late, errors.CommandFailed)
    assert (late.status, late.output, late.result) == (124, b"y", 1)


def test_facts_are_attributes() -> None:
    gap = Gap("read", "because")
    assert errors.PolicyNotEnforceable("x", gaps=(gap,)).gaps == (gap,)
    assert errors.CommandNotFound("x", status=126).status == 126
    assert errors.CommandNotFound("x").status == 127


@pytest.mark.parametrize("kind", ALL)
def test_it_survives_a_process_boundary(kind: type[errors.StaddleError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what", why="why", fix="fix")))  # noqa: S301 - our own
    assert str(error) == "what: why; fix"
    assert type(error) is kind
