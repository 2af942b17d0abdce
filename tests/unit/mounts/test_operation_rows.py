"""Operations survive being told to another process."""

from __future__ import annotations

import pytest

from staddle.mounts.operations import (
    BIND,
    MASK,
    Bind,
    Devices,
    Directory,
    Empty,
    File,
    Mask,
    Overlay,
    ProcMount,
    Seal,
    Symlink,
    decode_operations,
    encode_operations,
)

EVERY = (
    Empty("/", 0o755, 4096, ""),
    Bind("/w", True, ""),
    Bind("/r\udcff\n", False, "", below=True),
    Bind("/w/.git", False, "", below=True, again=True),
    Bind("/run/s", False, "", optional=True),
    Overlay("/w/a", "/up\udcff\n", "/work", ""),
    Empty("/tmp", 0o1777, 7, "", below=True),
    Directory("/tmp/a", 0o555, ""),
    Mask("/r/secret", ""),
    File("/etc/hosts", b"\xff\0", ""),
    File("/etc/passwd", b"", "", below=True),
    File("/home/user/.bashrc", b"x", "", mode=0o644),
    Symlink("/bin", "usr/bin\udcff", ""),
    Devices("/dev", ""),
    ProcMount("/proc", ""),
    Seal("/", ""),
)


def test_each_arrives_as_it_was() -> None:
    assert decode_operations(encode_operations(EVERY)) == EVERY


def test_where_it_comes_from_stays_here() -> None:
    (row,) = encode_operations([Mask("/a", "a secret rule")])
    assert row == (MASK, b"/a", 0, 0, 0, b"")


@pytest.mark.parametrize(
    "row",
    [(b"remove", b"/a", 0, 0, 0, b""), (BIND, b"a", 0, 0, 0, b""), (BIND, b"/a\0", 0, 0, 0, b"")],
)
def test_nonsense_is_refused(row: tuple[bytes, bytes, int, int, int, bytes]) -> None:
    with pytest.raises(ValueError, match=r"operation|path"):
        decode_operations([row])
