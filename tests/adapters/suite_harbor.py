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

from staddle import Policy, Sandbox
from staddle.adapters.harbor import StaddleHarborEnvironment
from staddle.errors import PolicyNotEnforceable

NAME = "staddle.adapters.harbor:StaddleHarborEnvironment"
NO_NETWORK = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
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


def environment(
    directory: Path, dockerfile: str, network_policy: NetworkPolicy = NO_NETWORK, **options
) -> StaddleHarborEnvironment:
    (directory / "environment").mkdir(exist_ok=True)
    (directory / "environment" / "Dockerfile").write_text(dockerfile)
    return StaddleHarborEnvironment(
        environment_dir=directory / "environment",
        environment_name="task",
        session_id="task__1",
        trial_paths=TrialPaths(trial_dir=directory / "trial"),
        task_env_config=EnvironmentConfig(),
        logger=logging.getLogger("test"),
        network_policy=network_policy,
        **options,
    )


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


def test_a_task_gets_as_many_gpus_as_it_asks_for(tmp_path):
    plain = environment(tmp_path, "FROM host")
    assert not plain.capabilities.gpus
    assert plain._opened(plain._recipe).policy.gpu == ()
    three = ["nvidia:0", "nvidia:1", "nvidia:2"]
    made = environment(tmp_path, "FROM host", override_gpus=2, gpus=three)
    assert made.capabilities.gpus
    assert made._opened(made._recipe).policy.gpu == ("nvidia:0", "nvidia:1")
    with pytest.raises(SandboxBuildFailedError, match="asks for 2 GPUs, and gpus= names 1"):
        environment(tmp_path, "FROM host", override_gpus=2, gpus="nvidia:0")
    with pytest.raises(RuntimeError, match="GPU"):
        environment(tmp_path, "FROM host", override_gpus=1)


COMPILED = """
FROM host AS tools
WORKDIR /src
COPY hello.sh .
RUN sed 's/NAME/stage/' hello.sh > hello && chmod 755 hello && mkdir lib && echo data > lib/d

FROM host
COPY --from=tools /src/hello /usr/local/bin/hello
COPY --from=tools /src/lib /opt/lib/
RUN hello > /app/said
"""
THREE_STAGES = """
ARG BASE=host
FROM ${BASE} AS base
ENV GREETING=hi
WORKDIR /build

FROM base AS one
RUN echo "$GREETING one" > one

FROM base AS two
COPY --from=one /build/one .
RUN (cat one; echo two) > both

FROM base
WORKDIR /app
COPY --from=two /build/both said
USER nobody
"""
BY_NUMBER = """
FROM host
RUN mkdir -p /out/deep && echo numbered > /out/deep/said
FROM host AS unused
RUN false
FROM host
WORKDIR /app
COPY --from=0 /out/deep/ ./
"""
STAGES = {
    "a program and data from a builder": (COMPILED, "hello, stage\n"),
    "stages on a stage, from one to the next": (THREE_STAGES, "hi one\ntwo\n"),
    "a stage by number, another that nothing needs": (BY_NUMBER, "numbered\n"),
}


@pytest.mark.parametrize("name", STAGES)
async def test_a_dockerfile_of_several_stages_is_followed(name, tmp_path):
    text, said = STAGES[name]
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "hello.sh").write_text("#!/bin/sh\necho hello, NAME\n")
    made = environment(tmp_path, text)
    await made.start(force_build=False)
    try:
        done = await made.exec("cat /app/said; pwd; ls /src /work", cwd="/app")
        assert done.stdout.startswith(f"{said}/app\n"), done
        assert "/src" in done.stderr  # of the stage, and not here
    finally:
        await made.stop(delete=True)


async def test_the_network_changes_with_the_phase(tmp_path):
    def allow(*hosts: str) -> NetworkPolicy:
        return NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=list(hosts))

    phases = {"network_policy": allow("one.example"), "phase_network_policies": [allow("two.example")]}
    made = environment(tmp_path, "FROM host\n", **phases)
    await made.start(force_build=False)
    try:
        look = "getent hosts one.example >/dev/null; echo $?; getent hosts two.example >/dev/null; echo $?"
        assert (await made.exec(look)).stdout == "0\n2\n"
        await made.set_network_policy(allow("two.example"))
        assert (await made.exec(look)).stdout == "2\n0\n"
        await made.set_network_policy(NO_NETWORK)
        assert (await made.exec(look)).stdout == "2\n2\n"
    finally:
        await made.stop(delete=True)
    public = NetworkPolicy(network_mode=NetworkMode.PUBLIC)
    fixed = environment(tmp_path, "FROM host\n", public)
    with pytest.raises(ValueError, match="cannot change"):
        await fixed.set_network_policy(NO_NETWORK)


REFUSED = {
    "a stage that does not exist": ("FROM host AS b\nRUN make\nFROM host\nCOPY --from=c /x /y\n", "line 4"),
    "files of another image": ("FROM host\nCOPY --from=nginx:latest /etc /y\n", "line 2"),
    "a cache mount": ("FROM host\nRUN --mount=type=cache,target=/c pip install x\n", "line 2"),
    "an unknown image": ("# a task\nFROM ubuntu:24.04\nRUN true\n", "line 2"),
    "an unknown image of a stage": ("FROM golang AS b\nFROM host\nCOPY --from=b /x /y\n", "line 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_line_before_anything_starts(name, tmp_path):
    text, line = REFUSED[name]
    with pytest.raises(SandboxBuildFailedError, match=line):
        environment(tmp_path, text)


def test_an_image_is_found_among_the_bases(tmp_path):
    for bases, found in (({"ubuntu": "host"}, None), ({"ubuntu:24.04": "noble"}, "noble")):
        made = environment(tmp_path, "FROM ubuntu:24.04\n", bases=bases)
        assert made._base(made._recipe) == found


def test_limits_that_are_offered_are_those_that_are_held():
    offered = StaddleHarborEnvironment.resource_capabilities()
    for limits, says in (({"cpu": 1.0}, offered.cpu_limit), ({"memory": "256M"}, offered.memory_limit)):
        try:
            with Sandbox(policy=Policy.agent().with_limits(**limits)) as sandbox:
                held = sandbox.run("true").ok
        except PolicyNotEnforceable:
            held = False
        assert held == says, limits


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
