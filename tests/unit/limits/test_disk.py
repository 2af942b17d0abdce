"""What a directory takes: blocks, not sizes; inodes, not names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.limits import disk
from staddle.limits.disk import DiskUsage
from staddle.mounts.operations import tmpfs_options


def test_options_of_a_file_system_that_holds_no_more() -> None:
    assert tmpfs_options(64 << 20) == "size=67108864,nr_inodes=16384"
    assert tmpfs_options(1) == "size=4096,nr_inodes=1024"


def test_a_sparse_file_counts_by_what_it_takes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    found = disk.occupied(str(tmp_path))
    assert found.inodes == 1
    assert found.bytes < 1 << 20


def test_a_file_with_several_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 65536)
    once = disk.occupied(str(tmp_path))
    for name in "bcd":
        (tmp_path / name).hardlink_to(tmp_path / "a")
    assert disk.occupied(str(tmp_path)) == once
    assert once.bytes >= 65536


def test_empty_files_count_as_inodes(tmp_path: Path) -> None:
    for at in range(50):
        (tmp_path / f"{at}").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below/link").symlink_to("/")
    assert disk.occupied(str(tmp_path)).inodes == 52


def test_counting_stops_when_it_is_too_much(tmp_path: Path) -> None:
    for at in range(1100):
        (tmp_path / f"{at}").touch()
    found = disk.occupied(str(tmp_path), most=1 << 20)
    assert not found.whole
    assert disk.is_over(found, 1 << 20)


@pytest.mark.parametrize(
    ("taken", "over"),
    [
        (DiskUsage(100, 1), False),
        (DiskUsage(1 << 20, 1024), False),
        (DiskUsage((1 << 20) + 1, 1), True),
        (DiskUsage(0, 1025), True),
        (DiskUsage(0, 0, whole=False), True),
    ],
)
def test_over_is_more_than_was_allowed(taken: DiskUsage, over: bool) -> None:
    assert disk.is_over(taken, 1 << 20) is over


def test_links_are_not_followed_and_closed_directories_are_counted(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/file").write_bytes(b"x" * 8192)
    (tmp_path / "out").symlink_to("/usr")
    (tmp_path / "closed").chmod(0)
    try:
        assert disk.occupied(str(tmp_path)).inodes == 3
        assert (tmp_path / "closed").stat().st_mode & 0o777 == 0
    finally:
        (tmp_path / "closed").chmod(0o755)


def test_a_tree_deeper_than_a_path_can_say_is_counted(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d" * 50, dir_fd=fd)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    assert disk.occupied(str(tmp_path)).inodes == 300


def test_room_is_told_for_what_can_be_asked(tmp_path: Path) -> None:
    assert not disk.full(str(tmp_path / "missing"))


def test_layers_together_count_what_they_show(tmp_path: Path) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for layer in (upper, lower):
        (layer / "below").mkdir(parents=True)
        (layer / "below/same").write_bytes(bytes(8192))
    (lower / "only").write_bytes(bytes(8192))
    alone = disk.occupied(str(upper))
    together = disk.shown([str(upper), str(lower)])
    assert together == DiskUsage(alone.bytes + 8192, alone.inodes + 1)
    assert disk.shown([str(upper), str(lower)], apart={1}) == alone
    assert not disk.shown([str(upper), str(lower)], most=4096).whole
