"""How a command in a systemd unit ends: by itself, by a signal, by the death of whoever started it."""

# ruff: noqa: E501 - scripts read better unbroken

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.private_systemd import SOURCE_INSIDE
from tests.support.systemd_sandbox import Sandbox, wait_for
from tests.support.waiting import unique_seconds

pytestmark = pytest.mark.needs_root


@pytest.fixture
def running(sandbox: Sandbox) -> Iterator[tuple[Sandbox, subprocess.Popen[bytes], int, str]]:
    """A command with two children in other sessions, its driver, the client's pid inside the machine."""
    place = sandbox.place()
    mark = unique_seconds()
    text = f"trap 'echo got term; exit 5' TERM; trap 'echo got int; exit 6' INT; setsid sleep {mark} & sleep {mark} & echo up; wait; wait; wait"
    process = sandbox.popen(["bash", "-c", text], pid_file=f"{place}/pid", write=[place], cwd=place)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    pid = int((sandbox.machine.outside(place) / "pid").read_text())
    yield sandbox, process, pid, mark
    process.kill()
    process.communicate()
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "word", "code"), [("TERM", b"got term\n", 5), ("INT", b"got int\n", 6)])
def test_signals_reach_the_command_and_its_answer_counts(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str], name: str, word: bytes, code: int
) -> None:
    sandbox, process, pid, mark = running
    sandbox.unconfined(["kill", f"-{name}", str(pid)])
    assert process.stdout is not None
    assert process.stdout.readline() == word
    assert process.wait(60) == code
    assert not sandbox.processes(f"sleep\0{mark}")


@pytest.mark.slow
def test_when_its_client_is_killed_everything_ends(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, _, pid, mark = running
    assert len(sandbox.units()) == 1
    sandbox.unconfined(["kill", "-KILL", str(pid)])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))
    wait_for("the unit is gone", lambda: not sandbox.units())
    assert not sandbox.processes("busctl\0")


@pytest.mark.slow
def test_when_its_starter_is_killed_everything_ends(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, _, pid, mark = running
    status = sandbox.machine.outside(f"/proc/{pid}/status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    sandbox.unconfined(["kill", "-KILL", parent])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))
    wait_for("the unit is gone", lambda: not sandbox.units())


@pytest.mark.slow
def test_a_unit_that_is_stopped_by_hand_ends_the_command(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, process, _, mark = running
    scope = ["--user"] if sandbox.user else []
    sandbox.unconfined(["systemctl", *scope, "stop", *sandbox.units()])
    assert process.wait(60) == 5  # it was asked, and answered
    assert not sandbox.processes(f"sleep\0{mark}")


@pytest.mark.slow
def test_a_command_that_hears_nothing_is_ended_by_killing_its_client(sandbox: Sandbox) -> None:
    place = sandbox.place()
    mark = unique_seconds()
    text = f"trap '' TERM INT HUP; echo up; while :; do sleep {mark}; done"
    process = sandbox.popen(["bash", "-c", text], pid_file=f"{place}/pid", write=[place], cwd=place)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    pid = (sandbox.machine.outside(place) / "pid").read_text()
    sandbox.unconfined(["kill", "-TERM", pid])
    time.sleep(0.3)
    assert sandbox.units()
    sandbox.unconfined(["kill", "-KILL", pid])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))
    assert process.wait(60) == 137
    process.communicate()
    wait_for("the unit is gone", lambda: not sandbox.units())


#: A client of the manager that kills the launcher, the parent of its parent, before it asks.
KILLER = """#!/bin/sh
kill -KILL $(cut -d" " -f4 /proc/$PPID/stat); sleep 0.2; exec /run/busctl "$@"
"""
LEFT_ALONE = f"""
import sys, time
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Policy
from staddle.backends.systemd import Systemd
from staddle.launch.running import start
from staddle.policy.compiler import compile
started = start(Systemd().prepare(compile(Policy.agent()), ["echo", "ran"]))
time.sleep(2)  # it stays a zombie, which the manager takes for a process to move
print(started.wait())
"""


@pytest.mark.slow
def test_a_launcher_that_is_killed_while_it_asks_leaves_no_unit(sandbox: Sandbox) -> None:
    for name, content in (("program", LEFT_ALONE), ("killer", KILLER)):
        sandbox.machine.outside(f"/run/{name}").write_text(content)
    uid = sandbox.machine.uid
    enter = f"setpriv --reuid={uid} --regid={uid} --clear-groups " if sandbox.user else ""
    text = (
        "cp /usr/bin/busctl /run/busctl && chmod 755 /run/killer && mount --bind /run/killer /usr/bin/busctl && "
        f"exec {enter}env XDG_RUNTIME_DIR=/run/user/{uid} python3 /run/program"
    )
    done = sandbox.machine.run(["unshare", "-m", "sh", "-c", text], user=False)
    assert done.stdout == b"-9\n", done.stderr
    wait_for("the unit is gone", lambda: not sandbox.units(), seconds=10)


@pytest.mark.slow
def test_what_it_leaves_in_the_background_ends_with_it(sandbox: Sandbox) -> None:
    mark, before = unique_seconds(), time.monotonic()
    done = sandbox.run(["bash", "-c", f"setsid sleep {mark} & disown; echo done"])
    assert done.stdout == b"done\n"
    assert time.monotonic() - before < 60
    assert not sandbox.processes(f"sleep\0{mark}")


@pytest.mark.slow
def test_many_at_once_in_one_directory(sandbox: Sandbox) -> None:
    place = sandbox.place()
    command = ["sh", "-c", "echo $0 > out-$0; cat out-$0"]
    started = [sandbox.popen([*command, str(n)], write=[place], cwd=place) for n in range(12)]
    told = sorted(int(process.communicate(timeout=60)[0]) for process in started)
    assert told == list(range(12))
    assert len(list(sandbox.machine.outside(place).iterdir())) == 12
