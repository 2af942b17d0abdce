"""The fork server: sandboxes that are ready before they are asked for, and gone when they are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from staddle.forkserver import client, connection
from staddle.limits.memory_watch import below
from staddle.linux.process import has_ended
from staddle.sandbox.workspace import stores
from tests.support.forkservers import children, close, opened, output
from tests.support.in_a_child import ROOT, SRC, python
from tests.support.sandboxes import open_none_in_advance
from tests.support.waiting import command_line, next_line, until

pytestmark = pytest.mark.both_users


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / 'it\'s a "project", with:a,colon\\ and\na line'
    directory.mkdir()
    (directory / "file").write_text("of the host\n")
    return directory


# ---------------------------------------------------------------- the workspace


def test_two_sandboxes_do_not_see_each_others_changes(project: Path) -> None:
    one, other = opened(str(project)), opened(str(project))
    try:
        assert (
            output(one, "sh", "-c", "echo x > new; echo y > /tmp/t; echo z > ~/h; echo s > /dev/shm/s")[1]
            == 0
        )
        assert output(other, "sh", "-c", "ls /workspace /tmp ~ /dev/shm")[0] == (
            "/dev/shm:\n\n/home/user:\n\n/tmp:\n\n/workspace:\nfile\n"
        )
    finally:
        close(one)
        close(other)


def test_protected_names_of_a_bound_workspace_are_held(project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text("")
    sandbox = opened(str(project), "bind")
    try:
        said, _ = output(sandbox, "sh", "-c", "echo x >> .git/config; mv .git elsewhere; echo ok > free")
        assert "Read-only" in said
    finally:
        close(sandbox)
    assert (project / ".git" / "config").read_text() == ""
    assert (project / "free").exists()


@pytest.mark.slow
@pytest.mark.needs_root
def test_a_workspace_that_is_mounted_after_the_fork_server_was_started_is_the_one_that_is_shown(
    tmp_path: Path,
) -> None:
    said = python(
        f"""
        import subprocess
        sys.path.insert(0, {str(SRC.parent)!r})
        from tests.support.forkservers import close, opened, output
        place = {str(tmp_path)!r}
        close(opened(place))
        subprocess.run(["mount", "-t", "tmpfs", "new", place], check=True)
        open(place + "/there", "w").close()
        sandbox = opened(place)
        print(output(sandbox, "ls", "/workspace"))
        close(sandbox)
        """,
        around=["unshare", "--mount", "--propagation", "private"],
    )
    assert said == "('there\\n', 0)"


# ---------------------------------------------------------------- ends


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_two_hundred_sandboxes_leave_nothing_behind() -> None:
    """`make soak` opens thousands."""
    for _ in range(3):
        close(opened())
        time.sleep(0.3)  # for the spares to be made again
    before = _there()
    for _ in range(200):
        close(opened())
    assert until(lambda: all(count <= before[what] for what, count in _there().items())), (
        f"{before} became {_there()}"
    )


def _there() -> dict[str, int]:
    with open("/proc/self/mountinfo") as mounts:
        return {
            "processes": len(children()),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "mounts": len(mounts.readlines()),
            "layers": sum(len(os.listdir(store.path)) for store in stores._stores),
        }


@pytest.mark.slow
def test_everything_ends_with_the_host_program_however_it_ends() -> None:
    code = f"""
import sys; sys.path[:0] = [{str(SRC)!r}, {str(SRC.parent)!r}]
from tests.support.forkservers import children, opened
held = [opened() for _ in range(5)]
print(*children(), flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    started = {int(word) for word in next_line(process).split()}
    assert len(started) >= 1 + 5 * 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert until(lambda: all(map(has_ended, started)))


def test_a_fork_server_that_was_killed_is_replaced() -> None:
    close(opened())
    killed = {pid for pid in children() if b"forkserver" in command_line(pid)}
    with_theirs = killed.union(*map(below, killed))
    for pid in killed:
        with suppress(ProcessLookupError):  # an idle one may end by itself
            os.kill(pid, signal.SIGKILL)
    # A sandbox that is opened in advance may start another one at any moment.
    assert killed
    assert until(lambda: not any(command_line(pid) for pid in with_theirs))  # none of its sandboxes is left
    sandbox = opened()
    assert output(sandbox, "echo", "there") == ("there\n", 0)
    close(sandbox)


def test_a_fork_server_that_is_asked_is_not_ended_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one closes its sandbox, and ends fork servers that have none."""
    open_none_in_advance(monkeypatch)
    monkeypatch.setattr(client, "_MOST_IDLE", -100)  # all of them
    take = connection.ForkServerClient.take

    def slowly(self: connection.ForkServerClient, *given: Any, **more: Any) -> Any:
        monkeypatch.setattr(connection.ForkServerClient, "take", take)
        close(opened(env={"ANOTHER": "plan"}))
        return take(self, *given, **more)

    close(opened())
    monkeypatch.setattr(connection.ForkServerClient, "take", slowly)
    sandbox = opened()
    assert output(sandbox, "echo", "there") == ("there\n", 0)
    close(sandbox)


@pytest.mark.slow
def test_a_fork_of_the_host_program_has_fork_servers_of_its_own() -> None:
    kept = opened()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sandbox = opened()
            code = 0 if output(sandbox, "echo", "there") == ("there\n", 0) else 2
            close(sandbox)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert output(kept, "echo", "still") == ("still\n", 0)
    close(kept)


@pytest.mark.slow
def test_fork_servers_that_nobody_uses_are_few() -> None:
    for number in range(8):
        close(opened(env={"NUMBER": str(number)}))
    assert len(client._servers) <= 4 + 1


# ---------------------------------------------------------------- inside


def test_nothing_of_the_first_process_can_be_looked_into_or_touched() -> None:
    sandbox = opened()
    try:
        assert "Operation not permitted" in output(sandbox, "sh", "-c", "kill -0 1")[0]
        for name in ("environ", "maps", "mem", "fd/0", "cwd/", "root/", "exe", "auxv", "ns/net", "stack"):
            assert "Permission denied" in output(sandbox, "cat", f"/proc/1/{name}")[0], name
        assert output(sandbox, "ls", "/proc/self/fd")[0] == "0\n1\n2\n3\n"
        seen = output(sandbox, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")[0]
        assert "staddle/" not in seen
    finally:
        close(sandbox)


def test_the_mount_table_tells_nothing_of_where_the_workspace_is(project: Path) -> None:
    sandbox = opened(str(project))
    try:
        table = output(sandbox, "cat", "/proc/self/mountinfo")[0]
        assert "project" not in table
        assert str(project.parent) not in table
    finally:
        close(sandbox)


def test_it_is_nobody_even_when_root_starts_it() -> None:
    sandbox = opened()
    try:
        assert output(sandbox, "id", "-u") == ("1000\n", 0)
        said = output(sandbox, "grep", "-hE", "^(Cap|NoNewPrivs|Seccomp:)", "/proc/self/status")[0]
        values = dict(line.split(":\t") for line in said.splitlines())
        assert {values[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
        if ROOT:
            inside = output(sandbox, "cat", "/proc/self/uid_map")[0].split()
            assert inside == ["0", "0", "65536"]
            assert sandbox.uid is not None
            assert sandbox.uid > 1 << 30
    finally:
        close(sandbox)


def test_a_fork_server_ends_when_it_is_told_though_others_have_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that was forked without exec has a copy: the end of the socket is not seen then."""
    monkeypatch.setattr(connection, "_LAST_PATIENCE", 60.0)  # one that is not told never ends by itself
    open_none_in_advance(monkeypatch)  # in the fork server of another test
    monkeypatch.setattr(client, "_servers", {})  # earlier tests have killed some of the others
    close(opened())
    with client._registry:
        _, server = client._servers.popitem()
    copy = os.dup(server._socket.fileno())
    try:
        server.close()
        assert server._process.returncode == 0  # it was not killed
    finally:
        os.close(copy)
