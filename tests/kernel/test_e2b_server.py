"""E2B's sandboxes in the user's server: another program finds them, and their timeout needs no program."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from staddle import places
from staddle.compat.e2b import (
    AsyncSandbox,
    CommandExitException,
    InvalidArgumentException,
    Sandbox,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
    served,
)
from staddle.compat.e2b.sandbox import ServedE2BSandbox
from staddle.errors import StaddleError
from tests.support.server_process import ServerProcess
from tests.support.waiting import until

pytestmark = pytest.mark.both_users


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for these tests alone, which the environment names."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STADDLE_E2B_SERVER", found.path)
        yield found.path


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox.create(server=True, timeout=120, metadata={"made": "here"}, envs={"GREETING": "hello"})
    yield made
    made.kill()


def elsewhere(program: str) -> str:
    """The output of a program of its own."""
    text = f"from staddle.compat.e2b import *\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_ends_and_another_one_goes_on() -> None:
    """The variable, the program in the background, the terminal and the metadata of the first are there."""
    begin = """
s = Sandbox.create(timeout=60, metadata={"task": "17"})
s.run_code("x = 41"); s.files.write("f", "text", metadata={"kind": "note"})
c = s.commands.run("while read line; do echo got $line; done", background=True, stdin=True)
t = s.pty.create(PtySize(24, 80), timeout=0)
print(s.sandbox_id, c.pid, t.pid)
"""
    sandbox_id, *pids = elsewhere(begin).split()
    pid, terminal = map(int, pids)
    (info,) = Sandbox.list(SandboxQuery(metadata={"task": "17"})).next_items()
    assert (info.sandbox_id, info.state) == (sandbox_id, SandboxState.RUNNING)
    assert 0 < (info.end_at - info.started_at).total_seconds() < 65
    assert Sandbox.list(SandboxQuery(metadata={"task": "18"})).next_items() == []
    found = Sandbox.connect(sandbox_id)
    assert found.run_code("x + 1").text == "42"
    assert found.files.get_info("f").metadata == {"kind": "note"}
    assert b"".join(found.files.read("f", format="stream")) == b"text"
    assert pid in [each.pid for each in found.commands.list()]
    found.commands.send_stdin(pid, "this\n")
    handle = found.commands.connect(pid)
    assert until(lambda: handle.stdout == "got this\n")
    assert found.commands.kill(pid)
    assert not found.commands.kill(pid)
    with pytest.raises(CommandExitException):
        handle.wait()
    heard: list[bytes] = []
    found.pty.connect(terminal, on_data=heard.append)
    found.pty.send_stdin(terminal, b"echo $((6*7))x\n")
    assert until(lambda: b"42x" in b"".join(heard))
    assert found.pty.kill(terminal)
    # Another process pauses and resumes; this one sees it.
    assert elsewhere(f"print(Sandbox.pause({sandbox_id!r}))") == "True"
    assert not found.is_running()
    assert Sandbox.get_info(sandbox_id).state is SandboxState.PAUSED
    assert found.resume().is_running()
    assert elsewhere(f"print(Sandbox.kill({sandbox_id!r}), Sandbox.kill({sandbox_id!r}))") == "True False"
    with pytest.raises(SandboxNotRunningException):
        found.commands.run("true")
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox_id)
    assert not found.kill()


def test_the_timeout_needs_no_program() -> None:
    """It ends or pauses a sandbox whose program has ended. Control: before that, it runs."""
    options = 'timeout=3, server=True, metadata={"of": "timeout"}'
    killed = elsewhere(f"print(Sandbox.create({options}).sandbox_id)")
    lifecycle = 'lifecycle={"on_timeout": "pause"}'
    paused = elsewhere(
        f"s = Sandbox.create({options}, {lifecycle}); s.run_code('z = 3'); print(s.sandbox_id)"
    )
    assert Sandbox.get_info(paused).state is SandboxState.RUNNING
    assert until(lambda: Sandbox.get_info(paused).state is SandboxState.PAUSED)
    assert until(lambda: Sandbox.list(SandboxQuery(metadata={"of": "timeout"})).next_items()[1:] == [])
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(killed)
    found = Sandbox.connect(paused, timeout=60)
    assert found.run_code("z").text == "3"
    Sandbox.set_timeout(paused, 0.2)
    assert until(lambda: not found.is_running())
    assert found.kill()


def test_a_program_that_dies_before_it_sets_the_timeout_leaves_none_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ServedE2BSandbox, "_end_after", lambda *_: None)
    made = Sandbox.create(server=True, timeout=1)
    assert until(lambda: not made.alive)


def test_commands_and_code(sandbox: Sandbox) -> None:
    moments: list[tuple[str, float]] = []
    result = sandbox.commands.run(
        "echo $GREETING; sleep 0.5; echo é >&2",
        on_stdout=lambda text: moments.append((text, time.monotonic())),
    )
    assert (result.stdout, result.stderr, moments[0][0]) == ("hello\n", "é\n", "hello\n")
    assert time.monotonic() - moments[0][1] > 0.3, "output arrives while the command runs"
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("echo out; exit 3", on_stdout=print)
    assert (raised.value.exit_code, raised.value.stdout) == (3, "out\n")
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 600", timeout=0.5, on_stdout=print)
    with pytest.raises(TimeoutException):
        sandbox.run_code("while True: pass", timeout=0.5)
    context = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("import os; y = 1; os.getcwd()", context=context).text == "/tmp"
    assert sandbox.run_code("os.environ['A']", context=context, envs={"A": "b"}).text == "b"
    sandbox.restart_code_context(context)
    assert sandbox.run_code("y", context=context).error is not None
    (fork,) = sandbox.fork(timeout=60)
    assert fork.sandbox_id != sandbox.sandbox_id
    assert fork.get_info().metadata == {"made": "here"}
    assert fork.kill()


def test_what_a_server_cannot_do_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException, match="fork"):
        sandbox.create_snapshot()
    with pytest.raises(InvalidArgumentException, match="expose"):
        sandbox.get_host(80)
    with pytest.raises(InvalidArgumentException, match="memory"):
        Sandbox.create(server=True, lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})

    class Mine(Sandbox):
        """A subclass."""

    with pytest.raises(InvalidArgumentException, match="Mine is a subclass"):
        Mine.create(server=True)


def test_other_sandboxes_of_the_server_are_not_e2b_s(sandbox: Sandbox, server: str) -> None:
    with staddle.connect(server) as client, client.create(labels={"for": "others"}) as other:
        assert other.id not in [info.sandbox_id for info in Sandbox.list().next_items()]
        with pytest.raises(SandboxNotFoundException):
            Sandbox.connect(other.id)
        assert not Sandbox.kill(other.id)
        assert other.alive
        assert sandbox.sandbox_id in [info.sandbox_id for info in Sandbox.list().next_items()]


def test_no_server_is_started_to_look_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list, and `connect(start=False)`, start none. Control: `create` does."""
    monkeypatch.delenv("STADDLE_E2B_SERVER")
    monkeypatch.setattr(served, "_CLIENTS", {})
    monkeypatch.setattr(places, "server", lambda: str(tmp_path / "own"))
    with Sandbox.create() as local:
        assert [info.sandbox_id for info in Sandbox.list().next_items()] == [local.sandbox_id]
    with pytest.raises(StaddleError, match="no server runs"):
        staddle.connect(start=False)
    made = Sandbox.create(server=True)
    assert Sandbox.connect(made.sandbox_id).run_code("1").text == "1"
    assert [info.sandbox_id for info in Sandbox.list().next_items()] == [made.sandbox_id]
    with staddle.connect(start=False) as client:
        client.stop()
    assert until(lambda: Sandbox.list().next_items() == [])


def test_awaited() -> None:
    async def main() -> None:
        made = await AsyncSandbox.create(server=True, timeout=60, metadata={"of": "awaited"})
        try:
            assert (await made.run_code("1 + 1")).text == "2"
            found = await AsyncSandbox.connect(made.sandbox_id)
            result = await found.commands.run("echo x")
            assert result.stdout == "x\n"
            pages = AsyncSandbox.list(SandboxQuery(metadata={"of": "awaited"}))
            assert [info.sandbox_id for info in await pages.next_items()] == [made.sandbox_id]
            assert await AsyncSandbox.pause(made.sandbox_id)
            assert (await AsyncSandbox.get_info(made.sandbox_id)).state is SandboxState.PAUSED
        finally:
            assert await AsyncSandbox.kill(made.sandbox_id)

    asyncio.run(main())
