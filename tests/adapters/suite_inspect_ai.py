"""inspect_ai's own checks of a sandbox, its injected tools, and what the adapter adds."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import subprocess
import termios
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
import trio
from documented import run_examples
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, execute_tools, get_model
from inspect_ai.solver import solver
from inspect_ai.tool import bash, bash_session, python, text_editor
from inspect_ai.util import (
    ExecRemoteAwaitableOptions,
    ExecRemoteStreamingOptions,
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from staddle import Snapshot
from staddle.adapters.inspect_ai import StaddleSandboxConfig
from staddle.adapters.inspect_ai import StaddleSandboxEnvironment as Provider

IS_ROOT = os.geteuid() == 0


@pytest_asyncio.fixture
async def sandbox_env():
    made = await Provider.sample_init("self_check", None, {})
    try:
        yield made["default"]
    finally:
        await Provider.sample_cleanup("self_check", None, made, False)


if not IS_ROOT:

    @pytest.mark.xfail(
        strict=True, reason="a user without subordinate ids has one id: no account can be made"
    )
    async def test_exec_as_user(sandbox_env):
        await self_check.test_exec_as_user(sandbox_env)

    async def test_another_user_is_refused_with_the_type_that_inspect_knows(sandbox_env):
        with pytest.raises(SandboxUserUnsupportedError):
            await sandbox_env.exec(["id"], user="nobody")


# ---------------------------------------------------------------- injected tools, in an evaluation


def call(name, **arguments):
    made = ModelOutput.for_tool_call("mockllm/model", tool_name=name, tool_arguments=arguments)
    return made.choices[0].message


CALLS = [
    (call("bash", command="pwd; cat data/in.txt made-by-setup"), "/workspace\nhellohello"),
    (call("python", code="print(6 * 7)"), "42"),
    (call("text_editor", command="create", path="/tmp/t.txt", file_text="one\ntwo\n"), "created"),
    (call("text_editor", command="str_replace", path="/tmp/t.txt", old_str="two", new_str="three"), "three"),
    (call("bash_session", action="type_submit", input="cd /tmp; x=5; ls t.txt"), "t.txt"),
    (call("bash_session", action="type_submit", input="echo $x$PWD"), "5/tmp"),
]


def evaluated(do, tmp_path: Path, **options):
    @solver
    def direct():
        async def solve(state, generate):
            await do()
            return state

        return solve

    sample = Sample(
        input="go",
        files={"data/in.txt": "hello"},
        setup="#!/bin/bash\ncat data/in.txt > made-by-setup",
    )
    config = StaddleSandboxConfig(**options)
    task = Task(dataset=[sample], solver=[direct()], sandbox=SandboxEnvironmentSpec("staddle", config))
    (log,) = eval(task, model=get_model("mockllm/model"), display="none", log_dir=str(tmp_path / "logs"))
    assert log.status == "success", log.error and log.error.traceback


def test_injected_tools(tmp_path: Path) -> None:
    async def do():
        box = sandbox()
        result = await box.exec_remote(
            ["sh", "-c", "echo remote; exit 3"], ExecRemoteAwaitableOptions(timeout=60), stream=False
        )
        assert (result.returncode, result.stdout) == (3, "remote\n")
        process = await box.exec_remote(["sh", "-c", "echo 1; echo 2"], ExecRemoteStreamingOptions())
        said = "".join([getattr(event, "data", "") async for event in process])
        assert said == "1\n2\n"
        tools = [bash(timeout=60), python(timeout=60), text_editor(), bash_session()]
        for message, expected in CALLS:
            answers = (await execute_tools([message], tools)).messages
            assert not any(answer.error for answer in answers), answers
            assert expected in answers[0].text, answers[0].text

    evaluated(do, tmp_path)


def test_each_sample_leaves_a_snapshot_where_asked(tmp_path: Path) -> None:
    async def do():
        await sandbox().write_file("made.txt", "by the agent")

    evaluated(do, tmp_path, snapshots=str(tmp_path / "kept"))
    (saved,) = (tmp_path / "kept").iterdir()
    Snapshot.load(saved).close()


# ---------------------------------------------------------------- trio


def test_on_trio() -> None:
    async def use():
        made = await Provider.sample_init("trio", None, {})
        box = made["default"]
        try:
            await box.write_file("d/a.txt", "text")
            assert await box.read_file("d/a.txt") == "text"
            assert (await box.exec(["cat", "d/a.txt"])).stdout == "text"
            with pytest.raises(TimeoutError):
                await box.exec(["sleep", "60"], timeout=1)
            with pytest.raises(FileNotFoundError):
                await box.read_file("no")
            with anyio.move_on_after(0.5) as scope:
                await box.exec(["sleep", "600"])
            assert scope.cancelled_caught
        finally:
            await Provider.sample_cleanup("trio", None, made, False)

    trio.run(use)


# ---------------------------------------------------------------- a terminal for a person


def typed(command: str, keys: bytes) -> tuple[int, bytes]:
    """(exit status, output) of a command that is used at a terminal."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 111))
    process = subprocess.Popen(["sh", "-c", command], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    os.write(master, keys)
    said = b""
    try:
        while piece := os.read(master, 1000):
            said += piece
    except OSError:
        pass  # a terminal that nobody has any more
    os.close(master)
    return process.wait(60), said


async def test_a_person_connects_to_a_sandbox(sandbox_env) -> None:
    await sandbox_env.write_file("seen.txt", "by both")
    connection = await sandbox_env.connection()
    assert connection.type == "staddle"
    keys = b"stty size; cat seen.txt; id -un; exit 7\r"
    status, said = await asyncio.to_thread(typed, connection.command, keys)
    assert status == 7
    assert all(word in said for word in (b"33 111", b"by both", b"user")), said
    as_root = await sandbox_env.connection(user="root")
    assert b"uid=0" in (await asyncio.to_thread(typed, as_root.command, b"id; exit\r"))[1]
    place = Path(shlex.split(connection.command)[-1])
    assert place.parent.stat().st_mode & 0o777 == 0o700
    await Provider.sample_cleanup("self_check", None, {"default": sandbox_env}, False)
    assert not place.parent.exists()
    with pytest.raises(ConnectionError):
        await sandbox_env.connection()


def test_a_person_connects_on_trio() -> None:
    async def use():
        made = await Provider.sample_init("trio", None, {})
        try:
            connection = await made["default"].connection()
            found = await trio.to_thread.run_sync(typed, connection.command, b"id -un; exit 3\r")
            assert (found[0], b"user" in found[1]) == (3, True)
        finally:
            await Provider.sample_cleanup("trio", None, made, False)

    trio.run(use)


# ---------------------------------------------------------------- configuration


async def test_a_policy_file_decides(tmp_path: Path) -> None:
    (tmp_path / "staddle.toml").write_text('preset = "agent"\n[limits]\noutput = "2K"\n')
    made = await Provider.sample_init("policy", str(tmp_path / "staddle.toml"), {})
    with pytest.raises(OutputLimitExceededError):
        await made["default"].exec(["seq", "100000"])
    await Provider.sample_cleanup("policy", None, made, False)


def test_the_configuration_survives_a_log() -> None:
    config = StaddleSandboxConfig(policy="p.toml", workspace=".")
    assert Provider.config_deserialize(config.model_dump()) == config
    assert Provider.config_files() == ["staddle.toml"]


def test_the_documented_examples(tmp_path):
    run_examples("inspect_ai", tmp_path)
