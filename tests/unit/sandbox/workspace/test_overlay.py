"""Paths of a session as paths of its workspace."""

from __future__ import annotations

import pytest

from staddle.sandbox.workspace.overlay import relative


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
    assert relative([path], directory) == (found,)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "/workspaces", "/"])
def test_what_lies_elsewhere_is_an_error(path: str) -> None:
    with pytest.raises(ValueError, match="not in the workspace"):
        relative([path], "/workspace/sub")


def test_everything_is_everything() -> None:
    assert relative(None, "/anywhere") is None
