"""Undo of a commit: any change of a directory is taken back whole, and done once more."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.errors import CommitRefused, LayerError
from staddle.layers.undo import Undo

pytestmark = pytest.mark.same_for_everyone
NAMES = st.sampled_from(["a", "b", "a-b", "ü", "n" * 255])
ENTRIES = st.one_of(
    st.tuples(st.just("file"), st.sampled_from([0o644, 0o400, 0o755, 0o000]), st.binary(max_size=3)),
    st.tuples(st.just("link"), st.just(0), st.sampled_from([b"a", b"/etc/passwd", b"gone"])),
)
TREES = st.recursive(
    st.dictionaries(NAMES, ENTRIES, max_size=3),
    lambda below: st.dictionaries(
        NAMES, ENTRIES | st.tuples(st.just("directory"), st.sampled_from([0o755, 0o555]), below), max_size=4
    ),
    max_leaves=4,
)
Tree = dict[str, tuple[str, int, object]]


def make(top: Path, tree: Tree) -> None:
    for name, (kind, mode, content) in tree.items():
        path = top / name
        if kind == "directory":
            path.mkdir()
            make(path, content)  # type: ignore[arg-type]
        elif kind == "link":
            path.symlink_to(os.fsdecode(content))  # type: ignore[arg-type]
            continue
        else:
            path.write_bytes(content)  # type: ignore[arg-type]
        path.chmod(mode)


def read(top: Path) -> dict[str, tuple[int, object]]:
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(top.iterdir()):
        status = path.lstat()
        name = path.name
        if path.is_symlink():
            found[name] = (0, os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):
            found[name] = (stat.S_IMODE(status.st_mode), None)
            found |= {f"{name}/{below}": each for below, each in read(path).items()}
        elif os.access(path, os.R_OK):
            found[name] = (stat.S_IMODE(status.st_mode), path.read_bytes())
        else:
            found[name] = (stat.S_IMODE(status.st_mode), None)
    return found


def clear(top: Path) -> None:
    for path, directories, _ in os.walk(top):
        for name in directories:
            if not os.path.islink(f"{path}/{name}"):
                os.chmod(f"{path}/{name}", 0o755)
    shutil.rmtree(top)
    top.mkdir()


@settings(max_examples=150, deadline=None)
@given(TREES, TREES, st.booleans())
def test_a_commit_is_taken_back_and_done_again(first: Tree, second: Tree, tops: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        top = Path(place, "top")
        top.mkdir()
        make(top, first)
        before = read(top)
        # Whatever the directory becomes: the next tree is another one.
        other = Path(place, "other")
        other.mkdir()
        make(other, second)
        after = read(other)
        paths = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        if tops:  # of what is removed or replaced with all that is below it, only the top is named
            gone = {path for path in paths if path not in after}
            paths -= {path for path in gone if os.path.dirname(path) in gone}
        undo = Undo(f"{place}/undo", str(top))
        could = undo.copy(paths)
        clear(top)
        top.rmdir()
        other.rename(top)
        try:
            if not could:  # a file that cannot be read
                assert any(mode == 0 and content is None for mode, content in before.values())
                return
            undo.settle(paths)
            if before == after:
                return
            try:
                undo.run()
            except LayerError:  # the committed file cannot be read
                assert any(mode == 0 and content is None for mode, content in after.values())
                return
            assert read(top) == before
            try:
                undo.run()
            except LayerError:
                assert any(mode == 0 and content is None for mode, content in before.values())
                return
            assert read(top) == after
        finally:
            clear(top)


def test_a_changed_file_refuses_it_all_and_an_undo_that_was_killed_goes_on(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "was-file").write_text("1")
    (top / "was-directory").mkdir()
    (top / "was-directory/f").write_text("2")
    (top / "content").write_text("old")
    undo = Undo(f"{tmp_path}/undo", str(top))
    assert undo.copy(["was-file", "was-directory", "content"])
    (top / "was-file").unlink()
    (top / "was-file").mkdir()
    shutil.rmtree(top / "was-directory")
    (top / "was-directory").write_text("3")
    (top / "content").write_text("new")
    undo.settle(["was-file", "was-directory", "content"])
    (top / "content").write_text("the user's")
    with pytest.raises(CommitRefused, match="nothing was undone"):
        undo.run()
    assert (top / "was-directory").read_text() == "3"
    (top / "content").write_text("old")  # restored by an undo that was killed when it had removed this:
    (top / "was-directory").unlink()
    (top / ".staddle-undo").write_text("ha")
    undo.run()
    assert (top / "was-directory/f").read_text() == "2"
    assert (top / "was-file").read_text() == "1"
    assert sorted(each.name for each in top.iterdir()) == ["content", "was-directory", "was-file"]


def test_what_cannot_be_copied_cannot_be_undone_and_says_so(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    os.mkfifo(top / "pipe")
    (top / "same").mkdir()
    os.mkfifo(top / "same/pipe")
    undo = Undo(f"{tmp_path}/undo", str(top))
    assert undo.copy(["pipe", "same"])
    (top / "same").chmod(0o700)
    undo.settle(["same"])
    assert undo.run()[0] == "same"
    assert undo.copy(["pipe", "same"])
    (top / "pipe").unlink()
    undo.settle(["pipe", "same"])
    with pytest.raises(LayerError, match="there is no commit to undo"):
        undo.run()
    assert os.listdir(tmp_path) == ["top"]
