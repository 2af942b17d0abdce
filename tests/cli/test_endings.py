"""However a run ends, everything inside ends with it and nothing stays behind."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.orphans import adopted
from tests.support.pty_screen import PtyScreen
from tests.support.staddle_command import COMMAND, environment, gone, processes_with, staddle, start
from tests.support.waiting import until


@pytest.fixture(params=["namespaces", "bwrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def running(tmp_path: Path, body: str, marker: str, backend: str) -> subprocess.Popen[str]:
    """A run whose shell has `marker` among its arguments; returns when it says that it is up.

    It says so with a builtin: bash takes a SIGINT that comes while a program runs for the program's.
    """
    options = ["--mode", "bind", "--timeout", "60", "--backend", backend]
    process = start("run", *options, "--", "bash", "-c", body, marker, cwd=tmp_path)
    assert until((tmp_path / "up").exists)
    return process


@pytest.fixture
def marker() -> str:
    return f"marker-{uuid.uuid4()}"


STUBBORN = """
trap '' TERM INT HUP
(setsid sh -c 'trap "" TERM INT HUP; sleep 300' $0 &)
: >up
while :; do sleep 1; done
"""


def left_in(temporary: str) -> set[str]:
    """What is in this directory, and what has our name in those that all tests share."""
    shared = {
        f"{place}/{name}"
        for place in ("/run", "/dev/shm")
        for name in os.listdir(place)
        if re.fullmatch(r"\.?staddle-[0-9a-f]{12,}", name)
    }
    return shared | {*os.listdir(temporary)}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The directory for temporary files, which no other test uses."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o1777)
        monkeypatch.setenv("TMPDIR", place)
        yield place


def test_ctrl_c_reaches_the_command_which_may_answer(tmp_path: Path, marker: str, backend: str) -> None:
    process = running(
        tmp_path, "trap 'echo cleaned; exit 5' INT; : >up; while :; do sleep 0.1; done", marker, backend
    )
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("cleaned\n", 5)
    assert gone(marker)


def test_ctrl_c_reaches_every_process(tmp_path: Path, marker: str, backend: str) -> None:
    body = "python3 -c 'import time; time.sleep(300)' & : >up; wait; echo waited; exit $?"
    process = running(tmp_path, body, marker, backend)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert gone(marker)


def test_sigterm_tells_the_truth(tmp_path: Path, marker: str, backend: str) -> None:
    process = running(tmp_path, "trap 'exit 0' TERM; : >up; while :; do sleep 0.1; done", marker, backend)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert gone(marker)


def test_sigterm_ends_what_ignores_it(tmp_path: Path, marker: str, backend: str) -> None:
    process = running(tmp_path, STUBBORN, marker, backend)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert gone(marker)


def test_a_timeout_ends_what_ignores_signals(tmp_path: Path, marker: str, backend: str) -> None:
    done = staddle(
        "run",
        "--backend",
        backend,
        "--mode",
        "bind",
        "--timeout",
        "1",
        "--",
        "bash",
        "-c",
        STUBBORN,
        marker,
        cwd=tmp_path,
    )
    assert done.returncode == 124
    assert gone(marker)


def test_nothing_survives_the_command(tmp_path: Path, marker: str, backend: str) -> None:
    done = staddle(
        "run",
        "--backend",
        backend,
        "--",
        "sh",
        "-c",
        "(setsid sleep 300 &) ; (nohup sh -c 'sleep 300' $0 &)",
        marker,
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert gone(marker)


def test_sigkill_of_staddle_leaves_nothing(tmp_path: Path, marker: str, backend: str, temporary: str) -> None:
    before = left_in(temporary)
    process = running(tmp_path, STUBBORN, marker, backend)
    assert processes_with(marker)
    process.kill()
    process.wait(60)
    assert gone(marker)
    assert until(lambda: left_in(temporary) <= before)


@pytest.mark.slow
def test_sigkill_at_any_moment_of_the_start_leaves_nothing(tmp_path: Path, marker: str, backend: str) -> None:
    """Also in the milliseconds in which the sandbox is being set up."""
    with adopted() as living:
        for number in range(40):
            process = start("run", "--backend", backend, "--", "sleep", "300", marker, cwd=tmp_path)
            time.sleep(0.03 + number * 0.004)
            process.kill()
            process.communicate()
        assert gone(marker)
        assert until(lambda: not living())  # nor anything of the self-test that runs beside it


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_dozen_runs_in_one_directory(tmp_path: Path, backend: str, temporary: str) -> None:
    for number in range(20):
        (tmp_path / f"file{number}").write_text(f"content {number}\n" * 50)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("[core]\n")

    def tree() -> str:
        digest = hashlib.sha256()
        for path in sorted(tmp_path.rglob("*")):
            digest.update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
        return digest.hexdigest()

    before, others = tree(), left_in(temporary)
    runs = [
        subprocess.Popen(
            [*COMMAND, "run", "--backend", backend, "-c", "cat file* | wc -l; >$TMPDIR/same; mktemp -u"],
            cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(12)
    ]  # fmt: skip
    results = [(run.communicate(timeout=100), run.returncode) for run in runs]
    assert [status for _, status in results] == [0] * 12, [err for (_, err), status in results if status]
    assert all(out.startswith("1000\n/") for (out, _), _ in results)
    assert tree() == before
    assert until(lambda: left_in(temporary) <= others)


def test_a_terminal_gets_its_modes_back_and_cannot_be_typed_into(tmp_path: Path) -> None:
    """The command has the terminal as its streams, but can neither break it nor inject keys."""
    probe = (
        "import fcntl, termios, tty\n"
        "tty.setraw(0)\n"
        "try: fcntl.ioctl(0, termios.TIOCSTI, b'x'); print('INJECTED')\n"
        "except OSError as e: print('refused', e.errno)\n"
        "try: open('/dev/tty').close(); print('HAS-TTY')\n"
        "except OSError: print('no controlling terminal')\n"
    )
    terminal = PtyScreen([*COMMAND, "run", "--", "python3", "-c", probe], environment(), str(tmp_path))
    assert terminal.ended() == 0
    shown = terminal.raw.decode()
    assert "refused" in shown
    assert "no controlling terminal" in shown
    assert "INJECTED" not in shown
    assert "HAS-TTY" not in shown
    assert terminal.modes_now() == terminal.modes
    terminal.close()


@pytest.mark.same_for_everyone
def test_the_end_is_noticed_in_a_program_with_other_threads() -> None:
    """The kernel gives SIGCHLD to any thread that does not block it."""
    program = """
import threading, time
from staddle import Policy, wrap
from staddle.cli.report import attended
for _ in range(4):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
policy = Policy.agent()
for _ in range(15):
    assert attended(wrap(["sleep", "0.02"], policy), seconds=20, cap=None).status == 0
"""
    subprocess.run([sys.executable, "-c", program], env=environment(), timeout=60, check=True)
