"""The OpenAI Agents SDK has no suite for sandboxes: a scripted agent, and each operation of a session."""

from __future__ import annotations

import asyncio
import io
import os

import pytest
from agents import Agent, ApplyPatchTool, RunConfig, Runner, ShellTool
from agents.run_config import SandboxRunConfig
from agents.sandbox import SandboxAgent
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    SandboxError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.sandbox.types import Group, User
from agents.testing import ScriptedModel, assistant_message, function_call
from documented import run_examples

from staddle import AsyncSandbox
from staddle.adapters.openai_agents import (
    StaddlePatchEditor,
    StaddleSandboxClient,
    StaddleSandboxOptions,
    shell_executor,
)

IS_ROOT = os.geteuid() == 0
HELLO = Manifest(entries={"hello.txt": File(content=b"hello\n")})


@pytest.fixture
async def session():
    client = StaddleSandboxClient()
    made = await client.create(manifest=HELLO, options=StaddleSandboxOptions(exposed_ports=(8000,)))
    async with made:
        yield made
    await client.delete(made)


async def test_a_scripted_agent_works_in_it():
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "cat hello.txt; id -un; pwd"}, call_id="1")],
            [assistant_message("done")],
        ]
    )
    agent = SandboxAgent(
        name="a", instructions="x", model=model, default_manifest=HELLO, capabilities=[Shell(), Filesystem()]
    )
    sandbox = SandboxRunConfig(client=StaddleSandboxClient())
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=sandbox, tracing_disabled=True))
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "hello\nuser\n/workspace" in outputs[0]


async def test_exec(session):
    result = await session.exec("echo hi; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"hi\n", b"err\n", 3)


async def test_exec_without_a_shell(session):
    assert (await session.exec("printf", "%s", "$HOME", shell=False)).stdout == b"$HOME"


async def test_a_timeout(session):
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 60", timeout=1)


async def test_read_and_write(session):
    assert (await session.read("hello.txt")).read() == b"hello\n"
    await session.write("d/x.txt", io.BytesIO(b"data"))
    assert [(entry.path, str(entry.kind)) for entry in await session.ls("d")]
    assert (await session.exec("cat d/x.txt")).stdout == b"data"
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read("none")


async def test_paths_outside_the_workspace_are_refused(session):
    with pytest.raises(SandboxError):
        await session.read("../../etc/passwd")


async def test_apply_patch_mv_rm_and_same_file(session):
    await session.apply_patch({"type": "create_file", "path": "n.txt", "diff": "+one\n+two\n"})
    await session.apply_patch({"type": "update_file", "path": "n.txt", "diff": "@@\n one\n-two\n+three\n"})
    assert (await session.exec("cat n.txt")).stdout.split() == [b"one", b"three"]
    await session.mv("n.txt", "m.txt")
    assert await session.same_file("m.txt", "m.txt")
    await session.rm("m.txt")
    assert (await session.exec("test -e m.txt")).exit_code == 1


async def test_root(session):
    assert (await session.exec("id -un", user="root")).stdout == b"root\n"


async def test_another_user(session):
    if IS_ROOT:
        assert (await session.exec("id -un", user="nobody")).stdout == b"nobody\n"
    else:
        with pytest.raises(ExecTransportError, match="nobody"):
            await session.exec("id -un", user="nobody")


async def test_users_of_the_manifest():
    client = StaddleSandboxClient()
    manifest = Manifest(users=[User(name="bob")], groups=[Group(name="team", users=[User(name="ann")])])
    made = await client.create(manifest=manifest)
    if not IS_ROOT:  # one id: the account can be made, and nothing can run as it
        async with made:
            with pytest.raises(ExecTransportError, match="bob"):
                await made.exec("id", user="bob")
        return
    async with made:
        assert b"bob" in (await made.exec("id -un", user="bob")).stdout
        assert b"team" in (await made.exec("id -Gn", user=User(name="ann"))).stdout
    await client.delete(made)


@pytest.mark.parametrize("tty", [True, False])
async def test_programs_that_go_on(session, tty):
    first = await session.pty_exec_start("echo start; read x; echo got $x", tty=tty, yield_time_s=3)
    assert b"start" in first.output
    assert first.exit_code is None
    then = await session.pty_write_stdin(session_id=first.process_id, chars="abc\n", yield_time_s=60)
    assert b"got abc" in then.output
    assert (then.exit_code, then.process_id) == (0, None)


async def test_an_exposed_port(session):
    await session.exec("(python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &)")
    endpoint = await session.resolve_exposed_port(8000)
    for _ in range(600):
        try:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.write(b"GET /hello.txt HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if answer.endswith(b"hello\n"):
                break
        except OSError:
            pass
        await asyncio.sleep(0.1)
    assert answer.endswith(b"hello\n")


async def test_resume_in_the_process_and_from_a_snapshot(tmp_path):
    client = StaddleSandboxClient()
    made = await client.create(manifest=HELLO, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with made:
        await made.write("d/x.txt", io.BytesIO(b"data"))
        await made.exec("touch /tmp/outside")
        live = client.serialize_session_state(made.state)
        again = await client.resume(client.deserialize_session_state(dict(live)))
        await again.start()
        assert (await again.exec("cat d/x.txt; ls /tmp/outside")).stdout == b"data/tmp/outside\n"
    state = client.serialize_session_state(made.state)
    await client.delete(made)
    resumed = await client.resume(client.deserialize_session_state(dict(state)))
    async with resumed:
        assert (await resumed.exec("cat hello.txt d/x.txt")).stdout == b"hello\ndata"
        assert (await resumed.exec("ls /tmp/outside")).exit_code != 0
    await client.delete(resumed)


async def test_shell_tool_and_apply_patch_tool():
    """The executors, as the tools call them."""
    from types import SimpleNamespace as Made

    async with AsyncSandbox() as sandbox:
        action = Made(
            commands=["cd /tmp", "pwd", "sleep 60", "never"], timeout_ms=1500, max_output_length=None
        )
        result = await shell_executor(sandbox)(Made(data=Made(action=action)))
        assert [each.stdout for each in result.output] == ["", "/tmp\n", ""]
        assert [each.outcome.type for each in result.output] == ["exit", "exit", "timeout"]
        editor = StaddlePatchEditor(sandbox)
        await editor.create_file(Made(path="a.txt", diff="+one\n+two\n", move_to=None))
        await editor.update_file(Made(path="a.txt", diff="@@\n one\n-two\n+three\n", move_to="b.txt"))
        assert (await sandbox.files.read("/workspace/b.txt")).split() == ["one", "three"]
        await editor.delete_file(Made(path="b.txt", diff=None))
        assert not await sandbox.files.exists("/workspace/b.txt")
        with pytest.raises(ValueError, match="below"):
            await editor.delete_file(Made(path="../etc/passwd", diff=None))
        Agent(name="a", tools=[ShellTool(executor=shell_executor(sandbox)), ApplyPatchTool(editor=editor)])


def test_the_documented_examples(tmp_path):
    run_examples("openai_agents", tmp_path)
