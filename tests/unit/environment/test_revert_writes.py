"""Which changes of a command stay: those that a glob names, and the directories that they need."""

from __future__ import annotations

import pytest

from staddle.environment.revert_writes import unnamed
from staddle.environment.writable_paths import parse_globs
from staddle.layers.changes import Change


def added(path: str, type: str = "file") -> Change:
    return Change("added", f"/workspace/{path}", type)


@pytest.mark.parametrize(
    ("globs", "changes", "left"),
    [
        (["out.md"], [added("out.md"), added("other")], ["other"]),
        (["docs/**"], [added("docs", "directory"), added("docs/a"), added("docsx")], ["docsx"]),
        (["a/**/*.md"], [added("a", "directory"), added("a/b", "directory"), added("a/b/c.md")], []),
        (
            ["a/**/*.md"],
            [added("a", "directory"), added("a/b", "directory"), added("a/b/c")],
            ["a", "a/b", "a/b/c"],
        ),
        (["a/*.md"], [Change("mode", "/workspace/a", "directory"), added("a/x.md")], ["a"]),
        (["*.md"], [Change("deleted", "/workspace/a.py"), Change("deleted", "/workspace/a.md")], ["a.py"]),
        (["new/**"], [Change("renamed", "/workspace/new/x", "file", old_path="/workspace/src/x")], ["src/x"]),
        (["**"], [added("a"), Change("deleted", "/workspace/b/c")], []),
    ],
)
def test_what_no_glob_names(globs: list[str], changes: list[Change], left: list[str]) -> None:
    found = unnamed(changes, "/workspace", parse_globs(globs))
    assert sorted(found) == sorted(f"/workspace/{path}" for path in left)


def test_globs_count_from_the_working_directory() -> None:
    globs = parse_globs(["*.md", "**/x"])
    changes = [added("sub/a.md"), added("a.md"), added("sub/d/x"), added("x"), added("subx/x")]
    assert sorted(unnamed(changes, "/workspace/sub", globs)) == [
        "/workspace/a.md",
        "/workspace/subx/x",
        "/workspace/x",
    ]
