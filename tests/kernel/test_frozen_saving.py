"""A saved snapshot has a copy of a small workspace: it is a point in time, also elsewhere."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncSandbox, Policy, Sandbox, Snapshot
from staddle.errors import ArchiveRefused, CommitRefused, LayerError
from staddle.layers import archive
from staddle.layers.frozen_base import FreezeBounds
from staddle.layers.stack import LayerSnapshot
from staddle.sandbox.workspace.stores import empty_directory, store_for
from tests.support.waiting import until


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "sub").mkdir(parents=True)
    for name in ("file", "other", "sub/deep", "sub/gone"):
        (place / name).write_text("of the host\n")
    (place / "sub/run").write_text("#!/bin/sh\necho ran\n")
    (place / "sub/run").chmod(0o755)
    (place / "link").symlink_to("file")
    return place


@pytest.fixture
def saved(project: Path, tmp_path: Path) -> Path:
    with Sandbox(project) as sandbox:
        sandbox.run("echo mine > other; rm sub/gone; mood=calm")
        sandbox.snapshot().save(tmp_path / "saved")
    return tmp_path / "saved"


LOOK = "cat file other link; ls sub; sub/run; echo $mood"
SEEN = "of the host\nmine\nof the host\ndeep\nrun\nran\ncalm\n"


def edit(project: Path) -> None:
    (project / "file").write_text("later\n")
    (project / "sub/deep").unlink()
    (project / "new").write_text("new\n")


def test_it_is_as_it_was_although_the_host_has_changed_the_directory(saved: Path, project: Path) -> None:
    edit(project)
    with Sandbox.from_snapshot(saved, project) as sb:
        assert sb.frozen
        assert sb.run(LOOK).stdout == SEEN
        assert [change.path for change in sb.diff()] == ["/workspace/other", "/workspace/sub/gone"]
        sb.commit()
    assert (project / "other").read_text() == "mine\n"
    assert (project / "file").read_text() == "later\n"


def test_what_the_host_changed_too_is_a_conflict(saved: Path, project: Path) -> None:
    edit(project)
    for command, path in (
        ("echo 1 > file", "file"),
        ("echo 1 > sub/deep", "sub/deep"),
        ("echo 1 > new", "new"),
    ):
        with Sandbox.from_snapshot(saved, project) as sb:
            sb.run(command)
            with pytest.raises(CommitRefused) as refused:
                sb.commit([path])
            assert [conflict.path for conflict in refused.value.conflicts] == [path]


def test_without_a_workspace_everything_is_there(saved: Path, tmp_path: Path) -> None:
    with Sandbox.from_snapshot(saved) as sb:
        assert sb.frozen
        assert sb.run(LOOK).stdout == SEEN
        (tmp_path / "target").mkdir()
        sb.run("echo 1 > more")
        sb.commit(["more"], to=tmp_path / "target")
        again = sb.snapshot()
        sb.run("rm -r *")
        sb.restore(again)
        assert sb.run(LOOK).stdout == SEEN
        (fork,) = sb.fork()
        with fork:
            assert fork.run(LOOK).stdout == SEEN
    assert (tmp_path / "target/more").read_text() == "1\n"


def test_in_another_directory_a_file_that_is_another_one_is_a_conflict(saved: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "sub").mkdir(parents=True)
    (elsewhere / "file").write_text("of the host\n")
    (elsewhere / "other").write_text("of another project\n")
    with Sandbox.from_snapshot(saved, elsewhere) as sb:
        assert sb.run(LOOK).stdout == SEEN
        sb.run("echo 1 > file")
        with pytest.raises(CommitRefused) as refused:
            sb.commit()
        assert [conflict.path for conflict in refused.value.conflicts] == ["other"]
        sb.commit(["file"])
    assert (elsewhere / "file").read_text() == "1\n"
    assert (elsewhere / "other").read_text() == "of another project\n"


def test_it_can_be_saved_again_and_awaited(saved: Path, project: Path, tmp_path: Path) -> None:
    edit(project)
    loaded = Snapshot.load(saved)
    assert loaded.frozen
    loaded.save(tmp_path / "again")
    loaded.close()
    with Sandbox.from_snapshot(tmp_path / "again", project) as sb:
        sb.snapshot().save(tmp_path / "third")

    async def work() -> str:
        async with await AsyncSandbox.from_snapshot(tmp_path / "third", project) as sb:
            return (await sb.run(LOOK)).stdout

    assert asyncio.run(work()) == SEEN


def test_an_open_sandbox_that_becomes_it_keeps_its_own_directory(saved: Path, project: Path) -> None:
    edit(project)
    with Sandbox(project) as sb:
        sb.restore(Snapshot.load(saved))
        assert sb.run("cat file other").stdout == "later\nmine\n"
        assert not sb.frozen


def test_by_choice_the_copy_is_left_out_or_not_used(saved: Path, project: Path, tmp_path: Path) -> None:
    with Sandbox(project) as sb:
        sb.run("echo mine > other")
        sb.snapshot().save(tmp_path / "bare", freeze=False)
    edit(project)
    assert not Snapshot.load(tmp_path / "bare").frozen
    for given in (
        Sandbox.from_snapshot(tmp_path / "bare", project),
        Sandbox.from_snapshot(saved, project, freeze=False),
    ):
        with given as sb:
            assert not sb.frozen
            assert sb.run("cat file other").stdout == "later\nmine\n"
    with Sandbox.from_snapshot(tmp_path / "bare") as sb:
        assert sb.run("ls").stdout == "other\n"


def test_a_large_directory_is_not_in_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("staddle.sandbox.workspace.frozen.UNASKED", FreezeBounds(3, 1 << 20))
    with Sandbox(project) as sb:
        snapshot = sb.snapshot()
        snapshot.save(tmp_path / "one")
        snapshot.save(tmp_path / "two", freeze=True)
        monkeypatch.setattr("staddle.sandbox.workspace.frozen.ASKED", FreezeBounds(3, 1 << 20))
        with pytest.raises(LayerError, match="cannot be frozen"):
            snapshot.save(tmp_path / "three", freeze=True)
    assert not (tmp_path / "three").exists()
    assert [Snapshot.load(tmp_path / name).frozen for name in ("one", "two")] == [False, True]


def test_denied_paths_are_not_in_it_and_stay_denied(project: Path, tmp_path: Path) -> None:
    (project / ".env").write_text("a very secret value\n")
    policy = Policy.agent().with_deny(project / ".env")
    with Sandbox(project, policy) as sb:
        sb.snapshot().save(tmp_path / "saved")
    layers, _ = archive.load(str(tmp_path / "saved"), store_for(None))
    assert os.stat(f"{layers['base'].upper}/.env").st_size == 0
    for layer in layers.values():
        layer.drop()
    (project / "file").write_text("later\n")
    with Sandbox.from_snapshot(tmp_path / "saved", project, policy=policy) as sb:
        assert not sb.frozen  # a copy need not have what is covered
        assert "secret" not in sb.run("cat .env 2>&1; cat file").stdout


def test_a_directory_that_was_moved_is_not_in_it(project: Path, tmp_path: Path) -> None:
    policy = Policy.agent().with_deny(project / "other")
    with Sandbox(project, policy) as sb:
        sb.run("echo mine > file")
        project.rename(tmp_path / "moved")
        sb.snapshot().save(tmp_path / "gone")
        project.mkdir()  # another one, in which nothing is denied
        sb.snapshot().save(tmp_path / "replaced")
        with pytest.raises(LayerError, match="moved"):
            sb.snapshot().save(tmp_path / "asked", freeze=True)
    for name in ("gone", "replaced"):
        assert not Snapshot.load(tmp_path / name).frozen


# ---------------------------------------------------------------- files of others


def forged(saved: Path, change: Callable[[dict[str, Any], Path], object]) -> Path:
    """The same file with other facts, or another copy."""
    layers, facts = archive.load(str(saved), store_for(None))
    change(facts, Path(layers["base"].upper))
    store = store_for(None)
    points = {
        name: LayerSnapshot(store, [empty_directory(store)], (layer,))
        for name, layer in layers.items()
        if name != "base" or facts.get("base") is not None
    }
    archive.save(points, f"{saved}.forged", facts=facts)
    for point in (*points.values(), *layers.values()):
        point.close() if isinstance(point, LayerSnapshot) else point.drop()
    return Path(f"{saved}.forged")


def test_files_of_earlier_versions_are_read(saved: Path, project: Path) -> None:
    edit(project)
    with Sandbox.from_snapshot(forged(saved, lambda facts, _: facts.pop("base")), project) as sb:
        assert sb.run("cat file other").stdout == "later\nmine\n"


def whiteout(_: dict[str, Any], base: Path) -> None:
    os.mknod(base / "hidden", stat.S_IFCHR, 0)


@pytest.mark.parametrize(
    "change",
    [
        whiteout,
        lambda facts, _: facts.update(base=False),
        lambda facts, _: facts.update(base="base"),
        lambda facts, _: facts.update(base=-1),
        lambda facts, _: facts.update(base=1 << 70),
        lambda facts, _: facts["trees"].append({"layer": "base", "root": "/etc", "places": ["/etc"]}),
    ],
)
def test_a_file_that_save_does_not_write_is_refused(
    saved: Path, change: Callable[[dict[str, Any], Path], object]
) -> None:
    path = forged(saved, change)
    with pytest.raises(ArchiveRefused):
        Snapshot.load(path)


def test_a_copy_with_too_much_in_it_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staddle.sandbox.workspace.snapshot_file._MOST_PLACES", 0)
    for bounds in (FreezeBounds(3, 1 << 20), FreezeBounds(1000, 20)):
        monkeypatch.setattr("staddle.sandbox.workspace.snapshot_file.ASKED", bounds)
        with pytest.raises(ArchiveRefused):
            Snapshot.load(saved)


def test_a_snapshot_leaves_most_of_the_store_to_others(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def share(place: str) -> int:
        asked.append(place)
        return 1000

    monkeypatch.setattr("staddle.sandbox.workspace.snapshot_file.free_share", share)
    with pytest.raises(LayerError, match="does not fit"):
        Snapshot.load(saved)
    assert asked == [store_for(None).path]


@pytest.mark.slow
def test_nothing_is_left_of_a_snapshot_that_was_loaded(saved: Path, project: Path) -> None:
    store = store_for(None).path

    def copies() -> set[str]:
        return {place for place, _, names in os.walk(store) if "deep" in names}

    before = copies()
    with Sandbox.from_snapshot(saved, project) as sb:
        assert copies() - before
        sb.snapshot().close()
        sb.restore(Snapshot.load(saved))
    assert until(lambda: not copies() - before)
