"""Reading where a repository's config leads, without running git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from staddle.hostinfo.gitconfig import leads_to, parse

SAMPLES = [
    "[core]\n\thooksPath = a\n",
    "[core]\nHOOKSPATH=a b\n",
    '[core]\n\thooksPath = "a;b#c" ; comment\n',
    "[core] hooksPath = a # comment\n",
    '[core]\n\thooksPath = a\\\\b\\t"c d"\n',
    "[core]\n\thooksPath = a\\\nb\n",
    '[other "core"]\n\thooksPath = a\n[core]\n\tx = y\n',
    "[core]\n  ; hooksPath = a\n  hooksPath = b\n",
]


@pytest.mark.parametrize("text", SAMPLES)
def test_values_are_read_as_git_reads_them(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    asked = subprocess.run(
        ["git", "config", "--file", str(file), "-z", "--get-all", "core.hooksPath"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = asked.stdout.split("\0")[:-1]
    assert [
        value for section, key, value in parse(text) if (section, key) == ("core", "hookspath")
    ] == expected


def test_a_circle_of_includes_ends(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    git.mkdir()
    (git / "config").write_text("[include]\npath = config\npath = other\n")
    (git / "other").write_text("[include]\npath = config\n[core]\nhooksPath = h\n")
    assert set(leads_to(str(git))) == {(f"{git}/other", ".git/config"), (f"{tmp_path}/h", ".git/hooks")}


def test_many_includes_are_bounded(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    git.mkdir()
    (git / "config").write_text("[include]\npath = 0\n")
    for number in range(100):
        (git / str(number)).write_text(f"[include]\npath = {number + 1}\n")
    assert len(list(leads_to(str(git)))) < 30


def test_a_submodule_knows_its_working_tree(tmp_path: Path) -> None:
    git = tmp_path / ".git/modules/sub"
    git.mkdir(parents=True)
    (git / "config").write_text("[core]\nhooksPath = h\nworktree = ../../../sub\n")
    assert list(leads_to(str(git))) == [(f"{tmp_path}/sub/h", ".git/hooks")]


def test_devices_pipes_and_missing_files_say_nothing(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    git.mkdir()
    (git / "config").symlink_to("/dev/zero")
    os.mkfifo(git / "commondir")
    assert list(leads_to(str(git))) == []
    (tmp_path / "pointer").write_text("gitdir: /no/such\n")
    assert list(leads_to(str(tmp_path / "pointer"))) == []
    (tmp_path / "pointer").write_text("nonsense")
    assert list(leads_to(str(tmp_path / "pointer"))) == []
