"""Harbor: an oracle trial of its own task format, and Dockerfiles that are followed or refused by line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from documented import run_examples
from harbor.environments.base import SandboxBuildFailedError
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from staddle import Sandbox
from staddle.adapters.harbor import StaddleHarborEnvironment

NAME = "staddle.adapters.harbor:StaddleHarborEnvironment"
TASK = """
version = "1.0"
[metadata]
author_name = "x"
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 120.0
[environment]
build_timeout_sec = 120.0
cpus = 1
memory_mb = 512
allow_internet = false
"""


def root_can_be_written() -> bool:
    with Sandbox() as sandbox:
        return sandbox.run("mkdir /logs", user="root").ok


needs_root_directory = pytest.mark.xfail(
    not root_can_be_written(),
    strict=True,
    raises=(SandboxBuildFailedError, AssertionError),
    reason="Harbor wants /logs and /tests, and / of a sandbox is read-only, for root inside as well",
)


def environment(directory: Path, dockerfile: str, **options) -> StaddleHarborEnvironment:
    (directory / "environment").mkdir(exist_ok=True)
    (directory / "environment" / "Dockerfile").write_text(dockerfile)
    return StaddleHarborEnvironment(
        environment_dir=directory / "environment",
        environment_name="task",
        session_id="task__1",
        trial_paths=TrialPaths(trial_dir=directory / "trial"),
        task_env_config=EnvironmentConfig(),
        logger=logging.getLogger("test"),
        network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
        **options,
    )


@needs_root_directory
async def test_a_dockerfile_is_followed(tmp_path):
    text = "FROM scratch\nENV A=1\nWORKDIR /app/sub\nCOPY data.txt ./\n"
    text += "RUN cat data.txt > copied; echo $A >> copied\n"
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "data.txt").write_text("given\n")
    made = environment(tmp_path, text)
    await made.start(force_build=False)
    try:
        done = await made.exec("cat copied; pwd; id -un; echo $A")
        assert done.stdout == "given\n1\n/app/sub\nroot\n1\n"
        (tmp_path / "up").mkdir()
        (tmp_path / "up" / "x").write_text("x")
        await made.upload_dir(tmp_path / "up", "/tests")
        await made.download_dir("/tests", tmp_path / "down")
        assert (tmp_path / "down" / "x").read_text() == "x"
    finally:
        await made.stop(delete=True)


THREE = {
    "a multi-stage build": ("FROM host AS b\nRUN make\nFROM host\nCOPY --from=b /x /y\n", "line 4"),
    "a cache mount": ("FROM host\nRUN --mount=type=cache,target=/c pip install x\n", "line 2"),
    "an unknown image": ("# a task\nFROM ubuntu:24.04\nRUN true\n", "line 2"),
}


@pytest.mark.parametrize("name", THREE)
def test_what_is_not_read_is_refused_by_line_before_anything_starts(name, tmp_path):
    text, line = THREE[name]
    with pytest.raises(SandboxBuildFailedError, match=line):
        environment(tmp_path, text)


def test_an_image_is_found_among_the_bases(tmp_path):
    assert environment(tmp_path, "FROM ubuntu:24.04\n", bases={"ubuntu": "host"})._base() is None
    assert environment(tmp_path, "FROM ubuntu:24.04\n", bases={"ubuntu:24.04": "noble"})._base() == "noble"


@needs_root_directory
def test_an_oracle_trial(tmp_path):
    task = tmp_path / "task"
    for name, text in {
        "task.toml": TASK,
        "instruction.md": "Write hi to /app/hello.txt.\n",
        "environment/Dockerfile": "FROM scratch\n",
        "solution/solve.sh": "#!/bin/bash\necho hi > /app/hello.txt\n",
        "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/hello.txt)" = hi ] && r=1 || r=0\n'
        "echo $r > /logs/verifier/reward.txt\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    words = ["-m", "harbor.cli.main", "run", "-p", str(task), "-a", "oracle", "-e", NAME, "-n", "1"]
    done = subprocess.run(
        [sys.executable, *words, "-o", str(tmp_path / "jobs")], capture_output=True, text=True, check=False
    )
    results = [json.loads(path.read_text()) for path in (tmp_path / "jobs").rglob("result.json")]
    rewards = [(result.get("verifier_result") or {}).get("rewards") or {} for result in results]
    assert any(1 in each.values() for each in rewards), done.stdout[-3000:] + done.stderr[-3000:]


def test_the_documented_examples(tmp_path):
    run_examples("harbor", tmp_path)
