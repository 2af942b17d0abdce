"""SWE-ReX: what its repository tests of a runtime, and those tests themselves."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from documented import run_examples
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from staddle.adapters.swerex import StaddleDeployment

OURS = """
import pytest
from swerex.runtime.abstract import *
from staddle import Policy
from staddle.adapters.swerex import StaddleRuntime
class _Action(BashAction):
    timeout: float | None = 20
class _Command(Command):
    timeout: float | None = 20
@pytest.fixture
async def remote_runtime(tmp_path):
    (tmp_path / "bin").mkdir()  # the tests call `python`, which not every system has
    (tmp_path / "bin" / "python").symlink_to("/usr/bin/python3")
    policy = Policy.agent().with_limits(timeout=None).with_write(tmp_path)
    runtime = StaddleRuntime(policy=policy, env={"PATH": f"{tmp_path}/bin:/usr/local/bin:/usr/bin:/bin"})
    await runtime.sandbox.__aenter__()
    yield runtime
    await runtime.close()
@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())
"""
#: The first looks for a host on the network with SWE-ReX's own client. The other wants a pager to wait on a
#: terminal; sessions here have none, and it does not.
NOT_FOR_US = "not test_server_dead and not test_interrupt_pager"


def test_the_repository_tests(tmp_path):
    """The source of the version that is installed has them."""
    wanted = f"swe-rex=={version('swe-rex')}"
    words = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", "swe-rex", wanted]
    subprocess.run([sys.executable, *words], cwd=tmp_path, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", archive], cwd=tmp_path, check=True)  # 3.11.2 has no filter for tarfile
    (tests,) = tmp_path.glob("*/tests")
    (tests / "__init__.py").touch()  # their repository has it, their archive has not
    (tests / "conftest.py").write_text(OURS)
    (tests / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", NOT_FOR_US, "test_execution.py"]
    done = subprocess.run([sys.executable, *words], cwd=tests, capture_output=True, text=True, check=False)
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout


@pytest.fixture
async def runtime():
    deployment = StaddleDeployment()
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    yield deployment.runtime
    assert await deployment.is_alive()
    await deployment.stop()


async def said(runtime, command, **options):
    return await runtime.run_in_session(BashAction(command=command, **options))


async def test_sessions_keep_their_state_and_are_apart(runtime):
    await runtime.create_session(CreateBashSessionRequest(session="other"))
    await said(runtime, "x=42; cd /tmp")
    assert (await said(runtime, "echo $x $PWD")).output == "42 /tmp\n"
    assert (await said(runtime, "echo $x $PWD", session="other")).output == "/workspace\n"
    await runtime.close_session(CloseBashSessionRequest(session="other"))
    for name in ("other", "none"):
        with pytest.raises(SessionDoesNotExistError):
            await said(runtime, "true", session=name)
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())


async def test_statuses_and_errors(runtime):
    assert (await said(runtime, "doesnotexist", check="silent")).exit_code == 127
    assert (await said(runtime, "false", check="ignore")).exit_code is None
    with pytest.raises(NonZeroExitCodeError, match="because"):
        await said(runtime, "false", check="raise", error_msg="because")
    with pytest.raises(BashIncorrectSyntaxError) as raised:
        await said(runtime, "(a")
    assert {"bash_stdout", "bash_stderr"} <= set(raised.value.extra_info)
    with pytest.raises(CommandTimeoutError):
        await said(runtime, "sleep 60", timeout=0.5)
    await runtime.run_in_session(BashInterruptAction())
    assert (await said(runtime, "echo out; echo err >&2; echo out")).output == "out\nerr\nout\n"


async def test_interactive_programs(runtime):
    options = {"is_interactive_command": True, "expect": [">>> "], "timeout": 60}
    await said(runtime, "python3", **options)
    assert (await said(runtime, "print('hello' + ' world')", **options)).output == "hello world\n"
    await said(runtime, "quit()", is_interactive_quit=True, timeout=60)
    assert (await said(runtime, "echo fine")).output == "fine\n"
    with pytest.raises(CommandTimeoutError):
        await said(runtime, "python3", is_interactive_command=True, expect=["NEVER"], timeout=1)
    await runtime.run_in_session(BashInterruptAction())


async def test_commands(runtime):
    assert (await runtime.execute(Command(command=["echo", "-n", "a b"]))).stdout == "a b"
    done = await runtime.execute(Command(command="echo $X; exit 3", shell=True, env={"X": "1"}, cwd="/tmp"))
    assert (done.stdout, done.exit_code) == ("1\n", 3)
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "60"], timeout=0.5))
    with pytest.raises(NonZeroExitCodeError):
        await runtime.execute(Command(command=["false"], check=True))


async def test_files(runtime, tmp_path: Path):
    await runtime.write_file(WriteFileRequest(path="/workspace/d/a.txt", content="text"))
    assert (await runtime.read_file(ReadFileRequest(path="d/a.txt"))).content == "text"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="none.txt"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "one.txt").write_text("1")
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "source"), target_path="/workspace/up"))
    assert (await runtime.read_file(ReadFileRequest(path="/workspace/up/one.txt"))).content == "1"
    one = str(tmp_path / "source" / "one.txt")
    await runtime.upload(UploadRequest(source_path=one, target_path="/workspace/x/two.txt"))
    assert (await runtime.read_file(ReadFileRequest(path="/workspace/x/two.txt"))).content == "1"


def test_the_documented_examples(tmp_path):
    run_examples("swerex", tmp_path)
