"""Which bwrap is there, as its own file tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle.backends import bwrap


def made(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_version_and_abilities_are_read_from_the_file(tmp_path: Path) -> None:
    path = made(tmp_path / "bwrap", "\0bubblewrap is\0bubblewrap 0.11.2\0--ro-bind-fd\0")
    assert bwrap.describe(path) == bwrap.Bubblewrap("0.11.2", True)


def test_a_script_is_asked(tmp_path: Path) -> None:
    text = '#!/bin/sh\ntest "$1" = --help && echo "--ro-bind-fd FD" || echo bubblewrap "0.9.0"\n'
    assert bwrap.describe(made(tmp_path / "bwrap", text)) == bwrap.Bubblewrap("0.9.0", True)
    assert bwrap.describe(made(tmp_path / "bwrap", "#!/bin/sh\nexit 1\n")).version == ""


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("0.8.0", False),
        ("0.8", True),
        ("0.12.0", False),
        ("1.0", False),
        ("0.7.9", True),
        ("", True),
        ("x.y", True),
    ],
)
def test_versions(version: str, old: bool) -> None:
    assert bwrap.is_old(version) is old
