"""Descriptors that a payload has sent, and nobody receives, are no reason for other sandboxes to fail.

The kernel counts them for all processes of a user, and lets none send more than its limit of open files says.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from tests.support.in_a_child import captured

pytestmark = pytest.mark.needs_root  # to take a user of its own

#: Nobody else's, on this machine.
USER = "47115"

PAYLOAD = """
import array, os, resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
sent = array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 253)
is_first = os.fork() > 0  # both go for the last ones
ends, count = [], 0
try:
    while True:
        ends += socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ends[-2].setblocking(False)
        try:
            while True:
                ends[-2].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
                count += 253
        except BlockingIOError:
            pass
except OSError as error:
    if is_first:
        print(error.errno, count, flush=True)
time.sleep(1000)
"""

BEGIN = """
import resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
from staddle import Sandbox
from staddle.errors import StaddleError

hostile, other = Sandbox(), Sandbox()
other.run("x=1")
hostile.files.write("payload.py", sys.stdin.read())
attack = hostile.start("exec python3 payload.py")
print(attack.wait_for_text("\\n", 30).stdout.strip())
"""

PROGRAM = """
print(other.start("true").wait(), other.exec(["echo", "out"]).stdout.strip())
print(other.session("another").run("echo out").stdout.strip(), other.run("echo $x").stdout.strip())
other.files.write("file", "text")
with other.fork()[0] as fork, Sandbox() as third:
    print(fork.run("cat file").stdout, third.run("echo third").stdout.strip())
other.restore(other.snapshot())
print(hostile.run("echo alive").stdout.strip(), attack.running)
"""

LOW = """
import time

def when_they_are_collected(call):
    '''The kernel frees descriptors in flight in a work queue of its own, after the sockets are closed.'''
    end = time.monotonic() + 30
    while True:
        try:
            return call()
        except StaddleError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)

calls = (
    lambda: other.start("true").wait(),
    lambda: other.exec(["echo", "out"]).stdout.strip(),
    lambda: other.session("another").run("echo out").stdout.strip(),
)
for call in calls:
    try:
        print(call())
    except StaddleError as error:
        print(error.what)
from staddle.shell.idle import OPEN_SHELLS

OPEN_SHELLS.park_all()  # its files have to be requested again
try:
    print(other.run("echo $x").stdout.strip())
except StaddleError as error:
    print(error.what)
hostile.close()
calls += (lambda: other.run("echo $x").stdout.strip(),)
print(*map(when_they_are_collected, calls))
"""


@pytest.fixture
def source() -> Iterator[str]:
    """The staddle that is tried, where another user can read it."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        shutil.copytree(Path(staddle.__file__).parent, f"{place}/staddle")
        yield place


def run(program: str, source: str, soft: int, hard: int) -> list[str]:
    """The lines that `program` prints, run by that user with these limits, while the payload is at it."""
    done = captured(
        [
            *("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"),
            *(os.path.realpath(sys.executable), "-I", "-c", BEGIN + program, source, str(soft), str(hard)),
        ],
        input=PAYLOAD,
        env={"HOME": "/", "PATH": os.environ["PATH"]},
        cwd="/",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, *said = done.stdout.splitlines()
    error, _ = map(int, first.split())
    assert error == errno.ETOOMANYREFS, "the attack is none"
    return said


@pytest.mark.parametrize(("soft", "hard"), [(1024, 1024), (1024, 4096), (4096, 4096)])
def test_descriptors_in_flight_of_a_payload_are_its_own_problem(source: str, soft: int, hard: int) -> None:
    assert run(PROGRAM, source, soft, hard) == ["0 out", "out 1", "text third", "alive True"]


def test_under_a_low_limit_a_call_says_so_and_the_sandbox_lives(source: str) -> None:
    *refused, shell, after = run(LOW, source, 300, 300)
    # The first two hand descriptors to the agent, the last one asks it for some.
    asked, sent = "the sandbox could not be asked", "a shell could not be started"
    assert refused == [asked, asked, sent]
    assert (shell, after) == ("the shell could not be used", "0 out out 1")
