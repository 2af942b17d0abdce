"""`make test` runs some tests as root and some as an ordinary user: none but the slow ones is left out."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from tests.conftest import OF_BOTH_USERS, is_of

MARKS = ("same_for_everyone", "needs_root", "both_users")
SETS = [set(some) for some in chain.from_iterable(combinations(MARKS, n) for n in range(len(MARKS) + 1))]
PATHS = (*OF_BOTH_USERS, "unit/policy/", "docs/")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("marks", SETS, ids=lambda marks: "+".join(sorted(marks)) or "none")
def test_each_is_of_a_share(path: str, marks: set[str]) -> None:
    test = f"tests/{path}test_some.py::test_one"
    shares = [share for share in ("root", "user") if is_of(share, test, marks)]
    assert shares
    if "needs_root" in marks:
        assert "root" in shares, "the other one cannot run it"
    elif path in OF_BOTH_USERS and "same_for_everyone" not in marks:
        assert "user" in shares
    assert is_of("alone", test, marks)


@pytest.mark.parametrize("share", ["root", "user", "alone"])
def test_a_slow_one_is_of_none(share: str) -> None:
    assert not is_of(share, "tests/kernel/test_some.py::test_one", {"slow"})


def test_what_is_done_in_another_way_for_root_is_of_both() -> None:
    for test, marks in (
        ("tests/kernel/test_some.py::test_one", {"both_users"}),
        ("tests/containment/test_some.py::test_one", set()),
        ("tests/unit/layers/test_some.py::test_one", set()),
    ):
        assert is_of("root", test, marks)
        assert is_of("user", test, marks)
