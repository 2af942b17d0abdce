"""Whichever call fails while a session is opened: nothing runs, it is said why, and the next one is whole."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from staddle import Sandbox
from staddle.errors import LaunchFailed
from staddle.forkserver import client, connection, start
from tests.support.faults import sweep
from tests.support.forkservers import children, close, opened, output
from tests.support.sandboxes import open_none_in_advance
from tests.support.waiting import until

#: In the first way the first and the last call from each place fail, in the others the first one: most are
#: the same lines.
WAYS: dict[str, dict[str, Any]] = {
    "with changes in a layer": {},
    "with a workspace of the host and its network": {
        "mode": "bind",
        "network": "open",
        "parts": ["serving"],
        "once": True,
    },
    "with limits": {"limits": {"memory": "1G", "processes": 100}, "parts": ["serving"], "once": True},
}


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def swept(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    return sweep(str(tmp_path), program="forkserver_faults", **request.param)


@pytest.mark.slow
def test_no_call_may_fail(swept: dict[str, Any], request: pytest.FixtureRequest) -> None:
    runs = swept["runs"]
    assert len(runs) > (50 if "layer" in request.node.name else 35)
    kinds = {run["failed"].split(" ")[0] for run in runs}
    assert {"fork", "mount", "umount2", "mount_setattr", "open_tree", "move_mount", "setns"} <= kinds
    assert {"sethostname", "prctl", "capset", "seccomp", "setsid", "execve", "write", "mknodat"} <= kinds
    if "layer" in request.node.name:
        assert {"unshare", "pivot_root", "symlinkat", "mkdirat", "fsopen", "fsconfig", "fsmount"} <= kinds
    elif "network" in request.node.name:
        assert {"landlock_create_ruleset", "landlock_restrict_self"} <= kinds
    assert [run for run in runs if run["out"] or run["made"]] == []
    # The shell has run when the command's own process fails: then the command has not.
    assert [
        run for run in runs if run["error"] not in ("LaunchFailed", "ended with 125", "ended with 126")
    ] == []
    assert [run for run in runs if not run["why"]] == []
    assert [(run["failed"], run["left"]) for run in runs if run["left"]] == []
    assert [run for run in runs if run["next"] != "it ran\n"] == []


@pytest.mark.slow
def test_no_call_of_a_command_that_becomes_root_may_fail(tmp_path: Path) -> None:
    runs = sweep(str(tmp_path), program="forkserver_faults", parts=["of_a_root"])["runs"]
    kinds = {run["failed"].split(" ")[0] for run in runs}
    own = {"setns"} if os.geteuid() == 0 else {"unshare", "write"}
    assert {"prctl", "capset", "seccomp", "execve", *own} <= kinds
    assert [run for run in runs if run["out"] or not run["why"] or run["left"]] == []
    assert [run for run in runs if run["error"] not in ("ended with 125", "ended with 126")] == []
    assert [run for run in runs if run["next"] != "it ran\n"] == []


# ---------------------------------------------------------------- spares


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The first processes of the sandboxes that wait to be taken."""
    open_none_in_advance(monkeypatch)
    close(opened())
    found = next(server for server in client._servers.values() if not server.live)
    assert until(lambda: len(_below(found)) >= client._SPARES)
    yield _below(found)
    while client._servers:
        client._servers.popitem()[1].close()


def _below(server: connection.ForkServerClient) -> list[int]:
    return [pid for maker in _children(server._process.pid) for pid in _children(maker)]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_sandbox_that_ended_while_it_waited_is_not_handed_out(waiting: list[int]) -> None:
    for pid in waiting:
        with suppress(ProcessLookupError):  # the one that was closed may be among them
            os.kill(pid, signal.SIGKILL)
    assert until(lambda: not children() & set(waiting))
    sandbox = opened()
    assert output(sandbox, "echo", "there") == ("there\n", 0)
    close(sandbox)


def test_a_fork_server_ends_with_the_process_that_makes_its_sandboxes(waiting: list[int]) -> None:
    found = next(server for server in client._servers.values() if not server.live)
    (maker,) = _children(found._process.pid)
    os.kill(maker, signal.SIGKILL)
    assert until(lambda: not children() & set(waiting)), "its sandboxes are still there"
    for _ in range(client._SPARES + 1):  # the first ones it may still know as ready
        sandbox = opened()
        assert output(sandbox, "echo", "there") == ("there\n", 0)
        close(sandbox)
    assert found._process.poll() is not None, "it is still there"


def test_a_fork_server_that_does_not_answer_is_not_waited_for(waiting: list[int]) -> None:
    found = next(server for server in client._servers.values() if not server.live)
    found._socket.settimeout(0.2)
    os.kill(found._process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LaunchFailed, match="has not answered"):
            opened()
        sandbox = opened()
        assert output(sandbox, "echo", "there") == ("there\n", 0)
        close(sandbox)
        assert found._process.returncode is not None, "it is still there"
    finally:
        if found._process.poll() is None:
            os.kill(found._process.pid, signal.SIGCONT)
        found.close()


def test_a_fork_server_that_ends_while_it_starts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is tried and opened once in a process is so before. After the first sandbox, spares come later.
    for _ in range(2):
        close(opened())
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(start, "python", lambda *_: ("/bin/sh", "-c", "kill -9 $$"))
    with pytest.raises(LaunchFailed, match="the fork server has exited"):
        opened(env={"ANOTHER": "plan"})
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # others may have other numbers


def test_a_late_reply_is_not_taken_for_that_to_another_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who asked was interrupted; the sandboxes that there are go on with the same fork server."""
    open_none_in_advance(monkeypatch)
    receive = connection.receive

    def interrupted(*words: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return receive(*words)  # work in the background, for the sandbox that is there
        monkeypatch.setattr(connection, "receive", receive)
        raise KeyboardInterrupt

    with Sandbox(tmp_path) as sb:
        sb.run("echo before > file")
        point = sb.snapshot()
        sb.run("echo after > file")
        monkeypatch.setattr(connection, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Sandbox(tmp_path)
        sb.restore(point)
        assert sb.run("cat file").stdout == "before\n"
        with Sandbox(tmp_path) as other:
            assert other.run("echo there").stdout == "there\n"
