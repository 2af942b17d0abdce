"""A private directory is gone afterwards, whatever a command left in it, and nothing else is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from staddle.files import remove_tree


@pytest.fixture
def top(tmp_path: Path) -> Path:
    directory = tmp_path / "private"
    remove_tree.make([os.fsencode(directory), os.fsencode(directory / "0"), os.fsencode(directory / "1")])
    return directory


def removed(top: Path) -> bool:
    remove_tree.remove([os.fsencode(top)])
    return not os.path.lexists(top)


def test_it_is_private(top: Path) -> None:
    assert [path.stat().st_mode & 0o7777 for path in (top, top / "0", top / "1")] == [0o700] * 3
    assert removed(top)


def test_an_existing_directory_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FileExistsError):
        remove_tree.make([os.fsencode(tmp_path)])
    assert (tmp_path / "file").read_text() == "kept"


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree.make([os.fsencode(tmp_path / "a"), os.fsencode(tmp_path / "a/missing/b")])
    assert not (tmp_path / "a").exists()


def test_nothing_is_removed_that_is_not_there(tmp_path: Path) -> None:
    remove_tree.remove([])
    remove_tree.remove([os.fsencode(tmp_path / "never")])


def test_links_are_removed_and_not_followed(top: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (top / "0" / "link").symlink_to(outside)
    (top / "loop").symlink_to(".")
    os.link(outside / "file", top / "0" / "hard")
    assert removed(top)
    assert (outside / "file").read_text() == "kept"


def test_a_link_in_its_place_is_not_followed(top: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    moved = tmp_path / "moved"
    top.rename(moved)
    top.symlink_to(outside)
    remove_tree.remove([os.fsencode(top)])
    assert (outside / "file").read_text() == "kept"
    assert removed(moved)


def test_rights_taken_away_are_taken_back(top: Path) -> None:
    deep = top / "0" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").write_text("")
    for directory in (deep, deep.parent, deep.parent.parent, top / "0", top):
        directory.chmod(0)
    assert removed(top)


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), FileNotFoundError(2, "gone")])
def test_one_that_cannot_be_removed_does_not_keep_the_others(
    top: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    unlink, met = remove_tree._unlink, list[str]()

    def meets(directory: int, name: str) -> bool:
        if name == "odd" and (not met or isinstance(error, PermissionError)):
            met.append(name)
            raise error
        return unlink(directory, name)

    monkeypatch.setattr(remove_tree, "_unlink", meets)
    for name in ("a", "odd", "z"):
        (top / name).write_text("")
    assert removed(top) == isinstance(error, FileNotFoundError)
    assert met
    assert not top.exists() or os.listdir(top) == ["odd"]


def test_depth_costs_neither_stack_nor_descriptors(top: Path) -> None:
    here = os.open(top / "0", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    began = time.process_time()
    assert removed(top)
    assert time.process_time() - began < 10


def test_every_kind_of_file_and_name(top: Path) -> None:
    os.mkfifo(top / "0" / "fifo")
    os.mkdir(os.fsencode(top) + b"/\xff\xfe\n")
    (top / "0" / ("x" * 255)).write_text("")
    os.mkdir(os.fsencode(top) + b"/\xff\xfe\n/-rf")
    assert removed(top)


def test_many_files(top: Path) -> None:
    for number in range(3000):
        (top / "1" / str(number)).touch()
    assert removed(top)
