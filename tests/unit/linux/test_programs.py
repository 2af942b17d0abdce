"""Which programs are started: the system's, and only if nobody else can change them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.linux import programs


def made(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_first_directory_that_has_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    made(tmp_path / "b/tool")
    directories = tuple(str(tmp_path / name) for name in ("none", "a", "b"))
    found = programs.find("tool", directories)
    assert found is not None
    assert found.path == f"{tmp_path}/b/tool"
    assert programs.find("other", directories) is None


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o4755, 0o2755, 0o644])
def test_a_mode_that_is_not_trusted(mode: int, tmp_path: Path) -> None:
    found = programs.examine(made(tmp_path / "tool", mode=mode), owners=(os.geteuid(),))
    assert found is not None
    assert found.problem


def test_an_owner_that_is_not_trusted(tmp_path: Path) -> None:
    path = made(tmp_path / "tool")
    trusted = programs.examine(path, owners=(os.geteuid(),))
    stranger = programs.examine(path, owners=(os.geteuid() + 1,))
    assert trusted is not None
    assert stranger is not None
    assert not trusted.problem
    assert "changed by others" in stranger.problem


def test_the_identity_changes_with_the_file(tmp_path: Path) -> None:
    first = programs.examine(made(tmp_path / "tool"))
    second = programs.examine(made(tmp_path / "tool", "#!/bin/sh\necho\n"))
    assert first is not None
    assert second is not None
    assert first.identity != second.identity
