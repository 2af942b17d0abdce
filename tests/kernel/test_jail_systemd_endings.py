"""How a jailed agent in a systemd unit ends: too late, with its caller, or when a person leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jail_prison import ENDLESS, Prison
from tests.support.private_systemd import PrivateSystemd
from tests.support.systemd_sandbox import wait_for

pytestmark = pytest.mark.needs_root


@pytest.fixture(params=["user", "root"])
def prison(machine: PrivateSystemd, request: pytest.FixtureRequest) -> Iterator[Prison]:
    made = Prison(machine, request.param == "user")
    yield made
    wait_for("no unit is left", lambda: made.units() == [])


@pytest.mark.slow
def test_a_timeout_stops_the_unit(prison: Prison) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    name = prison.create()
    done = prison.go(name, f'(setsid sh -c "{ENDLESS}" {mark} &); {ENDLESS}', "--timeout", "1")
    assert done.returncode == 124
    assert prison.processes(mark) == []
    wait_for("the manager forgets the unit", lambda: prison.units() == [])
    assert prison.state(name) == "failed"
    assert prison.go(name, "true").returncode == 0
    assert prison.state(name) == "stopped"
    assert prison.healthy()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [("INT", 130), ("TERM", 143), ("KILL", -9)])
def test_when_its_caller_is_ended_so_is_the_unit(prison: Prison, how: str, status: int) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    name = prison.create()
    script = f'(setsid sh -c "{ENDLESS}" {mark} &); touch ready; sleep 600'
    running = prison.start(name, script)
    try:
        assert prison.state(name) == "running"
        assert len(prison.units()) == 1
        assert prison.go(name, "true").returncode == 125  # claimed
        prison.end(how)
        assert running.wait(60) == status
    finally:
        running.kill()
        running.communicate()
    wait_for("everything ends", lambda: not prison.processes(mark))
    wait_for("the unit is gone", lambda: not prison.units())
    assert prison.state(name) == "failed"
    assert prison.go(name, "echo again").stdout == b"again\n"
    assert prison.healthy()


@pytest.mark.slow
def test_a_shell_on_a_terminal(prison: Prison) -> None:
    name = prison.create()
    words = [*prison.words_of("shell", name, "--backend", "systemd"), "--", "bash", "--norc"]
    code = (Path(__file__).parents[1] / "support/typing_at_a_terminal.py").read_text()
    typed = ["stty size", "echo $((40 + 2)) > answer", "sleep 300", "\x03", "jobs; exit 5"]
    done = prison.unconfined(
        ["/usr/bin/python3", "-c", code, json.dumps(typed), *words], env={**prison.env, "TERM": "xterm"}
    )
    assert done.returncode == 5, done.stdout
    assert b"31 99" in done.stdout
    answer = prison.machine.outside(f"{prison.workspaces}/{name}/tree/answer")
    assert answer.read_text() == "42\n"
    assert prison.state(name) == "stopped"
