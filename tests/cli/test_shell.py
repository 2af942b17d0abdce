"""`staddle shell`: a confined shell on a real terminal, which gets its terminal back, and one on a pipe."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pty_screen import PtyScreen
from tests.support.staddle_command import COMMAND, environment, gone, processes_with, staddle
from tests.support.waiting import PATIENCE, next_line, unique_seconds, until

BACKENDS = ["namespaces", "bwrap"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


class Person(PtyScreen):
    """Somebody at a terminal, who starts `staddle shell` there."""

    def __init__(self, place: Path, *words: str) -> None:
        env = {**environment(), "TERM": "vt100"}
        super().__init__([*COMMAND, "shell", *words], env, str(place), rows=24, cols=80)
        self._past = 0

    @property
    def seen(self) -> bytes:
        """What was printed since the last thing that was waited for."""
        return self.raw[self._past :]

    def sees(self, what: str) -> bool:
        """Whether `what` is printed from here on, in time."""
        end = time.monotonic() + PATIENCE
        while what.encode() not in self.seen:
            if time.monotonic() > end:
                return False
            select.select([self._leader], [], [], 0.1)
            self.text()
        self._past = self.raw.index(what.encode(), self._past) + len(what.encode())
        return True

    def has_the_terminal_back(self) -> bool:
        return self.modes_now() == self.modes


@pytest.fixture
def person(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Person]:
    (tmp_path / "here").write_text("text\n")
    backend = getattr(request, "param", "bwrap")
    made = Person(tmp_path, "--backend", backend)
    assert made.sees("$ "), made.seen
    yield made
    made.close()


on_every_backend = pytest.mark.parametrize("person", BACKENDS, indirect=True)


# ---------------------------------------------------------------- on a terminal


@pytest.mark.slow
@on_every_backend
def test_it_is_an_interactive_shell_in_the_sandbox(person: Person) -> None:
    person.type("pwd; cat here; tty; echo $TERM; stty size\n")
    for expected in ("/workspace\r\n", "text\r\n", "/dev/pts/0\r\n", "vt100\r\n", "24 80\r\n"):
        assert person.sees(expected), person.seen
    person.type("exit 7\n")
    assert person.ended() == 7
    assert person.has_the_terminal_back()


@pytest.mark.same_for_everyone
def test_the_terminal_is_raw_meanwhile(person: Person) -> None:
    assert not person.has_the_terminal_back()
    person.type("\x04")
    assert person.ended() == 0
    assert person.has_the_terminal_back()


@pytest.mark.slow
@on_every_backend
def test_control_c_goes_inside_and_the_shell_goes_on(person: Person) -> None:
    mark = unique_seconds()
    person.type(f"sleep {mark}; echo not-$((40+2))\n")
    assert _appears(mark)
    person.type("\x03")
    assert person.sees("$ ")
    person.type("echo alive-$((40+2))\n")
    assert person.sees("alive-42")
    assert b"not-42" not in person.seen
    person.type("exit\n")
    assert person.ended() == 0


@pytest.mark.same_for_everyone
def test_jobs_are_controlled(person: Person) -> None:
    mark = unique_seconds()
    person.type(f"sleep {mark}\n")
    assert _appears(mark)
    person.type("\x1a")
    assert person.sees("Stopped")
    person.type("kill %1; wait %1; echo gone-$((40+2))\n")
    assert person.sees("gone-42")


@pytest.mark.same_for_everyone
def test_a_new_size_of_the_window_is_told_inside(person: Person) -> None:
    person.type("trap 'echo now-$(stty size)' WINCH; echo set-$((40+2))\n")
    assert person.sees("set-42")
    person.resize(41, 132)
    person.type("\n")
    assert person.sees("now-41 132"), person.seen


@pytest.mark.same_for_everyone
def test_stopped_and_continued_it_takes_the_terminal_again(person: Person) -> None:
    person.process.send_signal(signal.SIGSTOP)
    termios.tcsetattr(person._follower, termios.TCSANOW, person.modes)  # as the user's own shell does
    person.process.send_signal(signal.SIGCONT)
    assert until(lambda: not person.has_the_terminal_back())
    person.type("echo alive-$((40+2)); exit\n")
    assert person.sees("alive-42")
    assert person.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_it_all_and_gives_the_terminal_back(person: Person, number: int) -> None:
    mark = unique_seconds()
    person.type(f"sleep {mark} &\n")
    assert _appears(mark)
    person.process.send_signal(number)
    assert person.ended() == 128 + number
    assert person.has_the_terminal_back()
    assert gone(mark)


@pytest.mark.slow
@every_backend
def test_killed_outright_it_leaves_nothing_inside(tmp_path: Path, backend: str) -> None:
    mark = unique_seconds()
    person = Person(tmp_path, "--backend", backend)
    try:
        assert person.sees("$ ")
        person.type(f"sleep {mark}\n")
        assert _appears(mark)
        person.process.kill()
        person.process.wait()
        assert gone(mark)
    finally:
        person.close()


def test_a_terminal_that_is_taken_away_ends_it(tmp_path: Path) -> None:
    mark = unique_seconds()
    person = Person(tmp_path, "--backend", "bwrap")
    try:
        assert person.sees("$ ")
        person.type(f"sleep {mark}\n")
        assert _appears(mark)
        os.close(person._follower)
        os.close(person._leader)
        assert person.process.wait(60) != 0
        assert gone(mark)
    finally:
        if person.process.poll() is None:
            person.process.kill()
            person.process.wait()


@pytest.mark.same_for_everyone
def test_much_output_arrives_whole(person: Person) -> None:
    person.type("seq 100000 | tail -c 300000; echo the-$((40+2))\n")
    assert person.sees("99999\r\n100000\r\nthe-42")


def test_a_timeout_ends_it(tmp_path: Path) -> None:
    person = Person(tmp_path, "--backend", "bwrap", "--timeout", "1")
    try:
        assert person.ended() == 124  # perhaps before it has said "$ "
        assert person.has_the_terminal_back()
        assert person.sees("--timeout gives it more")
    finally:
        person.close()


def _appears(mark: str) -> bool:
    return until(lambda: processes_with(mark))


# ---------------------------------------------------------------- on a pipe


@pytest.mark.same_for_everyone
@every_backend
def test_a_script_on_standard_input(tmp_path: Path, backend: str) -> None:
    script = "x=1\nfor i in a b\ndo\n  echo $i$x\ndone\ncat <<END\nhere\nEND\npwd; echo err >&2\nexit 3\n"
    done = staddle("shell", "--backend", backend, input=script, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "a1\nb1\nhere\n/workspace\n"
    assert done.stderr == "err\n"


@pytest.mark.same_for_everyone
@every_backend
def test_each_line_is_done_as_it_comes(tmp_path: Path, backend: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "shell", "--backend", backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert process.stdin
    assert process.stdout
    for number in range(3):
        process.stdin.write(f"x=$((x + {number})); echo $x > /dev/stdout\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{sum(range(number + 1))}\n"
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.mark.same_for_everyone
def test_no_input_is_an_empty_script(tmp_path: Path) -> None:
    done = staddle("shell", "--backend", "bwrap", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_signals_reach_the_script(tmp_path: Path) -> None:
    mark = unique_seconds()
    process = subprocess.Popen(
        [*COMMAND, "shell", "--backend", "bwrap"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
    )
    assert process.stdin
    process.stdin.write(f"trap 'echo caught; exit 9' TERM; echo ready; sleep {mark} & wait\n".encode())
    process.stdin.flush()
    assert next_line(process) == b"ready\n"
    process.terminate()
    assert process.wait(60) == 9
    assert process.stdout.read() == b"caught\n"
    assert gone(mark)


def test_a_timeout_ends_the_script(tmp_path: Path) -> None:
    mark = unique_seconds()
    done = staddle(
        "shell",
        "--backend",
        "bwrap",
        "--timeout",
        "0.5",
        input=f"trap '' TERM; sleep {mark}; sleep {mark}",
        cwd=tmp_path,
    )
    assert done.returncode == 124
    assert "--timeout" in done.stderr
    assert gone(mark)


@pytest.mark.slow
@pytest.mark.same_for_everyone
@every_backend
def test_one_result_for_each_line(tmp_path: Path, backend: str) -> None:
    lines = b"x=1; cd /usr\necho $x; pwd; (exit 3)\n\xff\nexit 4\necho $x\n"
    done = staddle("shell", "--json", "--backend", backend, input=lines, text=False, cwd=tmp_path)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["exit_code"] for result in results] == [0, 3, 127, 4, 0]
    assert results[1]["stdout"] == "1\n/usr\n"
    assert results[3]["shell_exited"]
    assert results[4]["stdout"] == "1\n"
    assert done.returncode == 0


@pytest.mark.same_for_everyone
def test_a_line_that_cannot_be_run_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    done = staddle("shell", "--json", "--backend", "bwrap", input="a\0b\necho fine\n", cwd=tmp_path)
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert "NUL" in first["error"]["what"]
    assert second["stdout"] == "fine\n"


# ---------------------------------------------------------------- what is allowed


@pytest.mark.slow
@every_backend
def test_the_options_are_those_of_run(tmp_path: Path, backend: str) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "data").write_text("data\n")
    words = ("--workspace", "work", "--mode", "bind", "--read", "data", "--env", "A=1", "--backend", backend)
    script = f"echo new > made; cat {tmp_path}/data; echo $A; ls {tmp_path}; echo $HOME; ls ~\n"
    done = staddle("shell", *words, input=script, cwd=tmp_path)
    assert done.stdout == "data\n1\ndata\n/home/user\n", done.stderr
    assert (tmp_path / "work/made").read_text() == "new\n"
    done = staddle(
        "shell", "--backend", backend, input="touch made 2>/dev/null || echo refused", cwd=tmp_path
    )
    assert done.stdout == "refused\n"


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("ls",), "no argument"),
        (("--mode", "nonsense"), "mode"),
        (("--output-cap", "1K"), "--json"),
        (("--workspace", "nowhere"), "not a directory"),
        (("--backend", "nonsense"), "no backend"),
    ],
)
def test_what_cannot_be_meant_is_125(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = staddle("shell", *words, cwd=tmp_path)
    assert done.returncode == 125
    assert says in done.stderr


def test_in_a_directory_that_cannot_be_shown_the_workspace_is_empty() -> None:
    done = staddle("shell", "--backend", "bwrap", input="pwd; ls -A", cwd="/")
    assert done.stdout == "/workspace\n", done.stderr


@pytest.mark.same_for_everyone
def test_help_teaches_it() -> None:
    assert "staddle shell" in staddle("shell", "--help").stdout
    assert "shell" in staddle("--help").stdout


# ---------------------------------------------------------------- modes of the terminal


COOKED = termios.ICANON | termios.ECHO
RAW = "stty raw -echo; echo ready; sleep 1000"


class AtTerminal:
    """`sh` on a terminal, with a command that it waits for."""

    def __init__(self, words: list[str], directory: Path) -> None:
        script = f"echo $$; cd {shlex.quote(str(directory))}; {shlex.join(words)}; sleep 1000"
        self.pid, self.leader = pty.fork()
        if self.pid == 0:
            os.execve("/bin/sh", ["sh", "-c", script], environment())  # noqa: S606 - on its terminal

    def heard(self, word: bytes) -> None:
        said, end = b"", time.monotonic() + PATIENCE
        while word not in said:
            assert time.monotonic() < end, said
            if select.select([self.leader], [], [], 1)[0]:
                said += os.read(self.leader, 4096)

    def modes(self) -> int:
        flags: int = termios.tcgetattr(self.leader)[3]
        return flags & COOKED

    def kill_staddle(self) -> None:
        (child,) = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.leader)
        os.waitpid(self.pid, 0)


def first(children: Path) -> str:
    return (children.read_text().split() or ["self"])[0]


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_of_a_command_that_is_killed(backend: str, tmp_path: Path) -> None:
    words = [*COMMAND, "run", "--backend", backend, "--", "sh", "-c", RAW]
    at = AtTerminal(words, tmp_path)
    try:
        assert at.modes() == COOKED
        at.heard(b"ready")
        assert at.modes() == 0
        at.kill_staddle()
        assert until(lambda: at.modes() == COOKED)
    finally:
        at.close()


@pytest.mark.slow
def test_of_a_shell_that_is_killed(tmp_path: Path) -> None:
    at = AtTerminal([*COMMAND, "shell"], tmp_path)
    try:
        assert until(lambda: at.modes() == 0)  # the terminal inside echoes now
        at.kill_staddle()
        assert until(lambda: at.modes() == COOKED)
    finally:
        at.close()


def test_at_the_end_of_a_command_nobody_waits_for_ours_any_more(tmp_path: Path) -> None:
    at = AtTerminal([*COMMAND, "run", "--", "sh", "-c", "stty raw -echo; echo ready"], tmp_path)
    try:
        at.heard(b"ready")
        assert until(lambda: at.modes() == COOKED)
        children = Path(f"/proc/{at.pid}/task/{at.pid}/children")
        assert until(lambda: b"sleep" in Path(f"/proc/{first(children)}/cmdline").read_bytes())
        assert len(children.read_text().split()) == 1
    finally:
        at.close()


def test_modes_of_another_foreground_process_are_left_alone(tmp_path: Path) -> None:
    """A shell with job control takes the terminal back, and edits its line with modes of its own."""
    job = shlex.join([*COMMAND, "run", "--", "sh", "-c", RAW])
    at = AtTerminal(["sh", "-c", f"set -m; {job}; read _"], tmp_path)
    try:
        at.heard(b"ready")
        (shell,) = Path(f"/proc/{at.pid}/task/{at.pid}/children").read_text().split()
        (staddle,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        watchers = Path(f"/proc/{staddle}/task/{staddle}/children").read_text().split()
        # As if the shell had taken the terminal back before anybody else looked.
        os.kill(int(staddle), signal.SIGSTOP)
        assert until(lambda: os.tcgetpgrp(at.leader) != int(staddle))
        os.kill(int(staddle), signal.SIGKILL)
        assert until(lambda: not any(Path(f"/proc/{watcher}").exists() for watcher in watchers))
        assert at.modes() == 0
    finally:
        at.close()
