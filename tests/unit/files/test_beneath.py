"""Files beneath a directory: what is there stays there, and what is refused leaves nothing."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from staddle.environment import open_for_write, safe_mkdir_all, safe_remove
from staddle.errors import PathEscape, PathNotAllowed, PolicyError
from staddle.files import beneath
from tests.support.threads import at_once


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    made = tmp_path / "anchor"
    made.mkdir()
    (made / "link").symlink_to("../outside")
    (made / "leaf").symlink_to("../outside/secret")
    (made / "inward").symlink_to("real")
    (made / "real").mkdir()
    return made


def write(anchor: Path, path: str, data: bytes = b"new") -> None:
    with open_for_write(anchor, path) as file:
        file.write(data)


def tree(anchor: Path) -> set[str]:
    return {str(path.relative_to(anchor)) for path in anchor.rglob("*")}


def test_a_file_is_made_with_the_directories_above_it(anchor: Path) -> None:
    write(anchor, "a/b/c.txt")
    assert (anchor / "a/b/c.txt").read_bytes() == b"new"
    assert (anchor / "a/b/c.txt").stat().st_mode & 0o777 == 0o644


def test_a_file_is_replaced_whole_and_keeps_its_permissions(anchor: Path) -> None:
    (anchor / "run.sh").write_text("old and longer")
    (anchor / "run.sh").chmod(0o4750)
    write(anchor, "run.sh")
    assert (anchor / "run.sh").read_bytes() == b"new"
    assert (anchor / "run.sh").stat().st_mode & 0o7777 == 0o750


def test_a_hard_link_is_never_written_through(anchor: Path) -> None:
    os.link(anchor.parent / "outside/secret", anchor / "hard")
    write(anchor, "hard")
    assert (anchor.parent / "outside/secret").read_text() == "secret"
    assert (anchor / "hard").read_text() == "new"


@pytest.mark.parametrize(
    "path", ["link/x", "link/secret", "leaf", "inward/x", "/etc/x", "../x", "a/../../x", "a/../b"]
)
def test_what_leads_out_or_through_a_link_is_an_escape(anchor: Path, path: str) -> None:
    before = tree(anchor.parent)
    with pytest.raises(PathEscape):
        write(anchor, path)
    with pytest.raises(PathEscape):
        safe_mkdir_all(anchor, path)
    assert tree(anchor.parent) == before
    assert (anchor.parent / "outside/secret").read_text() == "secret"


@pytest.mark.parametrize("path", ["link/secret", "inward/x", "/etc/passwd", "../outside/secret"])
def test_removing_through_a_link_is_an_escape(anchor: Path, path: str) -> None:
    with pytest.raises(PathEscape):
        safe_remove(anchor, path)
    assert (anchor.parent / "outside/secret").exists()


def test_removing_a_link_removes_the_link(anchor: Path) -> None:
    safe_remove(anchor, "leaf")
    assert not (anchor / "leaf").is_symlink()
    assert (anchor.parent / "outside/secret").exists()
    with pytest.raises(FileNotFoundError):
        safe_remove(anchor, "leaf")


@pytest.mark.parametrize("path", ["", ".", "./", "a/", "a/."])
def test_a_file_has_a_name(anchor: Path, path: str) -> None:
    for attempt in (write, safe_remove):
        with pytest.raises(PathNotAllowed):
            attempt(anchor, path)


def test_a_nul_is_refused(anchor: Path) -> None:
    with pytest.raises(PolicyError):
        write(anchor, "a\0b")


@pytest.mark.timeout(10)
def test_what_is_no_file_is_refused_without_waiting(anchor: Path) -> None:
    os.mkfifo(anchor / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(anchor)  # a socket's path is short
        server.bind("socket")
        os.chdir(here)
        root = os.open(anchor, os.O_PATH)
        for name in ("pipe", "socket"):
            with pytest.raises(PathNotAllowed):
                write(anchor, name)
            with pytest.raises(PathNotAllowed):
                beneath.read(root, name, 100)
        with pytest.raises(IsADirectoryError):
            write(anchor, "real")
        with pytest.raises(IsADirectoryError):
            beneath.read(root, "real", 100)
        os.close(root)


def test_a_failure_leaves_neither_a_half_file_nor_a_descriptor(anchor: Path) -> None:
    (anchor / "kept").write_text("old")
    before, descriptors = tree(anchor), len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError), open_for_write(anchor, "kept") as file:  # noqa: PT012
        file.write(b"half")
        raise RuntimeError
    with pytest.raises(NotADirectoryError):
        write(anchor, "kept/below")
    with pytest.raises(OSError, match="too long"):
        write(anchor, "x" * 300)
    assert (tree(anchor), (anchor / "kept").read_text()) == (before, "old")
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_until_it_is_whole_a_file_has_no_name(anchor: Path) -> None:
    (anchor / "kept").write_text("old")
    before = tree(anchor)
    file = open_for_write(anchor, "kept")
    file.write(b"half")
    assert (tree(anchor), (anchor / "kept").read_text()) == (before, "old")
    file.close()
    file.close()
    assert (tree(anchor), (anchor / "kept").read_text()) == (before, "half")
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


def test_a_file_system_without_unnamed_files_does_as_well(
    anchor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def old(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", old)
    write(anchor, "a/b")
    write(anchor, "a/b", b"again")
    before = tree(anchor)
    assert (anchor / "a/b").read_bytes() == b"again"
    with pytest.raises(RuntimeError), open_for_write(anchor, "a/b") as file:  # noqa: PT012
        file.write(b"half")
        raise RuntimeError
    assert tree(anchor) == before


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EXDEV, PathEscape),
        (errno.ELOOP, PathEscape),
        (errno.EACCES, PermissionError),
        (errno.ENOSYS, PathNotAllowed),
        (errno.EAGAIN, PathNotAllowed),
        (errno.ENOENT, FileNotFoundError),
    ],
)
def test_what_the_kernel_refuses_is_never_tried_another_way(
    anchor: Path, number: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(beneath, "open_beneath", refusing)
    before = tree(anchor)
    for attempt in (write, safe_mkdir_all, safe_remove):
        if number == errno.ENOENT and attempt is safe_mkdir_all:
            continue
        with pytest.raises(kind):
            attempt(anchor, "real/x")
    assert tree(anchor) == before


def test_many_at_once_make_the_same_directories(anchor: Path) -> None:
    at_once(*[lambda: safe_mkdir_all(anchor, "a/b/c/d/e")] * 8)
    safe_mkdir_all(anchor, "a/b/c/d/e/")
    assert (anchor / "a/b/c/d/e").is_dir()
