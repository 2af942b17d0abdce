"""Opening name by name, where a filter hides openat2: as strict about links and ways out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.linux import openat2
from staddle.linux.openat2 import open_beneath, open_without_symlinks


@pytest.fixture(params=[False, True], ids=["openat2", "by steps"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Both ways, which have to agree."""
    monkeypatch.setattr(openat2, "_by_steps", [True] if request.param else [])
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_text("x")
    (tmp_path / "dl").symlink_to("d")
    (tmp_path / "d/fl").symlink_to("e/f")
    (tmp_path / "out").symlink_to("/etc")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("path", ["d/e/f", "./d//e/./f"])
def test_what_is_beneath_is_opened(root: int, path: str) -> None:
    with open(open_beneath(root, path, os.O_RDONLY)) as file:
        assert file.read() == "x"
        assert not os.get_inheritable(file.fileno())


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("dl/e/f", errno.ELOOP),
        ("dl", errno.ELOOP),
        ("d/fl", errno.ELOOP),
        ("out/passwd", errno.ELOOP),
        ("..", errno.EXDEV),
        ("../x", errno.EXDEV),
        ("/etc/passwd", errno.EXDEV),
        ("none", errno.ENOENT),
        ("d/none/x", errno.ENOENT),
        ("d/e/f/x", errno.ENOTDIR),
    ],
)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_PATH])
def test_what_leads_out_or_through_a_link_is_not(root: int, path: str, number: int, flags: int) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - its number is looked at
        open_beneath(root, path, flags)
    assert raised.value.errno == number


def test_the_directory_itself_and_files_that_are_made(root: int, tmp_path: Path) -> None:
    os.close(open_beneath(root, ".", os.O_RDONLY | os.O_DIRECTORY))
    os.close(open_beneath(root, "d/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
    assert (tmp_path / "d/new").stat().st_mode & 0o777 == 0o640
    os.close(open_without_symlinks(f"{tmp_path}/d/e/f", os.O_RDONLY))
    with pytest.raises(OSError, match="symbolic links"):
        open_without_symlinks(f"{tmp_path}/dl/e/f", os.O_RDONLY)


def test_nothing_is_left_open(root: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("d/e/f", "dl/x", "d/fl", "none/x", ".."):
        try:
            os.close(open_beneath(root, path, os.O_PATH))
        except OSError:
            pass
    assert len(os.listdir("/proc/self/fd")) <= before


def test_where_the_call_is_there_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openat2, "_by_steps", [])
    openat2.allow_steps()
    assert openat2._by_steps == []
