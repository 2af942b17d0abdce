"""Paths of a session, by the trees that they are in."""

from __future__ import annotations

import pytest

from staddle.sandbox.workspace.trees import by_tree

PLACES = {"/workspace": ("/workspace",), "/": ("/home/user", "/tmp"), "/usr": ("/usr",)}


@pytest.mark.parametrize(
    ("path", "directory", "root", "found"),
    [
        ("a", "/workspace/sub", "/workspace", "sub/a"),
        ("a", "/home/user", "/", "home/user/a"),
        ("/tmp/a b\n", "/workspace", "/", "tmp/a b\n"),
        ("../../tmp", "/home/user", "/", "tmp"),
        ("/usr/local/bin", "/tmp", "/usr", "local/bin"),
        ("/usr", "/tmp", "/usr", ""),
        (".", "/workspace", "/workspace", ""),
    ],
)
def test_a_path_belongs_to_the_tree_it_is_in(path: str, directory: str, root: str, found: str) -> None:
    assert by_tree([path], directory, PLACES) == {root: [found]}


def test_several_are_told_apart() -> None:
    found = by_tree(["a", "/tmp/b", "/home/user/c"], "/workspace", PLACES)
    assert found == {"/workspace": ["a"], "/": ["tmp/b", "home/user/c"]}


@pytest.mark.parametrize("path", ["/etc/passwd", "/home", "/", "/tmpfile", "../home/other"])
def test_what_is_in_none_is_an_error_that_says_where_they_are(path: str) -> None:
    with pytest.raises(ValueError, match="not in the workspace, which is /workspace, nor in /home/user"):
        by_tree([path], "/workspace", PLACES)


ONLY = {"/workspace": ("/workspace",)}


@pytest.mark.parametrize(
    ("path", "directory", "found"),
    [
        ("a", "/workspace", "a"),
        ("a/b", "/workspace/sub", "sub/a/b"),
        ("..", "/workspace/sub", ""),
        (".", "/workspace", ""),
        ("../x", "/workspace/sub", "x"),
        ("/workspace/a b\n", "/tmp", "a b\n"),
        ("./a//b/../c", "/workspace", "a/c"),
    ],
)
def test_it_counts_from_where_the_session_is(path: str, directory: str, found: str) -> None:
    assert by_tree([path], directory, ONLY) == {"/workspace": [found]}


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "/workspaces", "/"])
def test_what_lies_elsewhere_is_an_error(path: str) -> None:
    with pytest.raises(ValueError, match="not in the workspace"):
        by_tree([path], "/workspace/sub", ONLY)
