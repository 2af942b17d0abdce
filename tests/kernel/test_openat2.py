"""Opening without following a link, and without leaving a directory."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from staddle.linux.openat2 import open_beneath, open_without_symlinks
from tests.support.in_a_child import captured

HERE = Path(__file__).parent


def refused(*args: object, beneath: bool = True) -> int:
    with pytest.raises(OSError) as error:  # noqa: PT011 - the number is what is looked at
        (open_beneath if beneath else open_without_symlinks)(*args)  # type: ignore[arg-type]
    return error.value.errno or 0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in/d").mkdir(parents=True)
    (tmp_path / "in/d/f").write_text("inside")
    (tmp_path / "out").write_text("outside")
    (tmp_path / "in/file-link").symlink_to("d/f")
    (tmp_path / "in/directory-link").symlink_to("d")
    (tmp_path / "in/absolute").symlink_to(tmp_path / "out")
    (tmp_path / "in/up").symlink_to("../out")
    (tmp_path / "in/dangling").symlink_to("nowhere")
    return tmp_path


def test_beneath_a_directory(place: Path) -> None:
    directory = os.open(place / "in", os.O_RDONLY)
    try:
        fd = open_beneath(directory, "d/f", os.O_RDONLY)
        assert os.read(fd, 99) == b"inside"
        assert not os.get_inheritable(fd)
        os.close(fd)
        for path in ("file-link", "directory-link/f", "absolute", "up", "dangling"):
            assert refused(directory, path, os.O_RDONLY) == errno.ELOOP
        for path in ("../out", "d/../../out", "..", "/etc/passwd", str(place / "in/d/f")):
            assert refused(directory, path, os.O_RDONLY) == errno.EXDEV
        assert refused(directory, "none", os.O_RDONLY) == errno.ENOENT
        assert refused(directory, "", os.O_RDONLY) == errno.ENOENT
        fd = open_beneath(directory, "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        assert os.fstat(fd).st_mode & 0o777 == 0o640 & ~umask()
        os.close(fd)
        assert refused(directory, "dangling", os.O_WRONLY | os.O_CREAT, 0o600) == errno.ELOOP
        assert not (place / "in/nowhere").exists()
    finally:
        os.close(directory)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_absolute_path_without_links(place: Path) -> None:
    os.close(open_without_symlinks(str(place / "in/d/f"), os.O_PATH))
    assert refused(str(place / "in/directory-link/f"), os.O_PATH, beneath=False) == errno.ELOOP
    assert refused(str(place / "in/file-link"), os.O_PATH, beneath=False) == errno.ELOOP
    assert refused("/proc/self/cwd", os.O_PATH, beneath=False) == errno.ELOOP
    assert refused(f"/proc/{os.getpid()}/cwd/etc", os.O_PATH, beneath=False) == errno.ELOOP


def test_any_bytes_are_a_name_and_the_error_says_which(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\n \\")
    (tmp_path / name).touch()
    os.close(open_without_symlinks(f"{tmp_path}/{name}", os.O_RDONLY))
    with pytest.raises(FileNotFoundError) as error:
        open_without_symlinks(f"{tmp_path}/{name}x", os.O_RDONLY)
    assert error.value.filename == f"{tmp_path}/{name}x"


def test_a_kernel_or_filter_without_it_is_a_refusal_and_no_second_try(tmp_path: Path) -> None:
    """RestrictSUIDSGID= of systemd answers ENOSYS, for one."""
    (tmp_path / "f").write_text("content")
    script = f"""
import os, struct
from staddle.linux import process, seccomp, syscalls
from staddle.linux.openat2 import open_beneath
number = syscalls.number("openat2")
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)]
directory = os.open({str(tmp_path)!r}, os.O_RDONLY)
process.no_new_privs()
seccomp.load(b"".join(struct.pack("HBBI", *row) for row in rows))
try:
    open_beneath(directory, "f", os.O_RDONLY)
except OSError as error:
    print(error.errno)
"""
    done = captured(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")}
    )
    assert done.stdout.strip() == str(errno.ENOSYS), done.stderr


def test_a_directory_that_turns_into_a_link_and_back_never_leads_out(place: Path) -> None:
    stop = threading.Event()
    inside, parked, link = place / "in/d", place / "in/parked", place / "in/way-out"
    outside = place / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    link.symlink_to(outside)

    def swap() -> None:
        while not stop.is_set():
            inside.rename(parked)
            link.rename(inside)
            inside.rename(link)
            parked.rename(inside)

    thread = threading.Thread(target=swap)
    thread.start()
    directory = os.open(place / "in", os.O_RDONLY)
    seen = set()
    try:
        for _ in range(5000):
            try:
                fd = open_beneath(directory, "d/f", os.O_RDONLY)
            except OSError as error:
                seen.add(error.errno)
                continue
            assert os.read(fd, 99) == b"inside"
            os.close(fd)
    finally:
        stop.set()
        thread.join()
        os.close(directory)
    assert seen <= {errno.ELOOP, errno.ENOENT, errno.EAGAIN, errno.EXDEV}
