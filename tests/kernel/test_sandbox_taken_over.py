"""The work of a sandbox whose workspace was moved away under it, or that has ended by itself, is not lost."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox, Snapshot
from staddle.errors import CommitRefused, InvalidCall, LayerError, SandboxLost, SessionError
from staddle.files.remove_tree import remove
from staddle.layers import trash
from tests.support.waiting import until


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "sub").mkdir(parents=True)
    (place / "file").write_text("of the host\n")
    (place / "sub/deep").write_text("deep\n")
    return place


@pytest.fixture
def sandbox(project: Path) -> Iterator[Sandbox]:
    with Sandbox(project) as opened:
        opened.run("echo mine > added; echo more >> file; rm sub/deep")
        yield opened


CHANGED = [("added", "/workspace/added"), ("modified", "/workspace/file"), ("deleted", "/workspace/sub/deep")]


def told(sandbox: Sandbox) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in sandbox.diff()]


def replace(project: Path) -> Path:
    """Another directory in the place of the workspace."""
    moved = project.rename(project.with_name("moved"))
    project.mkdir()
    (project / "another").write_text("of another project\n")
    return moved


def test_a_directory_in_the_place_of_the_workspace_is_not_written_and_not_shown(
    sandbox: Sandbox, project: Path
) -> None:
    snapshot = sandbox.snapshot()
    moved = replace(project)
    assert told(sandbox) == CHANGED
    for step in (
        sandbox.commit,
        sandbox.discard,
        sandbox.fork,
        lambda: sandbox.restore(snapshot),
        lambda: sandbox.discard(["added"]),
    ):
        with pytest.raises(LayerError, match="is another directory now"):
            step()
    assert os.listdir(project) == ["another"]
    assert sorted(os.listdir(moved)) == ["file", "sub"]
    assert sandbox.run("ls; cat file").stdout == "added\nfile\nsub\nof the host\nmore\n"
    project.joinpath("another").unlink()
    project.rmdir()
    moved.rename(project)  # it is back
    sandbox.commit()
    assert (project / "added").read_text() == "mine\n"


@pytest.mark.parametrize("how", ["moved", "replaced", "deleted"])
def test_the_work_is_given_back_when_the_workspace_is_not_there(
    sandbox: Sandbox, project: Path, tmp_path: Path, how: str
) -> None:
    if how == "replaced":
        replace(project)
    elif how == "moved":
        project.rename(project.with_name("moved"))
    else:
        shutil.rmtree(project)
    assert set(CHANGED if how != "deleted" else CHANGED[:1]) <= set(told(sandbox))
    if how != "replaced":
        with pytest.raises(LayerError, match=r"is deleted.*commit\(to="):
            sandbox.commit()
    sandbox.run("echo later > later")
    snapshot = sandbox.snapshot()
    assert snapshot.method == "copy"
    snapshot.save(tmp_path / "saved")
    other = tmp_path / "other"
    (other / "sub").mkdir(parents=True)
    (other / "file").write_text("of the host\n")
    with pytest.raises(CommitRefused) as refused:
        sandbox.commit(to=other)
    assert [conflict.path for conflict in refused.value.conflicts] == ["file"]
    assert sorted(os.listdir(other)) == ["file", "sub"]
    sandbox.commit(to=other, on_conflict="overwrite")
    assert (other / "file").read_text() == "of the host\nmore\n"
    assert (other / "later").read_text() == "later\n"
    with Sandbox.from_snapshot(tmp_path / "saved") as again:
        assert again.run("cat added later").stdout == "mine\nlater\n"


def test_a_moved_workspace_can_be_committed_to_where_it_is(sandbox: Sandbox, project: Path) -> None:
    moved = project.rename(project.with_name("moved"))
    (moved / "file").write_text("edited meanwhile\n")
    with pytest.raises(CommitRefused, match="file"):
        sandbox.commit(to=moved)
    sandbox.commit(["added"], to=moved)
    assert (moved / "added").read_text() == "mine\n"


def test_to_is_a_directory(sandbox: Sandbox, project: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidCall, match="cannot be committed to"):
        sandbox.commit(to=tmp_path / "missing")
    with Sandbox() as without:
        without.run("echo x > made")
        (tmp_path / "out").mkdir()
        without.commit(to=tmp_path / "out")
    assert (tmp_path / "out/made").read_text() == "x\n"


def test_a_copy_is_not_committed_to_another_directory(project: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("x")
    with Sandbox(project, backend="landlock") as sandbox:
        sandbox.run("echo x > made")
        with pytest.raises(LayerError, match="works in a copy"):
            sandbox.commit(to=tmp_path / "out")
        replace(project)
        with pytest.raises(LayerError, match="another directory now"):
            sandbox.commit()
    assert os.listdir(tmp_path / "out") == ["precious"]


def test_descriptors_of_the_workspace_are_shared(project: Path) -> None:
    sandboxes = [Sandbox(project) for _ in range(2)]
    place = os.stat(project)
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    held = [path for path in paths if os.path.exists(path) and os.path.samestat(os.stat(path), place)]
    for sandbox in sandboxes:
        sandbox.close()
    assert len(held) <= 1


# ------------------------------------------------------------ ended by itself


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lose(sandbox: Sandbox, *, fork_server: bool = False) -> None:
    """Kill its agent, or the fork server."""
    pid = _parent(sandbox._now().main._shell._state.bash.host_pid or 0)
    if fork_server:
        pid = _parent(_parent(pid))
        assert _parent(pid) == os.getpid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not sandbox.alive)


@pytest.mark.parametrize("fork_server", [False, True])
def test_what_a_lost_sandbox_changed_can_be_taken_over(
    sandbox: Sandbox, project: Path, tmp_path: Path, fork_server: bool
) -> None:
    sandbox.run("echo set > ~/.vimrc; cd sub")
    lose(sandbox, fork_server=fork_server)
    with pytest.raises(SandboxLost, match="still have the changes"):
        sandbox.run("true")
    assert told(sandbox) == CHANGED
    snapshot = sandbox.snapshot("last")
    snapshot.save(tmp_path / "saved")
    (fork,) = sandbox.fork()
    with fork:
        assert fork.run("cat added ~/.vimrc").stdout == "mine\nset\n"
    with Sandbox.from_snapshot(Snapshot.load(tmp_path / "saved"), project) as again:
        assert again.run("cat added ~/.vimrc").stdout == "mine\nset\n"
    sandbox.commit(["added"])
    sandbox.commit()
    assert (project / "file").read_text() == "of the host\nmore\n"
    assert told(sandbox) == []
    with pytest.raises(SandboxLost):
        sandbox.restore(snapshot)


def test_a_lost_kept_sandbox_goes_on(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/tmp/" + os.urandom(8).hex())
    state = Path(os.environ["XDG_STATE_HOME"])
    state.mkdir(mode=0o755)
    try:
        with Sandbox(project, keep="fix") as sandbox:
            sandbox.run("echo mine > added")
            lose(sandbox)
            sandbox.snapshot("last")
        with Sandbox(project, keep="fix") as sandbox:
            assert sandbox.run("cat added").stdout == "mine\n"
            sandbox.commit()
    finally:
        trash.wait()
        remove((os.fsencode(state),))  # the kernel leaves a directory that its owner cannot open
    assert (project / "added").read_text() == "mine\n"


# ------------------------------------------------------------ what is allowed by name

PLANT = """echo x > tool.sh; chmod +x tool.sh; echo y > .npmrc
mkdir -p .git/hooks; echo z > .git/hooks/pre-commit"""


def held(error: pytest.ExceptionInfo[CommitRefused]) -> set[str]:
    return {item.path for item in error.value.held}


def test_only_what_is_named_is_let_through(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run(PLANT)
        with pytest.raises(CommitRefused, match=r"allow=\[") as refused:
            sandbox.commit()
        everything = held(refused)
        assert {"tool.sh", ".npmrc", ".git/hooks/pre-commit"} <= everything
        with pytest.raises(CommitRefused) as refused:
            sandbox.commit(allow=["tool.sh", "/workspace/.npmrc"])
        assert held(refused) == everything - {"tool.sh", ".npmrc"}
        with pytest.raises(CommitRefused, match=r"not among them is what allow= names: 'tol\.sh'"):
            sandbox.commit(allow=["tol.sh"])
        assert not (project / "tool.sh").exists()
        done = sandbox.commit(["tool.sh", ".npmrc"], allow=["tool.sh", ".npm*", "unknown"])
        assert done.unused == ("unknown",)
        assert os.stat(project / "tool.sh").st_mode & stat.S_IXUSR
        assert not (project / ".git").exists()
        sandbox.commit(allow=[".git/**"])
        assert (project / ".git/hooks/pre-commit").read_text() == "z\n"


def test_a_name_lets_through_nothing_of_the_same_name_elsewhere(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run('mkdir a; for f in tool.sh a/tool.sh \'a/[x]\'; do echo x > "$f"; chmod +x "$f"; done')
        with pytest.raises(CommitRefused) as refused:
            sandbox.commit(allow=["tool.sh", "a"])
        assert held(refused) == {"a/tool.sh", "a/[x]"}
        with pytest.raises(CommitRefused) as refused:
            sandbox.commit(allow=["**/*.sh", "x"])
        assert held(refused) == {"a/[x]"}
        sandbox.commit(allow=["**/*.sh", "a/[x]"])


def test_names_are_a_list(project: Path) -> None:
    with Sandbox(project, Policy.agent()) as sandbox:
        sandbox.run("echo x > y")
        for wrong in ("tool.sh", [""], [1]):
            with pytest.raises(InvalidCall, match="allow is"):
                sandbox.commit(allow=wrong)  # type: ignore[arg-type]


def test_a_paused_sandbox_is_committed_and_saved_without_its_shells(tmp_path: Path) -> None:
    """They stand still: nothing is asked of them, and nothing is exchanged under them."""
    with Sandbox(tmp_path) as sb:
        sb.run("mkdir sub; cd sub; x=5; echo one > f", check=True)
        sb.pause()
        assert [change.path for change in sb.commit().changes] == ["/workspace/sub", "/workspace/sub/f"]
        point = sb.snapshot()
        assert point.method == "copy"
        for exchange in (sb.discard, lambda: sb.restore(point)):
            with pytest.raises(SessionError, match="resume"):
                exchange()
        sb.resume()
        assert sb.run("pwd; echo $x; cat f").stdout == "/workspace/sub\n5\none\n"
        sb.run("echo two > f; x=6", check=True)
        sb.restore(point)
        assert sb.run("echo $x; cat f").stdout == "5\none\n"


def test_what_waits_for_a_command_that_stands_still_is_refused(tmp_path: Path) -> None:
    with Sandbox(tmp_path) as sb:
        command = threading.Thread(target=lambda: sb.run("echo begun > mark; sleep 1272.3"), daemon=True)
        command.start()
        assert until(lambda: sb.files.exists("/workspace/mark"))
        sb.pause()
        for work in (sb.commit, sb.snapshot):
            with pytest.raises(SessionError, match="stands still"):
                work()
        sb.resume()
        sb.interrupt()
        command.join(60)
        assert not command.is_alive()
        assert [change.path for change in sb.diff()] == ["/workspace/mark"]
