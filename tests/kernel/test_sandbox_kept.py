"""A sandbox whose changes stay under a name: continued by the next one, also by another process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staddle import Identity, Policy, Sandbox
from staddle.errors import InvalidCall, LayerError, PolicyNotEnforceable
from staddle.files.remove_tree import remove
from staddle.layers import persistent_store, session_record, trash
from staddle.sandbox.workspace.persistent import PersistentWorkspace
from tests.support.in_a_child import SRC
from tests.support.waiting import next_line, until

pytestmark = pytest.mark.both_users


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where also somebody who is not root can pass through."""
    made = Path(tempfile.mkdtemp(prefix="staddle-kept-", dir="/var/tmp"))
    made.chmod(0o711)
    monkeypatch.setenv("XDG_STATE_HOME", str(made))
    yield made
    trash.wait()
    remove((os.fsencode(made),))  # the kernel leaves a directory there that its owner cannot open


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "sub").mkdir(parents=True)
    (directory / "file").write_text("of the host\n")
    return directory


def kinds(sandbox: Sandbox) -> dict[str, str]:
    return {change.path: change.kind for change in sandbox.diff()}


def layers(state: Path) -> list[str]:
    return [name for name in os.listdir(state / "staddle/sessions/fix/layers") if name.isdigit()]


@pytest.mark.slow
def test_the_next_sandbox_of_the_name_goes_on(project: Path) -> None:
    script = "echo 1 > new; rm file; ln -s x link; mkdir -m 700 d; echo 2 > d/f; chmod 0 d; mkfifo p"
    with Sandbox(project, keep="fix") as first:
        assert first.run(script).ok
        before = kinds(first)
    with Sandbox(project, keep="fix") as second:
        assert kinds(second) == before
        assert second.run(
            "cat new; readlink link; chmod 700 d; cat d/f; echo 3 >> new; touch file"
        ).stdout == ("1\nx\n2\n")
        assert second.run("id -un; stat -c %U new").stdout.split()[0] == second.run("whoami").stdout.strip()
    with Sandbox(keep="fix") as third:  # the workspace is the one it was made for
        assert third.run("cat new").stdout == "1\n3\n"
        third.commit(["new"])
    assert (project / "new").read_text() == "1\n3\n"
    assert (project / "file").read_text() == "of the host\n"


@pytest.mark.slow
def test_the_home_is_there_again(project: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    with Sandbox(project, keep="fix") as sandbox:
        sandbox.run("echo 1 > ~/h; echo 1 > /tmp/t; echo 1 > /var/tmp/v")
    with Sandbox(project, keep="fix") as sandbox:
        assert sandbox.run("cat ~/h /tmp/t /var/tmp/v").stdout == "1\n1\n1\n"
        before = sandbox.snapshot()
        sandbox.run("rm /tmp/t; echo 2 > ~/h")
        sandbox.restore(before)
        before.close()
        sandbox.run("rm /var/tmp/v")
    # With another policy something else is there at first.
    with Sandbox(project, policy=Policy.agent().with_read(tmp_path / "given"), keep="fix") as sandbox:
        assert sandbox.run(f"cat ~/h /tmp/t; ls /var/tmp; ls -d {tmp_path}/given").ok
        found = [change.path for change in sandbox.diff(everything=True)]
        assert found == ["/home/user/h", "/tmp/t"]
    with Sandbox(project, keep="fix") as sandbox:
        assert sandbox.run("cat ~/h; ls /tmp").stdout == "1\nt\n"


def test_a_kept_snapshot_is_also_of_the_home(project: Path) -> None:
    with Sandbox(project, keep="fix") as sandbox:
        sandbox.run("echo 1 > ~/h")
    _without_a_sandbox(lambda kept: kept.snapshot("one"))
    with Sandbox(project, keep="fix") as sandbox:
        sandbox.run("echo 2 > ~/h; echo 2 > /tmp/t")
    _without_a_sandbox(lambda kept: kept.restore("one"))
    with Sandbox(project, keep="fix") as sandbox:
        assert sandbox.run("cat ~/h; ls /tmp").stdout == "1\n"
    _without_a_sandbox(lambda kept: kept.forget("one"))
    with Sandbox(project, keep="fix") as sandbox:
        assert sandbox.run("cat ~/h; ls /tmp").stdout == "1\n"


def _without_a_sandbox(work: Callable[[PersistentWorkspace], object]) -> None:
    kept = PersistentWorkspace("fix")
    try:
        work(kept)
    finally:
        kept.close()


@pytest.mark.slow
def test_another_process_goes_on(project: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SRC)!r})\n"
        "from staddle import Sandbox\n"
        "with Sandbox(sys.argv[1], keep='fix') as sb:\n"
        "    sb.run('echo more >> new; mkdir -p a/b/c; echo x > a/b/c/d', check=True)\n"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code, str(project)], check=True, timeout=30)
    with Sandbox(project, keep="fix") as sandbox:
        assert sandbox.run("cat new; rm -r a; ls").stdout == "more\n" * 3 + "file\nnew\nsub\n"


@pytest.mark.slow
def test_the_home_is_the_users_in_another_process_too() -> None:
    """Root's sandboxes have other ids on the host each time."""
    code = (
        f"import sys; sys.path.insert(0, {str(SRC)!r})\n"
        "from staddle import Sandbox\n"
        "with Sandbox(keep='fix') as sb:\n"
        "    sb.run('echo h >> ~/h; echo t >> /tmp/t', check=True)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with Sandbox(keep="fix") as sandbox:
        look = "cat ~/h /tmp/t; stat -c %U ~ ~/h /tmp /tmp/t; echo more >> ~/h && echo more >> /tmp/t"
        owners = ["user", "user", "user" if os.geteuid() else "root", "user"]
        assert sandbox.run(look, check=True).stdout.split() == ["h", "h", "t", "t", *owners]


def test_without_a_directory_something_can_be_kept_too() -> None:
    for expected in ("", "1\n", "1\n1\n"):
        with Sandbox(keep="fix") as sandbox:
            assert sandbox.run("cat file; echo 1 >> file").stdout == expected
    with Sandbox(keep="fix") as sandbox, pytest.raises(LayerError, match="nothing to commit to"):
        sandbox.commit()


def test_nothing_is_written_after_the_end(project: Path, state: Path) -> None:
    with Sandbox(project, keep="fix") as sandbox:
        sandbox.run(
            "(while :; do echo x >> file; done) & (setsid sh -c 'while :; do echo y >> other; done' &)"
        )
        assert until(lambda: (upper(state) / "other").exists() and (upper(state) / "file").exists())
    sizes = [os.stat(upper(state) / name).st_size for name in ("file", "other")]
    time.sleep(0.1)
    assert sizes == [os.stat(upper(state) / name).st_size for name in ("file", "other")]
    assert not persistent_store.is_claimed("fix")


def test_who_starts_its_programs_says_so_until_their_end(project: Path, state: Path) -> None:
    with Sandbox(project, keep="fix"):
        users = os.open(state / f"staddle/sessions/fix/layers/users-{os.getpid()}", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(users)


@pytest.mark.slow
def test_nothing_of_a_killed_process_writes_when_the_next_one_begins(project: Path, state: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SRC)!r})\n"
        "from staddle import Sandbox\n"
        "sb = Sandbox(sys.argv[1], keep='fix')\n"
        "sb.run('for i in 1 2 3; do (while :; do echo x >> file-$i; done) & done')\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    for _ in range(3):
        words = [sys.executable, "-c", code, str(project)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert next_line(other) == b"ready\n"
            assert until((upper(state) / "file-3").exists)
            other.kill()
            other.wait()
            with Sandbox(project, keep="fix") as sandbox:
                before = sandbox.run("cat file-* | wc -c").stdout
                time.sleep(0.02)
                assert sandbox.run("cat file-* | wc -c; rm file-*").stdout == before


def upper(state: Path) -> Path:
    return state / "staddle/sessions/fix/layers/1/upper"


def test_one_sandbox_at_a_time(project: Path) -> None:
    with Sandbox(project, keep="fix"):
        with pytest.raises(LayerError, match="in use"):
            Sandbox(project, keep="fix")
        with Sandbox(project, keep="other"), Sandbox(project):
            pass
    Sandbox(project, keep="fix").close()


def test_what_cannot_be_leaves_nothing(project: Path, state: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidCall, match="contradict"):
        Sandbox(project, keep="fix", mode="bind")
    with pytest.raises(LayerError, match="not a valid name"):
        Sandbox(project, keep="a/b")
    with pytest.raises(PolicyNotEnforceable):
        Sandbox(project, keep="fix", backend="bwrap")
    with pytest.raises(LayerError, match="in the workspace"):
        Sandbox(state, keep="fix")
    trash.wait()
    assert session_record.names() == []
    assert not (state / "staddle").exists()
    Sandbox(project, keep="fix").close()
    with pytest.raises(InvalidCall, match="another workspace"):
        Sandbox(tmp_path, keep="fix")
    with pytest.raises(PolicyNotEnforceable):
        Sandbox(project, keep="fix", backend="bwrap")
    assert session_record.names() == ["fix"]


def test_snapshots_and_forks_of_it_work_and_leave_one_session(project: Path, state: Path) -> None:
    with Sandbox(project, keep="fix") as sandbox:
        sandbox.run("echo 1 > new")
        point = sandbox.snapshot("first")
        sandbox.run("echo 2 > new; echo 3 > more")
        (fork,) = sandbox.fork()
        fork.run("echo fork > new")
        started = sandbox.start(["sleep", "1000"])
        assert [one.pid for one in sandbox.restore(point).ended] == [started.pid]
        point.close()
        assert sandbox.run("cat new; ls").stdout == "1\nfile\nnew\nsub\n"
        with pytest.raises(InvalidCall, match="reset"):
            sandbox.reset()
    assert persistent_store.is_claimed("fix")  # the fork has layers of it
    assert fork.run("cat new more").stdout == "fork\n3\n"
    fork.close()
    assert not persistent_store.is_claimed("fix")
    with Sandbox(project, keep="fix") as sandbox:
        assert sandbox.run("cat new; ls").stdout == "1\nfile\nnew\nsub\n"
        sandbox.discard()
        assert sandbox.diff() == []
    trash.wait()
    assert len(layers(state)) == 2  # of the workspace, and of the home and the like


def test_a_kept_snapshot_is_gone_back_to_by_a_later_sandbox(project: Path) -> None:
    with Sandbox(project, keep="fix") as sandbox:
        sandbox.run("echo 1 > new")
    session = PersistentWorkspace("fix")
    session.snapshot("first")
    session.close()
    with Sandbox(project, keep="fix") as sandbox:
        sandbox.run("echo 2 > new; rm file")
    for _ in range(2):
        session = PersistentWorkspace("fix")
        session.restore("first")
        session.close()
        with Sandbox(project, keep="fix") as sandbox:
            assert sandbox.run("cat new file; rm new").stdout == "1\nof the host\n"


@pytest.mark.slow
def test_many_kept_snapshots_are_squashed_and_stay_right(project: Path) -> None:
    Sandbox(project, keep="fix").close()
    for number in range(70):
        session = PersistentWorkspace("fix")
        Path(session.stack.top.upper, f"file-{number}").write_text(str(number))
        session.snapshot(str(number))
        session.close()
    session = PersistentWorkspace("fix")
    assert len(session.stack.frozen) < 64
    session.restore("40")
    session.close()
    with Sandbox(project, keep="fix") as sandbox:
        assert sandbox.run("ls -d file-* | wc -l; cat file-40").stdout == "41\n40"


def test_the_policy_is_kept_for_display_without_secrets(project: Path) -> None:
    Sandbox(project, Policy.agent().with_env(TOKEN="secret"), keep="fix").close()
    record = session_record.read(session_record.directory_of("fix"))
    assert record is not None
    assert record.policy["env"] == ["TOKEN"]
    assert "secret" not in Path(session_record.directory_of("fix"), "session").read_text()


@pytest.mark.needs_root
def test_root_is_told_when_nobody_else_can_reach_the_place(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(LayerError, match="pass through"):
        Sandbox(project, keep="fix")


def test_the_workspace_is_mounted_at_its_own_path_later(project: Path) -> None:
    who = Identity(home=str(project.parent))
    with Sandbox(project, keep="later", identity=who) as sb:
        sb.run("echo one > new").check()
    with Sandbox(project, keep="later", workspace_at=project, identity=who) as sb:
        told = sb.run("cat new; cd ~/project; pwd -P; cat new").stdout
        assert told == f"one\n{project}\none\n"
