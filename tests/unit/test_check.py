"""Each check returns a right value, and raises what, why and how to fix it for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from staddle import check
from staddle.errors import InvalidCall, PolicyError


@pytest.mark.parametrize(
    ("checked", "right", "wrong"),
    [
        (lambda value: check.flag("x", value), (True, False), (1, None, "True")),
        (lambda value: check.count("x", value, 0, 7), (0, 7), (-1, 8, True, 1.0, "1", None)),
        (lambda value: check.count("x", value), (1, 1 << 70), (0, False)),
        (lambda value: check.seconds("x", value), (1, 0.1), (0, -1, True, "1", None, float("nan"))),
        (lambda value: check.seconds("x", value, 0, 9), (0, 9), (-0.1, 9.1, float("nan"), float("inf"))),
        (lambda value: check.one_of("x", value, ("a", "b")), ("a", "b"), ("c", None, ["a"])),
        (lambda value: check.instance("x", value, Path, "y"), (Path("a"),), ("a", None)),
        (lambda value: check.path("x", value, "y"), ("a",), ("", None, 1, b"a")),
        (lambda value: check.function("x", value, "y"), (len,), (1, None)),
    ],
)
def test_right_values_come_back_and_wrong_ones_are_errors(
    checked: Callable[[object], object], right: tuple[object, ...], wrong: tuple[object, ...]
) -> None:
    for value in right:
        assert checked(value) == value
    for value in wrong:
        with pytest.raises(InvalidCall) as caught:
            checked(value)
        assert caught.value.what == f"x is {value!r}"
        assert caught.value.why
        assert caught.value.fix


def test_the_caller_chooses_the_error_and_the_text_has_the_range() -> None:
    with pytest.raises(PolicyError, match="limit is 9: it is not a whole number from 1 to 8; use 8"):
        check.count("limit", 9, 1, 8, fix="use 8", error=PolicyError)
    with pytest.raises(PolicyError, match="mode is 'c': there is no such choice; use 'a', 'd' or 'b'"):
        check.one_of("mode", "c", ("a", "d", "b"), PolicyError)
    assert check.path("x", Path("a"), "y") == "a"
    assert check.encoded("x", "ä\udcff") == b"\xc3\xa4\xff"
    with pytest.raises(InvalidCall, match="x cannot be encoded as UTF-8: it has a lone surrogate"):
        check.encoded("x", "\ud800")
