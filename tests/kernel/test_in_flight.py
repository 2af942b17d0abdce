"""Descriptors that a payload has sent, and nobody receives, are no reason for other sandboxes to fail.

The kernel counts them for all processes of a user, and lets none send more than its limit of open files says.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle

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

PROGRAM = """
import resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
from staddle import Sandbox

with Sandbox() as hostile, Sandbox() as other:
    other.run("x=1")
    hostile.files.write("payload.py", sys.stdin.read())
    attack = hostile.start("exec python3 payload.py")
    print(attack.wait_for_text("\\n", 30).stdout.strip())
    print(other.start("true").wait(), other.exec(["echo", "out"]).stdout.strip())
    print(other.session("another").run("echo out").stdout.strip(), other.run("echo $x").stdout.strip())
    other.files.write("file", "text")
    with other.fork()[0] as fork, Sandbox() as third:
        print(fork.run("cat file").stdout, third.run("echo third").stdout.strip())
    other.restore(other.snapshot())
    print(hostile.run("echo alive").stdout.strip(), attack.running)
"""


@pytest.fixture
def source() -> Iterator[str]:
    """The staddle that is tried, where another user can read it."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        shutil.copytree(Path(staddle.__file__).parent, f"{place}/staddle")
        yield place


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can take a user of its own for this")
@pytest.mark.parametrize("limits", [("1024", "1024"), ("1024", "4096"), ("4096", "4096")], ids="-".join)
def test_descriptors_in_flight_of_a_payload_are_its_own_problem(source: str, limits: tuple[str, str]) -> None:
    done = subprocess.run(
        [
            *("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"),
            *(os.path.realpath(sys.executable), "-I", "-c", PROGRAM, source, *limits),
        ],
        input=PAYLOAD,
        env={"HOME": "/", "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    error, count = map(int, said[0].split())
    assert error == errno.ETOOMANYREFS, "the attack is none"
    assert count > 253
    assert said[1:] == ["0 out", "out 1", "text third", "alive True"]
