"""The next sandbox for the same directory, which is opened before it is asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox
from staddle.background import wait_for_jobs
from staddle.linux.process import has_ended, parent_of
from staddle.sandbox.open import next_sandbox
from staddle.sandbox.open.next_sandbox import NEXT, NextSandbox
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.both_users


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory for which one waits."""
    fill(tmp_path)
    use(tmp_path, 2)
    yield tmp_path
    NEXT.close()


def fill(place: Path) -> None:
    """Fill it; none waits for another one."""
    wait_for_jobs()
    NEXT.close()
    (place / "file").write_text("old")
    (place / "sub").mkdir()
    (place / "sub" / "deep").write_text("old")


def use(place: Path, times: int = 1, **options: object) -> str:
    said = ""
    for _ in range(times):
        with Sandbox(place, backend="namespaces", **options) as sb:  # type: ignore[arg-type]
            said = sb.run("cat file sub/deep").stdout
    return said


def waiting() -> NextSandbox:
    assert until(lambda: NEXT._waiting)
    assert NEXT._waiting is not None
    return NEXT._waiting


def opened(place: Path, **options: object) -> Sandbox:
    return Sandbox(place, backend="namespaces", **options)  # type: ignore[arg-type]


def is_gone(found: NextSandbox) -> bool:
    return not os.path.exists(f"/proc/{found.handle.shell.host_pid}")


def test_it_is_handed_out_and_another_one_is_made(place: Path) -> None:
    before = waiting()
    with opened(place) as sb:
        assert sb._inside.agent is before.handle.agent
        assert sb.run("cat file; echo mine > new; ls").stdout == "oldfile\nnew\nsub\n"
        assert [change.path for change in sb.diff()] == ["/workspace/new"]
        after = waiting()
        assert after is not before
        with opened(place) as other:
            assert other._inside.agent is after.handle.agent
            assert other.run("ls").stdout == "file\nsub\n", "each has changes of its own"
    assert sorted(os.listdir(place)) == ["file", "sub"]


def test_there_is_none_for_the_first_of_a_kind(tmp_path: Path) -> None:
    fill(tmp_path)
    use(tmp_path)
    wait_for_jobs()
    assert NEXT._waiting is None


@pytest.mark.parametrize("change", ["added", "removed", "mode", "replaced"])
def test_it_is_not_used_for_a_directory_that_has_changed(place: Path, change: str) -> None:
    before = waiting()
    if change == "added":
        (place / "later").write_text("x")
    elif change == "removed":
        (place / "file").unlink()
    elif change == "mode":
        place.chmod(0o750)
    else:
        place.rename(place.with_name(f"{place.name}-before"))
        place.mkdir()
    with opened(place) as sb:
        assert sb._inside.agent is not before.handle.agent
        assert sb.run("ls; stat -c %a .").stdout == "".join(
            f"{word}\n" for word in (*sorted(os.listdir(place)), f"{place.stat().st_mode & 0o777:o}")
        )
    assert until(lambda: is_gone(before))


def test_an_edit_below_is_seen_and_is_no_drift_and_no_conflict(place: Path) -> None:
    before = waiting()
    (place / "sub" / "deep").write_text("new")  # the directory itself looks as before
    with opened(place) as sb:
        assert sb._inside.agent is before.handle.agent
        assert sb.run("cat sub/deep").stdout == "new"
        assert not sb.drift().paths
        sb.run("echo more >> sub/deep")
        sb.commit()
    assert (place / "sub" / "deep").read_text() == "newmore\n"


@pytest.mark.slow
def test_it_is_not_used_with_another_policy_or_other_variables(place: Path) -> None:
    before = waiting()
    with opened(place, env={"COLOUR": "red"}) as sb:
        assert sb.run("echo $COLOUR").stdout == "red\n"
        assert sb._inside.agent is not before.handle.agent
    assert until(lambda: is_gone(before))
    use(place, 2)
    before = waiting()
    with opened(place, policy=Policy.agent().with_limits(processes=50)) as sb:
        assert sb._inside.agent is not before.handle.agent
    assert until(lambda: is_gone(before))


def test_there_is_none_where_a_file_of_the_workspace_is_hidden(tmp_path: Path) -> None:
    fill(tmp_path)
    use(tmp_path, 4, policy=Policy.agent().with_deny(tmp_path / "sub" / "deep"))
    wait_for_jobs()
    assert NEXT._waiting is None


@pytest.mark.parametrize("which", ["shell", "agent"])
def test_one_that_was_killed_while_it_waited_is_not_used(place: Path, which: str) -> None:
    shell = waiting().handle.shell.host_pid
    os.kill(shell if which == "shell" else parent_of(shell), signal.SIGKILL)
    assert until(lambda: has_ended(shell))
    assert use(place) == "oldold"


def test_one_whose_shell_was_killed_is_not_used_before_its_agent_has_noticed(place: Path) -> None:
    shell = waiting().handle.shell.host_pid
    agent = parent_of(shell)
    os.kill(agent, signal.SIGSTOP)
    try:
        os.kill(shell, signal.SIGKILL)
        assert until(lambda: has_ended(shell))
        assert use(place) == "oldold"
    finally:
        if not has_ended(agent):
            os.kill(agent, signal.SIGCONT)


def test_one_that_fits_nobody_is_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting()
    NEXT.close()
    monkeypatch.setattr(next_sandbox, "_OLDEST", 0.2)
    use(place, 2)
    before = waiting()
    assert until(lambda: NEXT._waiting is None)
    assert until(lambda: is_gone(before))


def test_a_fork_of_the_program_leaves_it_to_its_parent(place: Path) -> None:
    before = waiting()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if NEXT._waiting is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    with opened(place) as sb:
        assert sb._inside.agent is before.handle.agent
        assert sb.run("cat file").stdout == "old"


#: Has one that waits, prints the pid of its shell and where layers are, and ends as it is told.
PROGRAM = """
import os, signal, sys, time
from staddle import Sandbox
from staddle.sandbox.open.next_sandbox import NEXT
for _ in range(2):
    with Sandbox(sys.argv[1], backend="namespaces") as sb:
        sb.run("true")
end = time.monotonic() + 60
while NEXT._waiting is None and time.monotonic() < end:
    time.sleep(0.01)
handle = NEXT._waiting.handle
print(handle.shell.host_pid, handle.workspace.stack.store.path, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ended", "killed"])
def test_nothing_is_left_of_it_when_the_program_has_ended(place: Path, how: str) -> None:
    words = [sys.executable, "-c", PROGRAM, str(place), how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE * 2, check=False)
    assert done.returncode == (0 if how == "ended" else -signal.SIGKILL), done.stderr
    pid, store = done.stdout.split()
    assert until(lambda: not os.path.exists(f"/proc/{pid}"))
    # Root's fork server empties the directory; the next program removes it.
    gone = until(lambda: not os.path.exists(store) or not os.listdir(store))
    assert gone, [*os.walk(store), Path("/proc/locks").read_text()]
