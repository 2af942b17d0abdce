"""The jail on a real systemd, through the command line, as an ordinary user and as root; and how it ends."""

from __future__ import annotations

import json
import os
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
def test_from_a_repository_to_a_published_branch(prison: Prison) -> None:
    name = prison.create()
    script = (
        "set -e; grep -q one file.txt; echo two >> file.txt; git commit -qam 'The work';"
        "test $(wc -l < file.txt) = 2; echo tests pass; echo rest > rest; echo note >&2; exit 3"
    )
    done = prison.go(name, script)
    note, _, nudge = done.stderr.partition(b"\n")
    assert (done.returncode, done.stdout, note) == (3, b"tests pass\n", b"note")
    assert nudge.startswith(b"staddle: 1 file is not committed: rest")
    assert prison.state(name) == "stopped"
    facts = json.loads(prison.jail("status", name, "--json").stdout)
    assert facts["uncommitted"] == ["rest"]
    assert facts["planted"] == []
    assert facts["journal"][1]["backend"] == "systemd"
    assert b"+two" in prison.jail("diff", name).stdout
    assert prison.jail("publish", name).returncode == 125
    prison.jail("commit", name, "-m", "The rest")
    assert prison.jail("publish", name).returncode == 0
    assert prison.jail("rm", name).returncode == 0
    log = prison.shell(f"git -C {prison.repository} log --format=%s staddle/{name}")
    assert log == b"The rest\nThe work\nfirst\n"
    assert prison.healthy()


@pytest.mark.slow
def test_the_key_is_in_no_unit_and_on_no_command_line(prison: Prison) -> None:
    key = f"sk-{os.urandom(12).hex()}"
    name = prison.create()
    running = prison.start(
        name,
        'test "${#ANTHROPIC_API_KEY}" = 27 || exit 1; touch ready; exec sleep 600',
        *("--key-env", "MY_KEY"),
        MY_KEY=key,
    )
    try:
        scope = ["--user"] if prison.user else []
        (unit,) = prison.units()
        shown = prison.unconfined(["systemctl", *scope, "show", unit, "--all"]).stdout
        assert b"Description=a command confined by staddle" in shown
        assert key.encode() not in shown
        assert key.encode() not in prison.unconfined(["systemctl", *scope, "cat", unit]).stdout
        assert prison.processes(key) == []
        code = (
            "import os, sys\n"
            "for place, _, names in os.walk('/run'):\n"
            "    for name in names:\n"
            "        path = os.path.join(place, name)\n"
            "        if os.path.isfile(path) and sys.argv[1].encode() in open(path, 'rb').read(1 << 22):\n"
            "            print(path)\n"
        )
        # The argument is on a command line of ours: cut in two, so that it does not find itself.
        halves = code.replace("sys.argv[1]", "(sys.argv[1] + sys.argv[2])")
        found = prison.machine.run(["/usr/bin/python3", "-c", halves, key[:9], key[9:]], user=False)
        assert (found.stdout, found.stderr) == (b"", b"")
        assert key not in prison.machine.log()
    finally:
        prison.end("TERM")
        assert running.wait(60) == 143
        running.communicate()
    assert prison.state(name) == "failed"
    workspaces = prison.machine.outside(prison.workspaces)
    for file in workspaces.rglob("*"):
        if file.is_file() and not file.is_symlink():
            assert key.encode() not in file.read_bytes()


# ---------------------------------------------------------------- how it ends


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
