"""What the host changes under a sandbox: seen inside, and told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Sandbox, Snapshot
from staddle.errors import CommitRefused, InvalidCall
from staddle.layers.drift import Drift, now, now_ns


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "sub").mkdir(parents=True)
    for name in ("file", "other", "sub/deep", "sub/gone"):
        (place / name).write_text("of the host\n")
    tick()
    return place


@pytest.fixture
def sandbox(project: Path) -> Iterator[Sandbox]:
    with Sandbox(project) as opened:
        yield opened


def tick() -> None:
    """Let the clock move that files are stamped with."""
    before = now()
    while now() == before:
        time.sleep(0.001)


def edit(project: Path) -> None:
    tick()
    (project / "file").write_text("later\n")
    (project / "sub/gone").unlink()
    (project / "sub/new").write_text("new\n")


EDITED = ("/workspace/file", "/workspace/sub/", "/workspace/sub/new")


def test_a_snapshot_tells_what_the_host_changed_since(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("echo mine > other")
    snapshot = sandbox.snapshot()
    assert not snapshot.drift()
    assert not sandbox.drift()
    assert not sandbox.restore(snapshot).drift
    edit(project)
    assert snapshot.drift().paths == EDITED
    assert snapshot.drift(limit=2).more
    assert len(snapshot.drift(limit=2).paths) == 2
    restored = sandbox.restore(snapshot)
    assert restored.drift.paths == EDITED
    assert sandbox.run("cat file other").stdout == "later\nmine\n"  # as it says
    assert sandbox.drift().paths == EDITED
    tick()
    assert not sandbox.snapshot().drift()


def test_what_the_sandbox_has_changed_itself_is_no_drift_but_a_conflict(
    sandbox: Sandbox, project: Path
) -> None:
    sandbox.run("echo mine > file; rm -r sub; mkdir sub; echo mine > sub/own")
    snapshot = sandbox.snapshot()
    edit(project)
    assert snapshot.drift().paths == ()
    told = {change.path: change.conflict for change in sandbox.diff()}
    assert told["/workspace/file"] == "it was changed on the host since then"
    assert told["/workspace/sub/own"] == ""


def test_a_fork_tells_it_too(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        assert not fork.drift()
        edit(project)
        assert fork.drift().paths == EDITED


def test_only_some_entries_are_looked_at_where_nobody_asked(sandbox: Sandbox, project: Path) -> None:
    for number in range(1200):
        (project / f"n{number}").touch()
    tick()
    snapshot = sandbox.snapshot()
    found = sandbox.restore(snapshot).drift
    assert not found.complete
    assert found
    assert found.paths == ()
    assert snapshot.drift() == Drift()


def test_without_a_workspace_there_is_none(tmp_path: Path) -> None:
    with Sandbox() as sandbox:
        sandbox.run("echo x > y")
        snapshot = sandbox.snapshot()
        assert not sandbox.drift()
        assert not sandbox.restore(snapshot).drift


def test_a_saved_snapshot_tells_it_for_its_own_directory(project: Path, tmp_path: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run("echo mine > other")
        sandbox.snapshot().save(tmp_path / "saved")
    edit(project)
    loaded = Snapshot.load(tmp_path / "saved")
    assert loaded.drift().paths == EDITED
    with Sandbox.from_snapshot(loaded, project) as sandbox:
        assert set(EDITED) <= set(sandbox.drift().paths)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Sandbox(elsewhere) as sandbox:
        assert not sandbox.restore(loaded).drift


def test_a_link_of_the_host_is_not_followed(sandbox: Sandbox, project: Path, tmp_path: Path) -> None:
    snapshot = sandbox.snapshot()
    tick()
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", project / "link")
    (tmp_path / "outside/file").touch()
    assert snapshot.drift().paths == ("/workspace/link",)


def test_a_copy_is_frozen(project: Path) -> None:
    with Sandbox(project, mode="copy") as sandbox:
        assert sandbox.enforced.backend == "namespaces"
        assert not [gap for gap in sandbox.enforced.gaps if gap.protection == "layers"]
        sandbox.run("echo mine > other")
        snapshot = sandbox.snapshot()
        (fork,) = sandbox.fork()
        edit(project)
        seen = "cat file other; ls sub"
        then = "of the host\nmine\ndeep\ngone\n"
        assert sandbox.run(seen).stdout == then
        assert not sandbox.restore(snapshot).drift
        assert sandbox.run(seen).stdout == then
        with fork:
            assert fork.run(seen).stdout == then
            assert [change.path for change in fork.diff()] == ["/workspace/other"]
        assert not snapshot.drift()
        assert not sandbox.drift()
        sandbox.commit()
        assert (project / "other").read_text() == "mine\n"
        assert (project / "file").read_text() == "later\n"
        sandbox.run("echo both > file")
        assert sandbox.diff()[0].conflict
        with pytest.raises(CommitRefused):
            sandbox.commit()
        sandbox.discard()  # the host, as it is now
        assert sandbox.run("cat file other; ls sub").stdout == "later\nmine\ndeep\nnew\n"


def test_a_copy_is_not_kept_and_needs_a_workspace_to_be_one() -> None:
    with pytest.raises(InvalidCall, match="contradict"):
        Sandbox(mode="copy", keep="fix")
    with Sandbox(mode="copy") as sandbox:
        assert sandbox.run("echo x > y; cat y").stdout == "x\n"


def test_the_time_of_a_snapshot_is_not_before_that_of_an_earlier_edit(tmp_path: Path) -> None:
    """A kernel gives files finer stamps than its coarse clock has, once somebody looks at them."""
    file = tmp_path / "file"
    for number in range(300):
        file.write_text(str(number))
        file.stat()
        file.write_text("again")
        assert file.stat().st_ctime_ns <= now_ns()
