"""Workspaces wherever they may be, whoever owns what is in them, and whatever is done to them meanwhile."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from staddle import Policy, Sandbox, Snapshot
from staddle.errors import CommitFailed, CommitRefused, InvalidCall, LayerError
from tests.support.in_a_child import captured
from tests.support.layers_overlay import MEMORY, picture
from tests.support.waiting import until

SRC = Path(__file__).parents[2] / "src"


def worked_on(workspace: Path, archive: Path | None) -> None:
    """Everything that can be done with layers, once."""
    (workspace / "file").write_text("old\n")
    (workspace / "gone").write_text("x\n")
    with Sandbox(workspace) as sandbox:
        sandbox.run("echo new > file; rm gone; mkdir d; echo 1 > d/1")
        assert [(change.kind, change.path) for change in sandbox.diff()] == [
            ("added", "/workspace/d"),
            ("added", "/workspace/d/1"),
            ("modified", "/workspace/file"),
            ("deleted", "/workspace/gone"),
        ]
        snapshot = sandbox.snapshot()
        sandbox.run("rm -r *")
        sandbox.restore(snapshot)
        (fork,) = sandbox.fork()
        with fork:
            assert fork.run("cat file d/1").stdout == "new\n1\n"
            if archive is not None:
                fork.snapshot().save(archive)
        if archive is not None:
            sandbox.restore(Snapshot.load(archive))
        sandbox.discard(["d"])
        sandbox.commit()
    assert picture(workspace).keys() == {"file"}
    assert (workspace / "file").read_text() == "new\n"


@pytest.mark.parametrize("name", ["with a space", "it's", 'a "quote"', "a:b", "a,b", "a\nb", "a\\b", "a=b*?"])
def test_a_workspace_may_be_called_anything(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    worked_on(tmp_path / name, tmp_path / "archive")


#: Which layers wait for the disk: those of a sandbox whose layers are kept.
_ON_A_DISK = """
import sys
from staddle import Sandbox
for keep in (None, "kept"):
    with Sandbox(sys.argv[1], keep=keep) as sb:
        sb.run("echo new > file", check=True)
        sb.snapshot()
        mounts = sb.run("grep ' /workspace ' /proc/self/mountinfo").stdout
        print("volatile" in mounts, flush=True)
"""


@pytest.mark.slow
def test_layers_on_a_disk_do_not_wait_for_it_unless_they_are_kept(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with tempfile.TemporaryDirectory(prefix="layers", dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        for name in ("layers", "state"):
            os.mkdir(f"{place}/{name}")
        variables = {
            "STADDLE_LAYERS": f"{place}/layers",
            "XDG_STATE_HOME": f"{place}/state",
            "PYTHONPATH": str(SRC),
        }
        done = captured(
            [sys.executable, "-c", _ON_A_DISK, str(tmp_path / "work")], env={**os.environ, **variables}
        )
    assert done.stdout == "True\nFalse\n", done.stderr


@pytest.mark.parametrize("place", ["/var/tmp", MEMORY])
def test_a_workspace_may_be_on_a_disk_or_in_memory(place: str, tmp_path: Path) -> None:
    workspace = Path(tempfile.mkdtemp(prefix="place", dir=place))
    try:
        worked_on(workspace, tmp_path / "archive")
    finally:
        shutil.rmtree(workspace)


@pytest.mark.slow
def test_a_workspace_may_be_in_another_overlay(tmp_path: Path) -> None:
    code = f"""
import os, sys; sys.path[:0] = [{str(SRC)!r}, {str(SRC.parent)!r}]
from pathlib import Path
from typing import Literal
from staddle.linux.mounts import attach
from staddle.linux.overlay import overlay
from tests.kernel.test_sandbox_places import worked_on
here = Path({str(tmp_path)!r})
for name in ("lower", "upper", "work", "seen"):
    (here / name).mkdir()
(here / "lower/below").mkdir()
tree = overlay([str(here / "lower")], str(here / "upper"), str(here / "work"))
attach(tree, os.open(here / "seen", os.O_PATH))
os.environ["XDG_STATE_HOME"] = str(here / "state")
worked_on(here / "seen/below", here / "archive" if os.geteuid() else None)  # root's is a copy there
print("done")
"""
    own = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps", "--mount"]
    done = captured(["unshare", *own, sys.executable, "-c", code])
    assert done.stdout == "done\n", done.stderr
    assert (tmp_path / "upper/below/file").read_text() == "new\n"


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Path]:
    """A directory with files of somebody else's: as root any, else the system's."""
    if os.geteuid() != 0:
        yield Path("/usr/share/base-files")
        return
    place = tmp_path / "foreign"
    place.mkdir()
    for name, mode in (("open", 0o644), ("closed", 0o600)):
        (place / name).write_text(f"{name}\n")
        os.chown(place / name, 54321, 54321)
        os.chmod(place / name, mode)
    yield place


def test_files_of_others_are_read_and_changed_as_far_as_their_rights_go(foreign: Path) -> None:
    before = picture(foreign) if os.geteuid() == 0 else None
    with Sandbox(foreign) as sandbox:
        name = sorted(os.listdir(foreign))[-1]
        assert sandbox.run(f"cat {name}").ok
        sandbox.run(f"echo more >> {name}; echo 1 > mine")
        changed = {change.path for change in sandbox.diff()}
        assert changed <= {f"/workspace/{name}", "/workspace/mine"}
        snapshot = sandbox.snapshot()
        sandbox.restore(snapshot)
        if before is None:
            return
        assert picture(foreign) == before
        sandbox.commit()
    status = os.stat(foreign / "closed")
    assert (status.st_uid, status.st_mode & 0o777) == (54321, 0o600)


RACE = """
mkdir real; echo mine > real/secret; ln -s {outside} evil; echo ready
while test ! -e stop; do
    mv -T real d2; mv -T evil real; mv -T real evil; mv -T d2 real
    rm -rf e; mkdir -p e/f; echo x > e/f/secret; rm -rf e; ln -s {outside} e
done
"""


def test_nothing_outside_is_read_or_written_however_directories_are_swapped(tmp_path: Path) -> None:
    outside, project = tmp_path / "outside", tmp_path / "project"
    (outside / "f").mkdir(parents=True)
    (outside / "secret").write_text("canary")
    (outside / "f/secret").write_text("canary")
    project.mkdir()
    before = picture(outside)
    with Sandbox(project) as sandbox:
        process = sandbox.start(RACE.format(outside=outside))
        assert until(lambda: b"ready" in process.output().stdout_bytes)
        for number in range(12):
            for change in sandbox.diff():
                assert "canary" not in change.text_diff()
            if number % 3 == 0:
                sandbox.snapshot().save(tmp_path / "saved")
            try:
                sandbox.commit(on_conflict="overwrite")
            except (CommitRefused, CommitFailed, LayerError):
                pass
            assert picture(outside) == before
        sandbox.files.write("stop", "")
        process.wait(60)
    for path, (kind, _, content) in picture(project).items():
        assert kind == "symlink" or b"canary" not in content, path
    with Sandbox.from_snapshot(tmp_path / "saved", project) as again:
        assert "canary" not in again.run("find . -type f -exec cat {} +").stdout


def test_a_session_begins_in_its_workdir(tmp_path: Path) -> None:
    (tmp_path / "sub dir").mkdir()
    with Sandbox(tmp_path, workdir="sub dir") as sb:
        assert sb.run("pwd").stdout == "/workspace/sub dir\n"
        assert sb.state.history == ("pwd",)
        sb.reset()
        assert sb.exec(["pwd"]).stdout == "/workspace/sub dir\n"
    with pytest.raises(InvalidCall, match="cannot begin in"):
        Sandbox(tmp_path, workdir="missing")


def test_programs_can_keep_logs_and_state_where_they_usually_do() -> None:
    with Sandbox() as sb:
        done = sb.run("for d in /var/log /var/lib /var/cache; do echo x > $d/f && mkdir $d/${d##*/}; done")
        assert done.ok, done.stderr


@pytest.mark.parametrize("mode", ["overlay", "bind", "readonly", "copy"])
def test_the_workspace_of_a_coding_agent_is_the_project_and_not_a_directory_of_its_preset(
    tmp_path: Path, mode: Literal["overlay", "bind", "readonly", "copy"]
) -> None:
    home, project = tmp_path / "h", tmp_path / "a/longer/path/to/the/project"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex/file").write_text("the agent's")
    project.mkdir(parents=True)
    (project / "file").write_text("the project's")
    with Sandbox(project, Policy.coding_agent(home), mode=mode) as sandbox:
        assert sandbox.run("cat file").stdout == "the project's"
        sandbox.run("echo changed > file")
        if mode in {"overlay", "copy"}:
            sandbox.commit()
    changed = "the project's" if mode == "readonly" else "changed\n"
    assert ((project / "file").read_text(), (home / ".codex/file").read_text()) == (changed, "the agent's")
