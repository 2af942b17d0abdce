"""The changes that lead from one snapshot to another, also of another branch."""

from __future__ import annotations

from pathlib import Path

import pytest

import staddle
from staddle import Sandbox
from staddle.errors import InvalidCall, LayerError
from tests.support.waiting import unique_seconds


@pytest.mark.parametrize("method", ["swap", "copy"])
def test_snapshots_are_compared_in_every_direction(method: str, tmp_path: Path) -> None:
    """Each file that differs is named, with the text of both sides; also if the layers were copied."""
    for name in ("app", "notes", "same"):
        (tmp_path / name).write_text(f"{name}\n" * 5)
    with Sandbox(tmp_path) as sb:
        if method == "copy":
            sb.start(["sleep", unique_seconds()])
        sb.run("echo more | tee -a notes >> app")
        first = sb.snapshot("first")
        sb.run("rm app; mv notes moved; echo x > only")
        second = sb.snapshot("second")
        assert second.method == method
        sb.restore(first, processes="keep")
        sb.run("echo y > other")
        third = sb.snapshot("third")
        contents = {}
        for each in (first, second, third):
            sb.restore(each, processes="keep")
            contents[each.label] = {path: sb.files.read(path) for path in sb.files.glob("*")}
        for new in (first, second, third):
            for old in (first, second, third):
                before, after = contents[old.label], contents[new.label]
                told = set()
                for change in new.diff(old):
                    told |= {Path(path).name for path in (change.path, change.old_path) if path}
                    added = [line[1:] for line in change.text_diff().splitlines() if line[:1] == "+"][1:]
                    if change.kind in ("added", "modified"):
                        assert added, change
                        assert all(line in after[Path(change.path).name] for line in added)
                expected = {name for name in before.keys() | after if before.get(name) != after.get(name)}
                assert {Path(name).name for name in expected} == told, (old.label, new.label)


def test_a_turned_change_shows_the_text_of_both_sides(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    with Sandbox(tmp_path) as sb:
        first = sb.snapshot()
        sb.run("echo two > f")
        second = sb.snapshot()
        assert "-one\n+two\n" in second.diff(first)[0].text_diff()
        assert "-two\n+one\n" in first.diff(second)[0].text_diff()


def test_snapshots_of_other_workspaces_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with staddle.Sandbox(tmp_path / "one") as one, staddle.Sandbox(tmp_path / "two") as two:
        first, other = one.snapshot(), two.snapshot()
        with pytest.raises(InvalidCall, match="workspaces"):
            first.diff(other)
        assert first.diff(one.snapshot()) == []
        first.close()
        with pytest.raises(LayerError, match="gone"):
            one.snapshot().diff(first)
