"""Any two trees, any names that may be written: what is taken is whole, and no more than may be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.environment.writable_paths import parents, refused

Tree = dict[str, str]  # path: "directory" or the content of a file

names = st.sampled_from("abc")
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.sampled_from(["directory", "one", "two"])


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    found: Tree = {}
    for path, content in draw(st.lists(st.tuples(paths, contents), max_size=8)):
        if all(found.get(above, "directory") == "directory" for above in parents(path)) and path not in found:
            found.update(dict.fromkeys(parents(path), "directory"))
            found[path] = content
    return found


def kind(content: str | None) -> str:
    return "" if content is None else "directory" if content == "directory" else "file"


def changes(before: Tree, after: Tree) -> list[tuple[str, str, str]]:
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    return [(path, kind(before.get(path)), kind(after.get(path))) for path in sorted(changed)]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(before=trees(), after=trees(), named=st.frozensets(paths))
def test_what_is_taken_is_a_tree_and_nothing_else_changes(
    before: Tree, after: Tree, named: frozenset[str]
) -> None:
    rows = changes(before, after)
    left = refused(rows, lambda path: "" if path in named else "not named")
    result = dict(before)
    for path, _, _ in rows:
        if path not in left:
            if path in after:
                result[path] = after[path]
            else:
                del result[path]
    for path in result:
        assert all(result.get(above) == "directory" for above in parents(path)), f"{path} hangs in the air"
    taken = [(path, was, now) for path, was, now in rows if path not in left]
    for path, was, now in taken:
        way = (
            not was
            and now == "directory"
            and any(other.startswith(f"{path}/") for other, _, new in taken if new)
        )
        assert path in named or way, f"{path} was not to be changed"
    if all(path in named for path, _, _ in rows):
        assert result == after


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(before=trees(), after=trees(), named=st.frozensets(paths))
def test_a_named_change_that_needs_nothing_else_is_taken(
    before: Tree, after: Tree, named: frozenset[str]
) -> None:
    rows = changes(before, after)
    left = refused(rows, lambda path: "" if path in named else "not named")
    for path, was, _ in rows:
        above = [row for row in rows if row[0] in set(parents(path)) and row[1]]
        below = [row for row in rows if row[0].startswith(f"{path}/") and row[1]]
        if path in named and not above and not (was == "directory" and below):
            assert path not in left
