"""From its second command on, a program starts no interpreter for a command, and loses nothing by that."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import staddle
from staddle import Policy, wrap
from staddle.errors import LaunchFailed
from staddle.launch import launch_server
from staddle.launch.launch_server import LaunchServer
from tests.support.waiting import next_line, unique_seconds, until, with_argument

pytestmark = pytest.mark.both_users
SRC = str(Path(staddle.__file__).parents[1])


def run(*command: str, policy: Policy | None = None, **how: Any) -> subprocess.CompletedProcess[Any]:
    return wrap(command, policy or Policy.agent(), backend="namespaces").run(**how)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LaunchServer]:
    monkeypatch.setattr(launch_server, "_runs", 1)
    run("true")
    yield launch_server._server[0]
    while launch_server._server:
        launch_server._server.pop().end()


def test_the_first_command_starts_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    while launch_server._server:  # another test's
        launch_server._server.pop().end()
    monkeypatch.setattr(launch_server, "_runs", 0)
    run("true")
    assert not launch_server._server


def test_one_server_starts_all_commands_with_their_own_streams(server: LaunchServer, tmp_path: Path) -> None:
    done = run("sh", "-c", "cat; echo e >&2; exit 3", input=b"given", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"given", b"e\n")
    both = run("sh", "-c", "echo o; echo e >&2", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert sorted(both.stdout.split()) == [b"e", b"o"]
    with (tmp_path / "out").open("wb") as file:
        run("echo", "written", stdin=subprocess.DEVNULL, stdout=file)
    assert (tmp_path / "out").read_bytes() == b"written\n"
    assert run("sh", "-c", "kill -9 $$").returncode == 137
    assert launch_server._server == [server]


def test_it_has_no_descriptor_of_the_program(server: LaunchServer, tmp_path: Path) -> None:
    launch_server._server.pop().end()
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        run("true")
        (now,) = launch_server._server
        shown = {os.readlink(f"/proc/{now.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{now.pid}/fd")}
    assert all(link == "/dev/null" or link.startswith("socket:") for link in shown), shown


def test_threads_share_it_and_none_but_the_main_one_starts_it(server: LaunchServer) -> None:
    seen: list[bytes] = []

    def work() -> None:
        seen.append(run("echo", "here", capture_output=True).stdout)

    def all_of_them() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    all_of_them()
    assert launch_server._server == [server]
    launch_server._server.pop().end()
    all_of_them()
    assert launch_server._server == []
    assert seen == [b"here\n"] * 8


def test_a_command_that_takes_too_long_is_ended(server: LaunchServer) -> None:
    mark = unique_seconds()
    with pytest.raises(subprocess.TimeoutExpired):
        run("sleep", mark, timeout=0.5)
    assert not with_argument(mark)
    assert launch_server._server == [server]


def test_a_command_that_cannot_be_started_says_why(server: LaunchServer, tmp_path: Path) -> None:
    (program := tmp_path / "program").write_text("#!/missing/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(LaunchFailed, match="cannot be run"):
        run(str(program), policy=Policy.agent().with_read(tmp_path))
    assert launch_server._server == [server]


def test_a_limit_set_later_holds_for_later_commands(server: LaunchServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, hard))
    try:
        assert run("sh", "-c", "ulimit -s", capture_output=True).stdout == b"4096\n"
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    assert launch_server._server != [server]


def test_after_its_server_was_killed_a_command_runs_once(
    server: LaunchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, lost = os.write, []

    def losing(fd: int, data: bytes) -> int:
        if data == b"!" and not lost:
            lost.append(fd)
            raise BrokenPipeError
        return write(fd, data)

    monkeypatch.setattr(os, "write", losing)
    policy = Policy.agent().with_write(tmp_path)
    assert run("sh", "-c", f"echo once >>{tmp_path}/out", policy=policy).returncode == 0
    assert lost
    run("true")
    os.kill(launch_server._server[0].pid, 9)
    assert run("sh", "-c", f"echo twice >>{tmp_path}/out", policy=policy).returncode == 0
    assert (tmp_path / "out").read_text() == "once\ntwice\n"


_PROGRAM = """
import sys, os
sys.path.insert(0, {src!r})
from staddle import Policy, wrap
from staddle.launch import launch_server
for command in (["true"], ["true"]):
    wrap(command, Policy.agent(), backend="namespaces").run()
print(launch_server._server[0].pid, flush=True)
"""


def program(rest: str) -> subprocess.Popen[bytes]:
    code = _PROGRAM.format(src=SRC) + rest
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd="/")


def test_commands_and_server_end_with_a_program_that_is_killed() -> None:
    mark = unique_seconds()
    started = program(f'wrap(["sleep", "{mark}"], Policy.agent(), backend="namespaces").run()')
    with started:
        server = int(next_line(started))
        assert until(lambda: with_argument(mark))
        started.kill()
    assert until(lambda: not with_argument(mark))
    assert until(lambda: not os.path.exists(f"/proc/{server}"))


def test_a_program_that_confines_itself_has_no_server_outside_of_that() -> None:
    rest = """
from staddle.linux import landlock, process
process.no_new_privs()
found = launch_server._inherited()
mine = launch_server.LaunchServer(found)
assert mine.serves(found)
with landlock.Ruleset(landlock.bits(["make_sock"], "fs")) as ruleset:
    ruleset.restrict()
assert launch_server._inherited() == found and not mine.serves(found)
mine.end()
print("confined", flush=True)
"""
    with program(rest) as started:
        next_line(started)
        assert next_line(started).strip() in (b"confined", "confined")


@pytest.mark.slow
def test_a_server_that_is_not_used_ends_itself(server: LaunchServer) -> None:
    assert until(lambda: Path(f"/proc/{server.pid}/stat").read_text().split()[2] == "Z", 30)
    assert run("true").returncode == 0
    assert launch_server._server != [server]
    assert not os.path.exists(f"/proc/{server.pid}")
