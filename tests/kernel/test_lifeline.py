"""What a killed caller or launcher has started ends, even a child of bwrap outside its process group."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from staddle import Policy, wrap
from staddle.launch import running
from staddle.launch.running import Lifeline
from tests.support.jail_runs import SOURCE, gone, processes_with
from tests.support.sandboxes import children
from tests.support.waiting import next_line, until, with_argument

#: Is in a session of its own, as bwrap's child is before it is bound to bwrap.
CHILD = 'setsid sh -c "echo \\$\\$; while :; do sleep 1; done" "$0"'
#: A program with a lifeline, for a status (1): says that it is there, then waits.
CALLER = """
import os, sys, time
from staddle.launch.running import Lifeline
status = os.memfd_create("status")
os.write(status, sys.argv[1].encode())
lifeline = Lifeline(os.open(f"/proc/self/fd/{status}", os.O_RDONLY | os.O_CLOEXEC))
print(lifeline.group, flush=True)
time.sleep(600)
"""
STARTED = '{{ "child-pid": {pid}, "mnt-namespace": 4026532177, "pid-namespace": 4026532178 }}\n'
ENDED = '{ "exit-code": 0 }\n'


@contextmanager
def child(mark: str) -> Iterator[int]:
    with subprocess.Popen(["sh", "-c", CHILD, mark], stdout=subprocess.PIPE) as process:
        pid = int(next_line(process))
        try:
            yield pid
        finally:
            for left in processes_with(mark):
                os.kill(left, signal.SIGKILL)


def kill_caller(status: str) -> int:
    """Kill a program with a lifeline; the process group that it had for what it starts."""
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, status],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
    ) as caller:
        group = int(next_line(caller))
        caller.kill()
    return group


def mark() -> str:
    return f"mark-{os.urandom(6).hex()}"


def has_ended(group: int) -> bool:
    return until(lambda: not os.path.exists(f"/proc/{group}/fd/3"))


def test_a_child_that_left_the_group_ends_with_the_caller() -> None:
    name = mark()
    with child(name) as pid:
        group = kill_caller(STARTED.format(pid=pid))
        assert gone(name)
        assert has_ended(group)


@pytest.mark.parametrize("status", ["", "{pid}\n", STARTED + ENDED.replace("{", "{{").replace("}", "}}")])
def test_a_process_that_is_not_said_to_run_is_left_alone(status: str) -> None:
    name = mark()
    with child(name) as pid:
        group = kill_caller(status.format(pid=pid))
        assert has_ended(group)
        assert pid in processes_with(name)


def test_a_lifeline_that_is_closed_kills_only_its_group() -> None:
    name = mark()
    status = os.memfd_create("status")
    with child(name) as pid:
        os.write(status, STARTED.format(pid=pid).encode())
        lifeline = Lifeline(status)
        other = subprocess.Popen(["sleep", "600"], process_group=lifeline.group)
        lifeline.close()
        os.close(status)
        assert other.wait(60) == -signal.SIGKILL
        assert pid in processes_with(name)


def test_no_lifeline_waits_for_a_status_that_is_a_pipe() -> None:
    reading, writing = os.pipe()
    lifeline = Lifeline(reading)
    group = lifeline.group
    os.close(lifeline._held)  # as the kernel does it when this program is killed
    assert os.waitpid(group, 0)[1] == signal.SIGKILL
    os.close(reading)
    os.close(writing)


#: Starts a command on bwrap, and is killed some milliseconds later: before bwrap has bound it to itself.
HASTY = """
import os, signal, sys, time
from staddle import Policy, wrap
command = wrap(["/usr/bin/sleep", "600"], Policy.agent(), backend="bwrap", env={"MARK": sys.argv[1]})
command.popen()
time.sleep(float(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_popen_starts_on_bwrap_ends_with_its_caller_at_any_moment() -> None:
    """bwrap's child is in a session of its own before the kernel knows that it is to end with bwrap."""
    names = []
    for step in range(8):
        names.append(mark())
        words = [sys.executable, "-c", HASTY, names[-1], str(step * 0.0007)]
        subprocess.run(words, env={**os.environ, "PYTHONPATH": SOURCE}, check=False)
    assert until(lambda: not any(processes_with(name) for name in names))


def test_the_lifeline_of_a_popen_ends_with_its_command() -> None:
    before = children()  # a fork server of other tests may still start processes
    with wrap(["/bin/true"], Policy.agent(), backend="bwrap").popen() as process:
        assert process.wait(60) == 0
    assert children() <= before


# ---------------------------------------------------------------- a launcher that is ended


@pytest.mark.parametrize("backend", ["bwrap", "namespaces", "landlock"])
def test_nothing_is_left_of_a_command_that_is_ended_while_it_is_set_up(backend: str) -> None:
    mark = f"81234.{secrets.randbelow(10**9):09}"
    for moment in range(8):
        process = wrap(["sleep", mark], Policy.agent(), backend=backend).popen()
        time.sleep(moment * 0.002)
        running.end(process)
        assert with_argument(mark) == []
