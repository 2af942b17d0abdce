"""Which changes of a command may stay: those that are named, those they need, and none that needs another."""

from __future__ import annotations

import pytest

from staddle.environment.writable_paths import refused

D, F, NONE = "directory", "file", ""


@pytest.mark.parametrize(
    ("named", "changes", "left"),
    [
        pytest.param({"a"}, [("a", NONE, F), ("b", NONE, F)], {"b"}, id="a file beside"),
        pytest.param({"d/e/f"}, [("d", NONE, D), ("d/e", NONE, D), ("d/e/f", NONE, F)], set(), id="the way"),
        pytest.param({"x"}, [("d", NONE, D), ("d/e", NONE, D)], {"d", "d/e"}, id="a way to nothing"),
        pytest.param({"d/a"}, [("d", D, NONE), ("d/a", F, NONE), ("d/b", F, NONE)], {"d", "d/b"}, id="rm -r"),
        pytest.param({"d"}, [("d", D, NONE), ("d/b", F, NONE)], {"d", "d/b"}, id="what is in it stays"),
        pytest.param(
            {"d"}, [("d", D, F), ("d/e", D, NONE), ("d/e/b", F, NONE)], {"d", "d/e", "d/e/b"}, id="deep"
        ),
        pytest.param({"d", "d/b"}, [("d", D, F), ("d/b", F, NONE)], set(), id="all of it may go"),
        pytest.param({"a/b"}, [("a", F, D), ("a/b", NONE, F)], {"a", "a/b"}, id="a file in the way"),
        pytest.param({"a", "a/b"}, [("a", F, D), ("a/b", NONE, F)], set(), id="which may be replaced"),
        pytest.param(
            {"a/b/c"},
            [("a", F, D), ("a/b", NONE, D), ("a/b/c", NONE, F)],
            {"a", "a/b", "a/b/c"},
            id="further up",
        ),
        pytest.param({"d/x"}, [("d", D, D), ("d/x", NONE, F)], {"d"}, id="permissions of the directory"),
    ],
)
def test_what_may_not_stay(named: set[str], changes: list[tuple[str, str, str]], left: set[str]) -> None:
    found = refused(changes, lambda path: "" if path in named else "not named")
    assert found.keys() == left
    assert all(found.values())
