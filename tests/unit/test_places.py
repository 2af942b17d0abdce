"""Directories of ours have their exact mode, and other programs may change them meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle.places import make_directory


def test_the_umask_does_not_matter(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        make_directory(str(tmp_path / "made"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


@pytest.mark.parametrize("then", [lambda path: os.chmod(path, 0o711), os.rmdir], ids=["opened", "removed"])
def test_another_program_may_change_or_remove_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: Callable[[str], None]
) -> None:
    """A program that lets others pass through it would otherwise lose its sandboxes."""
    mkdir = os.mkdir

    def made(path: str, mode: int, *, dir_fd: int | None = None) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        then(path)

    monkeypatch.setattr(os, "mkdir", made)
    place = tmp_path / "made"
    make_directory(str(place))
    assert not place.exists() or stat.S_IMODE(place.stat().st_mode) == 0o711
