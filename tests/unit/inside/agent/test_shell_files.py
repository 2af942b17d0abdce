"""The files between a shell and the host program: made, renewed and gone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.inside.agent.shell_files import (
    NAMES,
    SHELL_OPTIONS,
    Channel,
    ChannelFiles,
    InDirectory,
    Nameless,
    greeting,
)


@pytest.fixture(params=["directory", "nameless"])
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Channel]:
    if request.param == "nameless":
        yield Nameless()
        return
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield InDirectory(directory, bytes(tmp_path))
    os.close(directory)
    assert list(tmp_path.iterdir()) == []


def place(files: ChannelFiles, name: str) -> bytes:
    return files.paths()[NAMES.index(name)]


def test_both_ends_are_the_same_file(channel: Channel) -> None:
    files = ChannelFiles(channel, 0)
    os.pwrite(files.descriptor("text"), b"echo", 0)
    with open(place(files, "text"), "rb") as shown:
        assert shown.read() == b"echo"
    for name in ("output", "errors", "done"):
        writer = os.open(place(files, name), os.O_WRONLY)
        os.write(writer, name.encode())
        os.close(writer)
        assert os.read(files.descriptor(name), 99) == name.encode()
    assert os.read(files.descriptor("output"), 99) == b""  # nobody has it open any more
    files.close()


def test_the_place_that_is_nowhere_is_not_there(channel: Channel) -> None:
    files = ChannelFiles(channel, 0)
    with pytest.raises(FileNotFoundError):
        os.open(files.paths()[-1] + b"/nonce", os.O_WRONLY | os.O_CREAT)
    files.close()


def test_renewed_pipes_leave_the_old_ones_to_whoever_holds_them(channel: Channel) -> None:
    files = ChannelFiles(channel, 0)
    reader = os.dup(files.descriptor("output"))
    writer = os.open(place(files, "output"), os.O_WRONLY)
    old = files.pipes()
    files.renew()
    assert files.former == old
    assert not files.pipes() & old
    os.write(writer, b"late")
    assert os.read(reader, 99) == b"late"
    new = os.open(place(files, "output"), os.O_WRONLY)
    with pytest.raises(BlockingIOError):
        os.read(files.descriptor("output"), 99)
    for fd in (reader, writer, new):
        os.close(fd)
    files.close()


def test_shells_share_a_channel(channel: Channel) -> None:
    first, second = ChannelFiles(channel, 0), ChannelFiles(channel, 1)
    assert not set(first.paths()[:-1]) & set(second.paths()[:-1])
    first.close()
    second.close()


def test_nothing_stays_open(channel: Channel) -> None:
    before = os.listdir("/proc/self/fd")
    files = ChannelFiles(channel, 0)
    for _ in range(3):
        files.renew()
    files.close()
    assert {*os.listdir("/proc/self/fd")} <= {*before}


# What a shell is told first does nothing that a command could notice.


def places(directory: Path) -> tuple[bytes, ...]:
    for name in NAMES:
        (directory / name).touch()
    return (*(bytes(directory / name) for name in NAMES), bytes(directory / "nowhere"))


def test_the_file_for_texts_is_not_read(tmp_path: Path) -> None:
    where = places(tmp_path)
    assert where[NAMES.index("text")] not in greeting(where)


def test_a_shell_says_which_it_is_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    where = places(tmp_path)
    asked = b'echo "$? [$_] $# ${OLDPWD-unset} $- ${#BASH_SOURCE[@]}" >answer\n'
    subprocess.run(
        [b"bash", *SHELL_OPTIONS],
        input=greeting(where) + asked,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin"},
        check=True,
        timeout=20,
    )
    status, last, count, oldpwd, flags, depth = (tmp_path / "answer").read_text().split()
    assert (status, last, count, oldpwd, depth) == ("0", "[]", "0", "unset", "0")
    assert set(flags) - {"m"} == set("hiBs")
    assert (
        b"/hello.5." in (tmp_path / "done").read_bytes() or b"/hello.4." in (tmp_path / "done").read_bytes()
    )
    assert (tmp_path / "output").read_bytes() == (tmp_path / "errors").read_bytes() == b""
