"""Where there are no layers, a copy keeps their promises."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox, Snapshot
from staddle.background import wait_for_jobs
from staddle.errors import CommitRefused
from staddle.layers import trash
from staddle.sandbox.open.spare_agents import SPARES
from staddle.sandbox.workspace import stores
from tests.support.layers_overlay import picture
from tests.support.waiting import next_line, until

pytestmark = pytest.mark.parametrize("backend", ["bwrap", "landlock", "native"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "sub").mkdir(parents=True)
    (place / "file").write_text("of the host\n")
    (place / "gone").write_text("x\n")
    (place / "sub/deep").write_text("deep\n")
    (place / "link").symlink_to("file")
    os.link(place / "gone", place / "sub/other name")
    return place


@pytest.fixture
def sandbox(project: Path, backend: str) -> Iterator[Sandbox]:
    with Sandbox(project, backend=backend) as opened:
        yield opened


def told(sandbox: Sandbox) -> set[tuple[str, str]]:
    root = sandbox.plan.cwd
    return {(change.kind, os.path.relpath(change.path, root)) for change in sandbox.diff()}


CHANGED = {("modified", "file"), ("deleted", "gone"), ("added", "sub/new"), ("mode", "sub"), ("link", "link")}
WORK = "echo more >> file; rm gone; cd sub; echo new > new; chmod 750 .; ln -sf sub/deep ../link"


def test_the_host_is_as_it_was_until_a_commit(sandbox: Sandbox, project: Path) -> None:
    before = picture(project)
    assert "layers" in {gap.protection for gap in sandbox.enforced.gaps if gap.documented}
    result = sandbox.run(WORK)
    root = sandbox.plan.cwd
    assert {(change.kind, os.path.relpath(change.path, root)) for change in result.changes or ()} >= {
        ("modified", "file"),
        ("deleted", "gone"),
        ("added", "sub/new"),
    }
    assert told(sandbox) == CHANGED
    assert picture(project) == before
    assert "+more" in next(change for change in sandbox.diff() if change.kind == "modified").text_diff()
    sandbox.commit(["../file"])
    assert (project / "file").read_text() == "of the host\nmore\n"
    assert told(sandbox) == CHANGED - {("modified", "file")}
    sandbox.commit()
    assert told(sandbox) == set()
    assert sorted(os.listdir(project)) == ["file", "link", "sub"]
    assert stat.S_IMODE(os.stat(project / "sub").st_mode) == 0o750
    assert os.readlink(project / "link") == "sub/deep"


def test_what_only_the_host_does_is_no_change_and_what_both_did_a_conflict(
    sandbox: Sandbox, project: Path
) -> None:
    sandbox.run("echo inside > sub/deep")
    (project / "file").write_text("edited on the host\n")
    (project / "host's own").write_text("new\n")
    (project / "gone").unlink()
    assert told(sandbox) == {("modified", "sub/deep")}
    sandbox.commit()
    assert (project / "file").read_text() == "edited on the host\n"
    assert (project / "host's own").exists()
    assert not (project / "gone").exists()
    sandbox.run("echo both > file")
    with pytest.raises(CommitRefused, match="file"):
        sandbox.commit()
    assert (project / "file").read_text() == "edited on the host\n"


def test_protected_names_and_new_programs_need_a_second_look(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("mkdir .git; echo x > .git/config; echo y > run; chmod +x run; mkfifo pipe; chmod u+s file")
    assert sandbox.violations() == ()
    with pytest.raises(CommitRefused):
        sandbox.commit()
    sandbox.commit(allow_protected=True)
    assert not (project / "pipe").exists()
    assert not os.stat(project / "file").st_mode & stat.S_ISUID


def test_dropped_changes_are_gone(sandbox: Sandbox, project: Path) -> None:
    sandbox.run(WORK)
    (project / "sub/later").write_text("on the host\n")
    sandbox.discard(["../gone", "new", "../link"])
    assert told(sandbox) == {("modified", "file"), ("mode", "sub")}
    assert sandbox.run("pwd; cat ../gone").stdout == f"{sandbox.plan.cwd}/sub\nx\n"
    sandbox.discard()
    assert told(sandbox) == set()
    assert sandbox.run("ls; cat ../file").stdout == "deep\nlater\nother name\nof the host\n"


@pytest.mark.same_for_everyone
def test_a_restore_ends_what_runs(sandbox: Sandbox) -> None:
    snapshot = sandbox.snapshot()
    started = sandbox.start("sleep 1000 & echo $! > future; wait")
    until(lambda: sandbox.files.exists("future"))
    kept = sandbox.restore(snapshot, processes="keep")
    assert (kept.ended, started.poll()) == ((), None)
    assert started.pid in {one.pid for one in sandbox.restore(snapshot).ended}
    assert started.wait(30) == 137
    assert sandbox.run("echo fine").stdout == "fine\n"


@pytest.mark.slow
def test_a_snapshot_is_of_files_and_shells_and_a_fork_goes_on(sandbox: Sandbox, project: Path) -> None:
    sandbox.run(f"x=1; {WORK}; chmod 500 .")
    snapshot = sandbox.snapshot("before")
    assert snapshot.method == "copy"
    sandbox.run("x=2; chmod 700 .; rm -r ../*; echo z > ../z")
    for _ in range(2):
        sandbox.restore(snapshot)
        assert sandbox.run("echo $x; ls; cat ../file").stdout == (
            "1\ndeep\nnew\nother name\nof the host\nmore\n"
        )
        assert told(sandbox) == CHANGED
    (fork,) = sandbox.fork()
    with fork:
        assert fork.run("echo $x; cat new; echo fork > ../file").stdout == "1\nnew\n"
        assert sandbox.run("cat ../file").stdout == "of the host\nmore\n"
        fork.restore(snapshot)
        assert fork.run("cat ../file").stdout == "of the host\nmore\n"
        assert told(fork) == CHANGED
        fork.commit(["../file"])
    assert (project / "file").read_text() == "of the host\nmore\n"


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("onto", ["namespaces", "same"])
def test_a_snapshot_can_be_saved_and_gone_on_from(
    sandbox: Sandbox, project: Path, tmp_path: Path, backend: str, onto: str
) -> None:
    sandbox.run(
        f"x=1; {WORK}; rm deep; mkdir deep; echo 1 > deep/er; rm -r 'other name'; cd deep; chmod 500 ."
    )
    expected = told(sandbox)
    (project / "host's own").write_text("later\n")
    sandbox.snapshot("here").save(tmp_path / "saved")
    backend = backend if onto == "same" else onto
    with Sandbox.from_snapshot(tmp_path / "saved", project, backend=backend) as other:
        assert other.run("pwd; echo $x; ls ..; cat er ../../file").stdout == (
            f"{other.plan.cwd}/sub/deep\n1\ndeep\nnew\n1\nof the host\nmore\n"
        )
        assert told(other) == expected
        other.commit()
    assert sorted(os.listdir(project)) == ["file", "host's own", "link", "sub"]
    os.chmod(project / "sub/deep", 0o755)


@pytest.mark.same_for_everyone
def test_a_snapshot_of_layers_can_be_gone_on_from(sandbox: Sandbox, project: Path, tmp_path: Path) -> None:
    with Sandbox(project) as layered:
        layered.run(f"x=1; {WORK}; rm -r 'other name'; rm -r ../sub/deep; mkdir deep; echo 1 > deep/er")
        expected = told(layered)
        layered.snapshot().save(tmp_path / "saved")
    sandbox.run("echo unwanted > unwanted")
    sandbox.restore(Snapshot.load(tmp_path / "saved"))
    assert sandbox.run("pwd; echo $x; ls; cat ../file deep/er").stdout == (
        f"{sandbox.plan.cwd}/sub\n1\ndeep\nnew\nof the host\nmore\n1\n"
    )
    assert told(sandbox) == expected
    sandbox.commit()
    assert told(sandbox) == set()
    assert sorted(os.listdir(project / "sub")) == ["deep", "new"]


@pytest.mark.same_for_everyone
def test_snapshots_of_layers_and_of_copies_can_be_restored_in_the_other(
    sandbox: Sandbox, project: Path
) -> None:
    before = picture(project)
    with Sandbox(project, backend="namespaces") as layered:
        layered.run(WORK)
        sandbox.run("echo x > x; rm -r sub")
        sandbox.restore(layered.snapshot())
        assert told(sandbox) == told(layered) == CHANGED
        assert sandbox.run("pwd; cat ../file").stdout == f"{sandbox.plan.cwd}/sub\nof the host\nmore\n"
        sandbox.run("echo again > new")
        layered.run("rm -r /workspace/*")
        layered.restore(sandbox.snapshot())
        assert told(layered) == CHANGED
        assert layered.run("cat new; pwd").stdout == "again\n/workspace/sub\n"
    assert picture(project) == before


@pytest.mark.same_for_everyone
def test_what_runs_meanwhile_goes_on(sandbox: Sandbox) -> None:
    process = sandbox.start("while sleep .05; do echo tick >> log; done")
    assert until(lambda: bool(sandbox.run("cat log 2>/dev/null").stdout))
    snapshot = sandbox.snapshot()
    before = sandbox.run("wc -l < log").stdout
    assert until(lambda: sandbox.run("wc -l < log").stdout != before)
    assert process.poll() is None
    sandbox.restore(snapshot, processes="keep")
    assert until(lambda: sandbox.run("wc -l < log").stdout != before)
    process.kill()


def test_what_is_denied_is_not_in_the_copy_and_never_committed(project: Path, backend: str) -> None:
    (project / "secret").write_text("secret\n")
    (project / "sub/key").write_text("secret\n")
    policy = Policy.agent().with_deny(project / "secret", project / "sub/key")
    with Sandbox(project, policy, backend=backend) as sandbox:
        if backend != "native":
            assert sandbox.run(f"cat secret sub/key {project}/secret").stdout == ""
        assert sandbox.run("ls -A . sub").stdout == ".:\nfile\ngone\nlink\nsub\n\nsub:\ndeep\nother name\n"
        sandbox.run("echo mine > secret; echo mine > sub/key; echo 1 > a")
        assert told(sandbox) == {("added", "a")}
        sandbox.discard(["sub"])
        sandbox.commit()
    assert (project / "secret").read_text() == "secret\n"
    assert (project / "sub/key").read_text() == "secret\n"


def test_nothing_is_left_of_copies(project: Path, backend: str) -> None:
    with Sandbox(project, backend=backend) as sandbox:
        sandbox.run("mkdir -p a/b; chmod 000 a")
        snapshot = sandbox.snapshot()
        (fork,) = sandbox.fork()
        fork.close()
    snapshot.close()
    wait_for_jobs()  # a spare may be being started
    SPARES.close()
    trash.wait()
    for store in stores._copy_stores.values():
        ahead = (store._blank, store._reserved)  # empty ones for the next layer, and the next copy
        known = {"lock", "empty", *(os.path.basename(layer.path) for layer in ahead if layer)}
        assert until(lambda path=store.path, known=known: set(os.listdir(path)) <= known), os.listdir(
            store.path
        )


def test_a_copy_is_gone_soon_after_a_kill(tmp_path: Path, backend: str) -> None:
    (tmp_path / "file").write_text("x")
    for up in (tmp_path, *tmp_path.parents[:2]):
        up.chmod(0o755)
    code = f"""
import time
from staddle import Sandbox
sandbox = Sandbox({str(tmp_path)!r}, mode="copy", backend={backend!r})
sandbox.run("mkdir -p a/b; chmod 0 a/b")
print(sandbox._now().workspace.copy, flush=True)
time.sleep(100)
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    place = next_line(program).strip()
    assert os.path.isdir(place)
    program.kill()
    program.wait()
    until(lambda: not os.path.exists(place))
