"""Processes, jobs and terminals of a sandbox."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from staddle import Policy, Sandbox
from staddle.errors import InvalidCall, SandboxClosed
from staddle.sandbox.processes import Process, ProcessInfo
from staddle.sandbox.terminal import Terminal
from tests.support.sandboxes import children, descriptors, every_backend
from tests.support.waiting import unique_seconds, until, with_argument


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On `native` a terminal reads the start files of whoever runs the tests: they are nobody's here."""
    monkeypatch.setenv("HOME", str(tmp_path))


# ---------------------------------------------------------------- processes


def test_a_process_runs_in_the_background_where_the_session_is(sb: Sandbox) -> None:
    sb.run("cd /usr; export A=1")
    process = sb.start('pwd; echo "$A"; echo err >&2; read line; echo "got $line"; exit 3')
    assert process.pid > 0
    assert process.poll() is None
    assert process.running
    process.send_stdin("hello\n")
    assert process.wait(60) == 3
    assert process.output().stdout == "/usr\n1\ngot hello\n"
    assert process.output().stderr == "err\n"
    assert process.output() == "/usr\n1\ngot hello\nerr\n"
    assert process.poll() == 3
    assert process in sb.processes()


@pytest.mark.same_for_everyone
def test_arguments_instead_of_a_text(sb: Sandbox) -> None:
    process = sb.start(["sh", "-c", 'echo "$0" "$A"', "a b"], env={"A": "it's"}, cwd="/")
    assert process.wait(60) == 0
    assert process.output() == "a b it's\n"


def test_a_program_that_is_not_there_ends_with_127(sb: Sandbox) -> None:
    assert sb.start(["no-such-program"]).wait(60) == 127


@pytest.mark.same_for_everyone
def test_the_end_of_input_is_told(sb: Sandbox) -> None:
    process = sb.start("cat")
    process.send_stdin(b"a\xff")
    process.close_stdin()
    process.close_stdin()
    assert process.wait(60) == 0
    assert process.output().stdout_bytes == b"a\xff"
    with pytest.raises(BrokenPipeError):
        process.send_stdin("more")
    other = sb.start("sleep 1237.0")
    other.close_stdin()
    with pytest.raises(InvalidCall):
        other.send_stdin("more")


@pytest.mark.same_for_everyone
def test_more_input_than_a_pipe_holds_waits_for_the_reader(sb: Sandbox) -> None:
    process = sb.start("sleep 0.3; wc -c")
    process.send_stdin(b"x" * 1_000_000)
    process.close_stdin()
    assert process.wait(60) == 0
    assert process.output().strip() == "1000000"
    ended = sb.start("true")
    assert ended.wait(60) == 0
    with pytest.raises(BrokenPipeError):
        ended.send_stdin("x")


@pytest.mark.same_for_everyone
def test_wait_gives_up_in_time(sb: Sandbox) -> None:
    process = sb.start("sleep 1237.1")
    assert process.wait(0.1) is None
    assert process.wait(0) is None
    process.kill()
    assert process.wait(60) == 137
    process.kill()  # again: nothing


def test_kill_reaches_all_that_was_started(sb: Sandbox) -> None:
    mark, other_mark = unique_seconds(), unique_seconds()
    process = sb.start(f"trap '' TERM; sleep {mark} & setsid sleep {other_mark} & wait")
    assert until(lambda: with_argument(mark) and with_argument(other_mark))
    process.kill(15)
    assert process.wait(0.3) is None
    process.kill()
    assert process.wait(60) == 137
    assert until(lambda: not with_argument(mark) and not with_argument(other_mark))


@pytest.mark.same_for_everyone
def test_a_process_that_prints_without_end_is_bounded(sb: Sandbox) -> None:
    process = sb.start("echo first; yes")
    assert until(lambda: process.output().stdout_bytes_dropped > 3_000_000)
    output = process.output()
    assert output.startswith("first\ny\n")
    assert len(output.stdout_bytes) <= 1 << 20
    process.kill()


def test_a_server_goes_on_between_commands() -> None:
    with Sandbox(backend="bwrap") as sb:
        sb.run("echo hello > /tmp/index.txt")
        server = sb.start(["python3", "-u", "-m", "http.server", "--directory", "/tmp", "8123"])
        assert until(lambda: sb.run("exec 3<>/dev/tcp/127.0.0.1/8123").ok)
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/index.txt').read())"
        assert sb.exec(["python3", "-c", code]).stdout == "b'hello\\n'\n"
        assert until(lambda: "GET /index.txt" in server.output())
        assert server.running


# ---------------------------------------------------------------- jobs


@pytest.mark.same_for_everyone
def test_jobs_are_listed_with_what_they_print_later(sb: Sandbox) -> None:
    got = sb.run("(sleep 0.3; echo late; echo later >&2; exec sleep 1237.4) & echo now")
    assert got.stdout == "now\n"
    assert got.duration < 60
    assert sb.run("echo mine").stdout == "mine\n"
    assert until(lambda: sb.processes()[0].output().stderr == "later\n")
    (job,) = sb.processes()
    assert job.command == "(sleep 0.3; echo late; echo later >&2; exec sleep 1237.4) & echo now"
    assert job.output().stdout == "late\n"
    assert job.running
    assert job.poll() is None
    assert str(job.pid) == sb.run("echo $!").stdout.strip()
    job.kill()
    assert until(lambda: job.poll() is not None)
    assert not sb.processes()[0].running


@pytest.mark.same_for_everyone
def test_a_job_without_our_pipes_is_listed_too(sb: Sandbox) -> None:
    sb.run("sleep 1237.5 >/dev/null 2>&1 &")
    sb.run("true")
    (job,) = sb.processes()
    assert job.running
    assert job.output() == ""
    sb.run("kill $!; wait $!")
    assert [each.running for each in sb.processes()] == [False]


@pytest.mark.same_for_everyone
def test_jobs_of_every_session_are_listed(sb: Sandbox) -> None:
    sb.session("dev").run("sleep 1237.6 &")
    assert [each.running for each in sb.processes()] == [True]


# ---------------------------------------------------------------- terminals


def read_until(terminal: Terminal, what: bytes, seconds: float = 10) -> bytes:
    seen = b""
    until = time.monotonic() + seconds
    while what not in seen:
        data = terminal.read(max(0.01, until - time.monotonic()))
        assert data or time.monotonic() < until, f"{what!r} did not come, but {seen!r}"
        if not data:
            return seen
        seen += data
    return seen


def test_a_terminal_is_one(sb: Sandbox) -> None:
    sb.run("cd /usr; export A=1")
    with sb.terminal(rows=30, cols=100) as terminal:
        terminal.write(
            'stty size; pwd; echo "<$A>"; test -t 0 -a -t 1 -a -t 2 && echo yes-$((1+1)); exit 7\n'
        )
        seen = read_until(terminal, b"yes-2")
        assert b"30 100" in seen
        assert b"/usr\r\n" in seen
        assert b"<1>" in seen
        assert terminal.wait(60) == 7
        while terminal.read(5):
            pass
        terminal.write("nobody listens\n")


@pytest.mark.same_for_everyone
def test_a_terminal_can_be_resized(sb: Sandbox) -> None:
    script = "trap 'stty size' WINCH; echo ready; while :; do read -t 0.05 x; done"
    with sb.terminal(["bash", "-c", script]) as terminal:
        read_until(terminal, b"ready")
        terminal.resize(41, 132)
        read_until(terminal, b"41 132")
        assert (terminal.rows, terminal.cols) == (41, 132)
        with pytest.raises(InvalidCall):
            terminal.resize(0, 10)


def test_control_c_reaches_the_job_in_the_foreground_and_job_control_works(sb: Sandbox) -> None:
    mark, other_mark = unique_seconds(), unique_seconds()
    with sb.terminal(["bash", "--norc", "-i"], env={"PS1": "ready> "}) as terminal:
        read_until(terminal, b"ready> ")
        terminal.write(f"sleep {mark}\n")
        assert until(lambda: with_argument(mark))
        terminal.write(b"\x03")
        read_until(terminal, b"ready> ")
        assert until(lambda: not with_argument(mark))
        terminal.write(f"sleep {other_mark}\n")
        assert until(lambda: with_argument(other_mark))
        terminal.write(b"\x1a")
        read_until(terminal, b"Stopped")
        terminal.write("jobs; kill %1; exit\n")


def test_closing_a_terminal_ends_what_is_on_it(sb: Sandbox) -> None:
    mark = unique_seconds()
    terminal = sb.terminal(["bash", "-c", f"trap '' HUP; sleep {mark}; sleep {mark}"])
    assert until(lambda: with_argument(mark))
    terminal.close()
    terminal.close()
    assert until(lambda: not with_argument(mark))
    with pytest.raises(SandboxClosed):
        terminal.read(1)


def test_a_program_of_the_terminal_sees_its_own_terminal_only() -> None:
    with Sandbox(backend="bwrap") as sb, sb.terminal(["sh", "-c", "tty; ls /dev/pts; exit"]) as terminal:
        seen = b""
        while data := terminal.read(5):
            seen += data
        assert seen.split() == [b"/dev/pts/0", b"0", b"ptmx"]


@pytest.mark.slow
@every_backend
def test_nothing_is_left_open(backend: str) -> None:
    def once() -> None:
        with Sandbox(backend=backend) as sb:
            sb.run("sleep 1238.1 &")
            sb.exec(["true"])
            process = sb.start("cat")
            assert isinstance(process, Process)
            sb.terminal().close()
            sb.terminal()
            sb.session("dev").run("true")
            sb.processes()
            for _ in sb.stream("yes"):
                break

    once()  # threads and the like are made once
    files, processes = descriptors(), len(children())
    for _ in range(3):
        once()
    assert until(lambda: descriptors() <= files and len(children()) <= processes)


@every_backend
def test_every_process_is_listed_and_can_be_ended(backend: str) -> None:
    seconds = unique_seconds()
    with Sandbox(backend=backend) as sb:
        sb.run(f"sleep {seconds} & disown")  # neither started nor a job

        def listed() -> list[ProcessInfo]:
            return [process for process in sb.ps() if process.command == f"sleep {seconds}"]

        assert until(listed)  # the shell has forked, and it is bash until it is sleep
        (found,) = listed()
        assert (found.name, found.threads) == ("sleep", 1)
        assert found.memory > 0
        assert sb.kill(found.pid, 15)
        assert until(lambda: not listed())
        assert not sb.kill(4_000_000)
        for wrong in (1, 0, -1, True):
            with pytest.raises(InvalidCall):
                sb.kill(wrong)


def test_a_process_that_lies_about_its_name_is_listed_once() -> None:
    with Sandbox() as sb:
        sb.run("mkdir d && cp /bin/sleep 'd/) R 1 2 3 (x'")
        sb.start(["./d/) R 1 2 3 (x", "1234.5"])
        assert until(lambda: any(process.name == ") R 1 2 3 (x" for process in sb.ps()))
        assert sum(process.command.endswith("1234.5") for process in sb.ps()) == 1


def test_a_slow_reader_misses_output_and_reads_none_twice(tmp_path: Path) -> None:
    with Sandbox(tmp_path, policy=Policy.agent().with_limits(output="4K")) as sandbox:
        process = sandbox.start("read; seq 1000 30000; read; echo end", env={"LC_ALL": "C"})
        chunks = process.stream()
        process.send_stdin("\n")
        found = [next(chunks)]
        assert until(lambda: process.output(0).end > 150_000)
        process.send_stdin("\n")
        found += chunks
    seen = [int(word) for word in b"".join(chunk.data for chunk in found).split()[1:] if word.isdigit()]
    whole = [number for number in seen if 1000 <= number <= 30000]
    assert len(whole) < 25_000
    assert len(set(whole)) == len(whole), "a part came twice"
