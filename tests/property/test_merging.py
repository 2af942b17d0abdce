"""Merges against git: lines as `git merge-file`, trees as `git merge-tree`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.layers.differences import Selection
from staddle.layers.line_merge import LineConflict, joined, merge_lines
from staddle.layers.merge import flatten
from staddle.layers.merged_view import LayerView
from staddle.layers.three_way import OpenSides, ThreeWay, write_layer

#: git must not read the settings of the user who runs the tests.
ALONE = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "LC_ALL": "C",
    **{f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(at: Path, *words: str) -> tuple[int, bytes]:
    done = subprocess.run(["git", *words], cwd=at, env=ALONE, capture_output=True, check=False)
    assert done.returncode <= 127, done.stderr
    return done.returncode, done.stdout


@st.composite
def texts(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A text and two edits of it. Each new line is new, so that there is one shortest edit script."""
    count = draw(st.integers(0, 12))
    new = iter(range(10_000))
    base = [b"%d\n" % next(new) for _ in range(count)]

    def edited() -> list[bytes]:
        found = list(base)
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(found)))
            gone = draw(st.integers(0, 2))
            found[at : at + gone] = [b"%d\n" % next(new) for _ in range(draw(st.integers(0, 2)))]
        return found

    ours, theirs = edited(), edited()
    if draw(st.booleans()) and theirs:
        same = draw(st.integers(0, len(theirs) - 1))  # the same change on both sides
        if theirs[same] not in base and len(ours) > same:
            ours[same : same + 1] = [theirs[same]]
    cut = draw(st.sampled_from((b"\n", b"")))
    one, two, three = (b"".join(each) for each in (base, ours, theirs))
    return (one, two, three) if cut else (one[:-1], two[:-1], three[:-1])


@settings(max_examples=300, deadline=None)
@given(texts())
def test_lines_are_merged_as_git_merges_them(sides: tuple[bytes, bytes, bytes]) -> None:
    pieces = merge_lines(*sides)
    with tempfile.TemporaryDirectory() as place:
        for name, text in zip(("base", "ours", "theirs"), sides, strict=True):
            Path(place, name).write_bytes(text)
        files = ("ours", "base", "theirs")
        conflicts, merged = git(Path(place), "merge-file", "-p", *files)
        assert bool(conflicts) == any(isinstance(piece, LineConflict) for piece in pieces)
        if not conflicts:
            assert joined(pieces) == merged
        assert joined(pieces, "ours") == git(Path(place), "merge-file", "-p", "--ours", *files)[1]
        assert joined(pieces, "theirs") == git(Path(place), "merge-file", "-p", "--theirs", *files)[1]


@settings(max_examples=300, deadline=None)
@given(*[st.lists(st.sampled_from((b"a\n", b"b\n", b"c\n")), max_size=12).map(b"".join)] * 3)
def test_any_texts_keep_the_changes_of_each_side(base: bytes, ours: bytes, theirs: bytes) -> None:
    assert joined(merge_lines(base, base, theirs)) == theirs
    assert joined(merge_lines(base, ours, base)) == ours
    assert joined(merge_lines(base, ours, ours)) == ours
    there, back = merge_lines(base, ours, theirs), merge_lines(base, theirs, ours)
    assert joined(there, "ours") == joined(back, "theirs")


_NAMES = st.sampled_from(("a", "b", "d/a", "d/b", "d/e/a"))
_CONTENTS = st.sampled_from(
    ("", "1\n2\n3\n4\n5\n", "one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "1\n2\nIII\n4\n5\n")
)
_TREES = st.dictionaries(_NAMES, st.tuples(_CONTENTS, st.booleans()), max_size=5)


def build(at: Path, tree: dict[str, tuple[str, bool]]) -> None:
    for name, (content, runs) in tree.items():
        path = at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # No line is in two files: git would find renames.
        path.write_text("".join(f"{name} {line}\n" for line in content.split()))
        path.chmod(0o755 if runs else 0o644)


def listed(at: Path) -> dict[str, tuple[str, bool]]:
    files = (path for path in at.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {
        str(path.relative_to(at)): (path.read_text(), bool(path.stat().st_mode & 0o100)) for path in files
    }


@settings(max_examples=60, deadline=None)
@given(_TREES, _TREES, _TREES)
def test_trees_are_merged_as_git_merges_them(
    base: dict[str, tuple[str, bool]],
    ours: dict[str, tuple[str, bool]],
    theirs: dict[str, tuple[str, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as given_place:
        place = Path(given_place)
        views = []
        for index, tree in enumerate((ours, base, theirs)):
            (place / str(index)).mkdir()
            build(place / str(index), tree)
            views.append(LayerView((str(place / str(index)),), (), plain=True))
        for name in ("layer", "result"):
            (place / name).mkdir()
        with OpenSides(views) as opened:
            work = ThreeWay(opened, [(1, 2)], lambda path, index, clash: clash, Selection(None))
            write_layer(opened, work.run(), str(place / "layer"), None)
        flatten([str(place / "layer")], str(place / "0"), str(place / "result"))

        repository = place / "git"
        repository.mkdir()
        git(repository, "init", "-q", "-b", "x")
        commits = []
        for index in (1, 0, 2):
            git(repository, "--work-tree", str(place / str(index)), "add", "-A")
            tree_id = git(repository, "write-tree")[1].decode().strip()
            parent = ["-p", commits[0]] if commits else []
            commits.append(git(repository, "commit-tree", *parent, "-m", "x", tree_id)[1].decode().strip())
        failed, told = git(repository, "merge-tree", "--write-tree", commits[1], commits[2])

        assert bool(failed) == bool(work.conflicts), (work.conflicts, told)
        if not failed:
            git(repository, "read-tree", told.decode().split("\n")[0])
            (place / "out").mkdir()
            git(repository, "--work-tree", str(place / "out"), "checkout-index", "-a")
            assert listed(place / "result") == listed(place / "out")
