"""Output is bounded, counted exactly, whole on disk when asked, and never cut inside a character."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from staddle.errors import InvalidCall
from staddle.sandbox.capture import Capture, TextCallback, spills


def test_up_to_the_limit_nothing_is_dropped_and_no_file_is_made(tmp_path: Path) -> None:
    out, _ = spills(tmp_path)
    kept = Capture(10, out)
    kept.feed(b"01234")
    kept.feed(b"56789")
    assert kept.finish() == (b"0123456789", 0, 0, None)
    assert list(tmp_path.iterdir()) == []


def test_beyond_it_head_and_tail_are_kept_and_the_file_has_all(tmp_path: Path) -> None:
    out, err = spills(tmp_path)
    kept, other = Capture(10, out), Capture(10, err)
    data = bytes(range(256)) * 40
    for start in range(0, len(data), 7):
        kept.feed(data[start : start + 7])
    other.feed(b"little")
    found, dropped, _, path = kept.finish()
    assert (found, dropped) == (data[:5] + data[-5:], len(data) - 10)
    assert path is not None
    assert Path(path).read_bytes() == data
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert other.finish() == (b"little", 0, 0, None)
    assert [str(found) for found in tmp_path.iterdir()] == [path]


def test_one_piece_larger_than_everything_is_spilled_whole(tmp_path: Path) -> None:
    out, _ = spills(tmp_path)
    kept = Capture(4, out)
    kept.feed(b"abcdefghij")
    found, dropped, _, path = kept.finish()
    assert path is not None
    assert Path(path).read_bytes() == b"abcdefghij"
    assert (found, dropped) == (b"abij", 6)


def test_a_full_disk_leaves_no_half_file_and_does_not_disturb_the_command(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    out, _ = spills(tmp_path)
    kept = Capture(4, out)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for _ in range(100):
            kept.feed(b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept.finish() == (b"xxxx", 9996, 2, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [3, b"\xff".decode("latin-1") + "/nowhere", True])
def test_a_spill_directory_must_be_there(wrong: object) -> None:
    with pytest.raises(InvalidCall, match="spill"):
        spills(wrong)


def test_text_arrives_as_it_comes_and_whole() -> None:
    heard: list[str] = []
    told = TextCallback(heard.append)
    for byte in "aé€😀".encode():
        told.feed(bytes([byte]))
    assert heard == ["a", "é", "€", "😀"]
    told.feed(b"\xe2\x82")
    told.finish()
    assert heard[-1] == "\ufffd"
