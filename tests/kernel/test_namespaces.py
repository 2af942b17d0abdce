"""Our own namespaces: the first process is out of reach, and nothing survives anybody's end.

What a sandbox with a fresh root promises in general is in `test_fresh_root`. Here each promise is
held to for both ways to start one: by a launcher, as `wrap` does, and by our command line itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle import Policy, wrap
from staddle.errors import LaunchFailed
from staddle.linux import userns
from tests.support.in_a_child import captured
from tests.support.jail_runs import gone, processes_with
from tests.support.staddle_command import COMMAND, environment
from tests.support.waiting import next_line

pytestmark = pytest.mark.both_users

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SECRET = "do-not-tell-8361"


def by_launcher(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    wrapped = wrap(command, Policy.agent().with_read(str(cwd)), backend="namespaces", cwd=str(cwd))
    done: subprocess.CompletedProcess[str] = wrapped.run(capture_output=True, text=True, timeout=30)
    return done


def by_command_line(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [*COMMAND, "run", "--backend", "namespaces", "--", *command]
    return captured(words, cwd=cwd, env={**environment(), "SECRET": SECRET}, stdin=subprocess.DEVNULL)


both = pytest.mark.parametrize("started", [by_launcher, by_command_line])

#: Everything that could reach PID 1, and what came of it.
REACH = """
import ctypes, errno, fcntl, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
def said(name, result):
    print(name, "through" if result >= 0 else errno.errorcode[ctypes.get_errno()])
def tried(name, function, *args):
    try: function(*args); print(name, "through")
    except OSError as error: print(name, errno.errorcode[error.errno])
tried("ask", os.kill, 1, 0)
tried("kill", os.kill, 1, signal.SIGKILL)
tried("tell", os.kill, 1, signal.SIGTERM)
tried("descriptor", os.pidfd_open, 1)
tried("limit", resource.prlimit, 1, resource.RLIMIT_CPU, (1, 1))
tried("look", os.stat, "/proc/1")
for request, name in ((16, "attach"), (0x4206, "seize")):
    said(name, libc.ptrace(request, 1, None, None))
buffer = ctypes.create_string_buffer(16)
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
here, there = Vector(ctypes.addressof(buffer), 8), Vector(0x400000, 8)
said("read", libc.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
said("write", libc.process_vm_writev(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
# By way of the kernel: have it signal the owner of a descriptor. PID 1 is immune to it.
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, 1); fcntl.fcntl(r, 10, signal.SIGKILL)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b"x")
try: os.kill(-1, signal.SIGTERM)  # everybody but PID 1 and ourselves: nobody
except ProcessLookupError: pass
import time; time.sleep(0.1)
print("alive", os.getppid())
"""


@both
def test_nothing_inside_reaches_the_first_process(started: Run, tmp_path: Path) -> None:
    done = started("/usr/bin/python3", "-I", "-c", REACH, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert answers.pop("alive") == "1"
    assert answers.pop("look") == "ENOENT"
    assert answers == dict.fromkeys(answers, "EPERM")
    assert len(answers) == 9


@both
def test_what_the_caller_knows_is_found_nowhere(started: Run, tmp_path: Path) -> None:
    os.environ["SECRET"] = SECRET
    try:
        script = "env; cat /proc/*/environ /proc/*/cmdline; ls -l /proc/*/fd"
        done = started("/bin/sh", "-c", script, cwd=tmp_path)
    finally:
        del os.environ["SECRET"]
    assert SECRET not in done.stdout


@both
def test_it_can_be_asked_to_keep_the_capabilities_it_has_not(started: Run, tmp_path: Path) -> None:
    """setpriv, ping and others do so before anything else, and give up when it is refused."""
    script = "import ctypes; print(ctypes.CDLL(None).prctl(8, 1, 0, 0, 0))"
    assert started("/usr/bin/python3", "-I", "-c", script, cwd=tmp_path).stdout == "0\n"


@both
def test_its_own_loopback_works_by_both_protocols(started: Run, tmp_path: Path) -> None:
    script = """
import socket
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family) as server:
        server.bind((address, 0)); server.listen()
        with socket.create_connection(server.getsockname()[:2]): print(address)
"""
    done = started("/usr/bin/python3", "-I", "-c", script, cwd=tmp_path)
    assert done.stdout.split() == ["127.0.0.1", "::1"], done.stderr


def test_closed_streams_lead_nowhere_and_others_are_closed(tmp_path: Path) -> None:
    run = " ".join([*COMMAND, "run", "--backend", "namespaces", "--", "ls", "-l", "/proc/self/fd"])
    for closed in ("<&-", "<&- 2>&-"):
        done = captured(
            ["/bin/bash", "-c", f"exec 7</ 9>&1; {run} {closed}"], cwd=tmp_path, env=environment()
        )
        seen = {line.split()[-3]: line.split()[-1] for line in done.stdout.splitlines() if "->" in line}
        assert seen.pop("0") == "/dev/null", done
        assert sorted(seen) == ["1", "2", "3"]  # 3 is the listing itself


def test_a_failed_start_is_a_sentence(tmp_path: Path) -> None:
    done = by_command_line("/nowhere/at-all", cwd=tmp_path)
    assert done.returncode == 127
    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(LaunchFailed, match="cannot be run: No such file"):
        wrap([str(broken)], Policy.agent().with_read(str(tmp_path)), backend="namespaces").run()


# Endings. That of the command line is in `tests/cli/test_endings`.

STAYERS = "setsid sleep 1000 & sleep 1000 & echo up; wait"


def running(mark: str, script: str) -> subprocess.Popen[bytes]:
    policy = Policy.agent().with_env(MARK=mark)
    process = wrap(["bash", "-c", script], policy, backend="namespaces").popen(stdout=subprocess.PIPE)
    assert next_line(process) == b"up\n"
    return process


@pytest.fixture
def mark() -> str:
    return f"staddle-mark-{os.urandom(8).hex()}"


def test_everything_ends_when_the_launcher_is_killed(mark: str) -> None:
    process = running(mark, STAYERS)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert process.stdout is not None
    assert process.stdout.read() == b""  # nobody holds it any more
    process.stdout.close()
    assert gone(mark)


def test_everything_ends_with_the_command_at_once(mark: str) -> None:
    process = running(mark, "setsid sleep 1000 & echo up; exit 4")
    assert process.wait(60) == 4
    assert processes_with(mark) == []  # before we are told
    process.communicate()


@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, b"term"), (signal.SIGINT, b"int")])
def test_signals_reach_everybody_and_the_answer_counts(number: int, word: bytes, mark: str) -> None:
    script = "trap 'echo term; exit 5' TERM; trap 'echo int; exit 5' INT; sleep 1000 & echo up; wait; wait"
    process = running(mark, script)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (out.strip(), process.returncode) == (word, 5)


def test_a_signal_that_comes_before_the_command_does_not_get_lost(mark: str) -> None:
    for delay in (0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03):
        policy = Policy.agent().with_env(MARK=mark)
        process = wrap(["sleep", "1000"], policy, backend="namespaces").popen()
        time.sleep(delay)
        process.terminate()
        assert process.wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        assert gone(mark)


def test_the_launcher_lets_go_of_the_streams(mark: str) -> None:
    """A command that closes its output, and goes on, is not held to it by its launcher."""
    process = running(mark, "echo up; exec >/dev/null 2>&1; sleep 1000")
    assert process.stdout is not None
    assert process.stdout.read() == b""
    process.kill()
    process.communicate()
    assert gone(mark)


@pytest.mark.slow
def test_nothing_is_left_of_one_whose_starter_vanishes_at_any_moment(mark: str) -> None:
    script = (
        "import sys, os, time\nfrom staddle import Policy, wrap\n"
        "w = wrap(['sleep', '1000'], Policy.agent().with_env(MARK=sys.argv[1]), backend='namespaces')\n"
        "w.popen(); os.write(1, b'x'); time.sleep(float(sys.argv[2])); os.kill(os.getpid(), 9)\n"
    )
    src = str(Path(__file__).parents[2] / "src")
    for delay in ("0", "0.005", "0.01", "0.015", "0.02", "0.03"):
        subprocess.run(
            [sys.executable, "-c", script, mark, delay],
            env={**os.environ, "PYTHONPATH": src},
            stdout=subprocess.PIPE,
            timeout=30,
            check=False,
        )
        assert gone(mark), delay


RIGHTS = (
    "id; cat /proc/self/setgroups; grep -E 'Cap|Groups|NoNew' /proc/self/status; wc -l < /proc/self/uid_map"
)


@pytest.mark.needs_root
def test_where_others_may_make_no_user_namespace_root_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Ubuntu 24.04. The command has the same rights: none."""

    def said() -> str:
        command = wrap(["sh", "-c", RIGHTS], Policy.agent(), backend="namespaces")
        done = command.run(capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    before = said()
    monkeypatch.setattr(userns, "is_restricted", lambda: True)
    assert said() == before
