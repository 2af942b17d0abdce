"""Limits of one command on the command line: held, and named when they were run into."""

from __future__ import annotations

import json

import pytest

from tests.support.kept_sandboxes import Run
from tests.support.staddle_command import staddle

HOG = "import time\na = bytearray(150 << 20)\ntime.sleep(20)"
BOMB = "import os, time\nfor _ in range(100):\n    if not os.fork(): time.sleep(20); os._exit(0)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "program", "status", "reason", "said"),
    [
        ("--memory=64M", HOG, 137, "memory", "64 MiB of memory (limits.memory)"),
        ("--processes=20", BOMB, 1, "processes", "there were 20 (limits.processes)"),
        ("--timeout=1", "import time; time.sleep(20)", 124, "timeout", "--timeout gives it more"),
    ],
    ids=["memory", "processes", "timeout"],
)
def test_a_command_that_ran_into_a_limit_is_told_so(
    option: str, program: str, status: int, reason: str, said: str
) -> None:
    words = (option, "--backend=namespaces", "--", "python3", "-c", program)
    done = staddle("run", *words)
    assert (done.returncode, said in done.stderr) == (status, True)
    told = json.loads(staddle("run", "--json", *words).stdout)
    assert (told["exit_code"], told["reason"]) == (status, reason)
    assert f"limits.{reason}" in told["why"]


@pytest.mark.slow
def test_a_command_in_a_kept_sandbox_is_told_so(command: Run) -> None:
    done = command("run", "--keep=limited", "--memory=64M", "--", "python3", "-c", HOG, status=137)
    assert "64 MiB of memory (limits.memory)" in done.stderr


def test_what_holds_each_limit_is_told() -> None:
    told = json.loads(staddle("run", "--json", "--memory=64M", "--", "true").stdout)
    assert (told["reason"], told["why"]) == ("exited", "")
    assert "memory" in [item["limit"] for item in told["enforced"]["limits"]]
