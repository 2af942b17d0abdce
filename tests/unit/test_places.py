"""Directories of ours have their exact mode, and other programs may change them meanwhile."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle import places
from staddle.places import make_directory
from tests.support.in_a_child import SRC


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


def test_the_directory_of_a_killed_process_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "runtime", lambda: str(tmp_path / "run"))
    killed, ours = tmp_path / "run/kind/app.99999999", Path(places.of_this_process("kind", "app"))
    killed.mkdir(mode=0o700)
    (killed / "socket").touch()
    assert list(places.ended(str(ours.parent))) == [str(killed)]
    assert places.of_this_process("kind", "app") == str(ours)
    assert [each.name for each in ours.parent.iterdir()] == [f"app.{os.getpid()}"]


def test_root_of_a_user_namespace_has_the_name_of_who_it_is_outside() -> None:
    """Or it would find the directories of the host's root there, and could not use them."""
    uid = os.geteuid() or 1234
    become = () if os.geteuid() else ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    script = (
        f"import sys; sys.path.insert(0, {str(SRC)!r}); from staddle import places; print(places.runtime())"
    )
    argv = [*become, "unshare", "-Ur", sys.executable, "-I", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith(f"staddle-run-{uid}"), done
