"""A sandbox keeps its promises on every backend: a shell that remembers, results that tell, a clean end."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import staddle
from staddle import Policy, Reason, Sandbox
from staddle.errors import (
    CommandFailed,
    CommandTimeout,
    InvalidCall,
    LaunchFailed,
    PolicyError,
    SandboxClosed,
    SessionBusy,
    UnknownBackend,
)
from staddle.shell.shell_state import ShellState
from tests.support.sandboxes import confining, every_backend
from tests.support.waiting import as_soon_as, next_line, run_together, unique_seconds, until, with_argument


@pytest.fixture(scope="module")
def unconfined() -> Iterator[Sandbox]:
    """For what is refused before it gets there."""
    with Sandbox(backend="native") as made:
        yield made


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("not for you")
    made = tmp_path / "work"
    made.mkdir()
    (made / "a.txt").write_text("a\n")
    return made


# ---------------------------------------------------------------- run


@pytest.mark.same_for_everyone
def test_the_session_remembers(sb: Sandbox) -> None:
    place = f"/tmp/staddle-{unique_seconds()}"
    sb.run(f"mkdir -p {place} && cd {place}; x=1; export y=2; f() {{ echo f; }}; arr=(1 2)")
    got = sb.run('pwd; echo $x $y; f; echo ${arr[1]}; rmdir "$PWD"; cd /')
    assert got.stdout == f"{place}\n1 2\nf\n2\n"
    assert got.cwd == "/"


@pytest.mark.same_for_everyone
def test_a_failing_command_is_a_result(sb: Sandbox) -> None:
    got = sb.run("echo out; echo err >&2; (exit 3)")
    assert (got.exit_code, got.stdout, got.stderr) == (3, "out\n", "err\n")
    assert (got.reason, got.ok, got.signal) == (Reason.exited, False, None)
    assert got.command == "echo out; echo err >&2; (exit 3)"
    assert 0 < got.duration < 60
    assert got.usage.wall == got.duration
    assert sb.run("echo $?").stdout == "3\n"


@pytest.mark.same_for_everyone
def test_a_signal_is_told(sb: Sandbox) -> None:
    got = sb.run("sh -c 'kill -9 $$'")
    assert (got.exit_code, got.signal, got.reason) == (137, 9, Reason.signalled)


@pytest.mark.same_for_everyone
def test_check_raises_with_the_result(sb: Sandbox) -> None:
    assert sb.run("true", check=True).ok
    with pytest.raises(CommandFailed) as failure:
        sb.run("echo partial; false", check=True)
    assert failure.value.result is not None
    assert failure.value.result.stdout == "partial\n"
    with pytest.raises(CommandTimeout):
        sb.run("sleep 60", timeout=0.2, check=True)


@pytest.mark.same_for_everyone
def test_exit_is_told_and_the_next_shell_goes_on(sb: Sandbox) -> None:
    sb.run("x=5; cd /tmp")
    got = sb.run("exit 7")
    assert (got.exit_code, got.shell_exited, got.reason) == (7, True, Reason.shell_exited)
    assert sb.run("echo $x; pwd").stdout == "5\n/tmp\n"


def test_a_timeout_ends_everything_and_keeps_output_and_state(sb: Sandbox) -> None:
    mark = unique_seconds()
    sb.run("x=5")
    began = time.monotonic()
    got = sb.run(f"echo begun; x=6; (trap '' TERM INT; exec sleep 1234.5) & sleep {mark}", timeout=0.5)
    assert time.monotonic() - began < 60
    assert (got.exit_code, got.reason, got.timed_out) == (124, Reason.timeout, True)
    assert got.stdout == "begun\n"
    assert until(lambda: not with_argument(mark))
    assert sb.run("echo $x").stdout == "6\n"


@pytest.mark.same_for_everyone
def test_stdin_is_given_or_empty(sb: Sandbox) -> None:
    assert sb.run("cat", stdin="text é\n").stdout == "text é\n"
    assert sb.run("wc -c", stdin=b"\x00\xff" * 100_000).stdout.strip() == "200000"
    assert sb.run("cat; read x || echo nothing").stdout == "nothing\n"


@pytest.mark.same_for_everyone
def test_env_and_cwd_hold_for_one_command(sb: Sandbox) -> None:
    assert sb.run('echo "$A" "$PWD"', env={"A": "it's $x"}, cwd="/usr").stdout == "it's $x /usr\n"
    assert sb.run('echo "${A-unset}"').stdout == "unset\n"
    assert sb.run("pwd").stdout != "/usr\n"


@pytest.mark.same_for_everyone
def test_text_is_readable_and_bytes_are_exact(sb: Sandbox) -> None:
    got = sb.run(r"printf 'a\377\000\303\251'")
    assert got.stdout_bytes == b"a\xff\x00\xc3\xa9"
    assert got.stdout == "a\ufffd\0é"


@pytest.mark.same_for_everyone
def test_long_output_keeps_head_and_tail_and_counts(tmp_path: Path) -> None:
    with Sandbox(policy=Policy.agent().with_limits(output=1000), backend="bwrap") as sb:
        got = sb.run("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last")
        assert got.stdout_truncated
        assert got.stdout == "first\n[… 5,000,001 bytes left out …]\nlast\n"  # whole lines of what was kept
        assert got.stdout_bytes.startswith(b"first\nxxx")
        assert got.stdout_bytes.endswith(b"xxx\nlast\n")
        assert got.stdout_bytes_dropped == 5_000_012 - 1000
        assert len(got.stdout_bytes) == 1000
        assert not got.stderr_truncated

        spilled = sb.run("head -c 5000 /dev/zero | tr '\\0' x", spill=tmp_path)
        assert spilled.stdout_spill is not None
        assert Path(spilled.stdout_spill).read_bytes() == b"x" * 5000
        assert spilled.stderr_spill is None


@pytest.mark.same_for_everyone
def test_callbacks_hear_text_as_it_comes(sb: Sandbox) -> None:
    heard: list[tuple[str, str]] = []
    got = sb.run(
        r"printf 'caf\303'; sleep 0.2; printf '\251\n'; echo err >&2",
        on_stdout=lambda text: heard.append(("out", text)),
        on_stderr=lambda text: heard.append(("err", text)),
    )
    assert "".join(text for name, text in heard if name == "out") == "café\n" == got.stdout
    assert ("err", "err\n") in heard


@pytest.mark.same_for_everyone
def test_a_callback_that_fails_ends_the_command_and_its_error_comes_out(sb: Sandbox) -> None:
    def fail(_: str) -> None:
        raise ZeroDivisionError

    sb.run("x=1")
    with pytest.raises(ZeroDivisionError):
        sb.run("echo a; sleep 1234.7", on_stdout=fail)
    assert sb.run("echo $x").stdout == "1\n"


@pytest.mark.same_for_everyone
def test_a_callback_cannot_wait_for_its_own_session(sb: Sandbox) -> None:
    with pytest.raises(SessionBusy):
        sb.run("echo a", on_stdout=lambda _: sb.run("echo b"))
    for call in (sb.close, sb._now().main.restart, sb._now().main.close):
        with pytest.raises(SessionBusy):
            sb.run("echo a", on_stdout=lambda _, call=call: call())
    assert sb.run("echo fine").ok


@pytest.mark.same_for_everyone
def test_concurrent_runs_take_turns(sb: Sandbox) -> None:
    sb.run("n=0")
    threads = [threading.Thread(target=sb.run, args=("m=$n; sleep 0.01; n=$((m + 1))",)) for _ in range(10)]
    run_together(threads)
    assert sb.run("echo $n").stdout == "10\n"


def test_interrupt_ends_the_command_and_nothing_else(sb: Sandbox) -> None:
    sb.run("x=5; sleep 1234.8 &")
    begun = threading.Event()
    interrupting = as_soon_as(begun.is_set, sb.interrupt)
    got = sb.run("echo begun; sleep 1234.9; echo never", on_stdout=lambda _: begun.set())
    interrupting.join()
    assert (got.reason, got.stdout) == (Reason.cancelled, "begun\n")
    assert sb.run("echo $x; kill %1 && echo there").stdout == "5\nthere\n"
    sb.interrupt()  # nothing runs: nothing happens
    assert sb.run("echo fine").ok


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda sb: sb.run("a\0b"), "NUL"),
        (lambda sb: sb.run(["ls"]), "exec"),
        (lambda sb: sb.run(b"ls"), "not text"),
        (lambda sb: sb.run("true", timeout=-1), "timeout"),
        (lambda sb: sb.run("true", timeout=0), "timeout"),
        (lambda sb: sb.run("true", timeout=float("nan")), "timeout"),
        (lambda sb: sb.run("true", timeout=True), "timeout"),
        (lambda sb: sb.run("true", timeout="1"), "timeout"),
        (lambda sb: sb.run("true", stdin=3), "stdin"),
        (lambda sb: sb.run("true", env=["A=1"]), "env"),
        (lambda sb: sb.run("true", env={"A-B": "1"}), "A-B"),
        (lambda sb: sb.run("true", env={"1a": "1"}), "1a"),
        (lambda sb: sb.run("true", env={"": "1"}), "variable"),
        (lambda sb: sb.run("true", env={"A": "a\0b"}), "NUL"),
        (lambda sb: sb.run("true", cwd=""), "cwd"),
        (lambda sb: sb.run("true", cwd="a\0b"), "NUL"),
        (lambda sb: sb.run("true", cwd=7), "cwd"),
        (lambda sb: sb.run("true", on_stdout="x"), "on_stdout"),
        (lambda sb: sb.run("true", spill="/nowhere"), "spill"),
        (lambda sb: sb.exec("ls -l"), "list"),
        (lambda sb: sb.exec([]), "no program"),
        (lambda sb: sb.exec(["a\0b"]), "NUL"),
        (lambda sb: sb.exec([1]), "not text"),
        (lambda sb: sb.start("a\0b"), "NUL"),
        (lambda sb: sb.session(""), "name"),
        (lambda sb: sb.terminal(rows=0), "rows"),
        (lambda sb: sb.terminal(cols=10**6), "cols"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    unconfined: Sandbox, call: Callable[[Sandbox], object], words: str
) -> None:
    with pytest.raises(InvalidCall, match=words):
        call(unconfined)
    assert unconfined.run("echo fine").stdout == "fine\n"


# ---------------------------------------------------------------- exec


@pytest.mark.same_for_everyone
def test_exec_runs_a_program_where_the_session_is(sb: Sandbox) -> None:
    sb.run("cd /usr; export A=1; b=2")
    got = sb.exec(["sh", "-c", 'pwd; echo "$A" "${b-unset}" "$0"', "it's $x"])
    assert got.stdout == "/usr\n1 unset it's $x\n"
    assert got.command == ("sh", "-c", 'pwd; echo "$A" "${b-unset}" "$0"', "it's $x")
    assert sb.exec(["pwd"], cwd="bin", env={"A": "2"}).stdout in ("/usr/bin\n", "/bin\n")


@pytest.mark.same_for_everyone
def test_programs_do_not_wait_for_a_command_of_the_session(sb: Sandbox) -> None:
    sb.run("cd /usr; export A=1")
    sb._warm_up()
    started = threading.Event()
    long = threading.Thread(
        target=lambda: sb.run("cd /; export A=2; echo; sleep 1236.8", on_stdout=lambda _: started.set())
    )
    long.start()
    assert started.wait(60)
    assert sb.exec(["sh", "-c", "pwd; echo $A"]).stdout == "/usr\n1\n"
    assert sb.start("pwd").wait(60) == 0
    heard: list[str] = []
    sb.interrupt()
    long.join(60)
    sb.run("echo a", on_stdout=lambda _: heard.append(sb.exec(["pwd"]).stdout))
    assert heard == ["/\n"]


@pytest.mark.parametrize("way", ["run", "stream"])
def test_an_interrupt_while_a_command_begins_is_for_that_command(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    begin = ShellState.begin

    def slow(self: ShellState, command: Any) -> Any:
        begun = begin(self, command)
        if b"sleep" in command.spec.text:  # it runs, and nobody waits for it yet
            run_together([threading.Thread(target=sb.interrupt)])
        return begun

    with Sandbox() as sb:
        monkeypatch.setattr(ShellState, "begin", slow)
        if way == "run":
            result = sb.run("sleep 20")
        else:
            with sb.stream("sleep 20") as stream:
                assert list(stream) == []
            result = stream.result
        assert result.reason is Reason.cancelled
        assert sb.run("echo on").stdout == "on\n"


def test_a_program_can_be_interrupted_as_soon_as_anything_of_it_is_seen(sb: Sandbox) -> None:
    results = []
    place = sb.run("mktemp -d").stdout.strip()
    for turn in range(8):
        begun = f"{place}/{turn}"
        argv = ["sh", "-c", f"> {begun}; exec sleep 1237.8"]
        thread = threading.Thread(target=lambda argv=argv: results.append(sb.exec(argv, timeout=10)))
        thread.start()
        while not sb.files.exists(begun):
            time.sleep(0.0002)
        sb.interrupt()
        thread.join(60)
    sb.run(f"rm -r {place}")
    assert {result.reason for result in results} == {Reason.cancelled}


def test_exec_tells_what_is_missing_or_cannot_be_run(sb: Sandbox) -> None:
    missing = sb.exec(["no-such-program"])
    assert missing.exit_code == 127
    assert "no-such-program" in missing.stderr
    assert sb.exec(["/etc/passwd"]).exit_code == 126
    assert sb.exec(["/usr"]).exit_code == 126


@pytest.mark.same_for_everyone
def test_exec_has_the_options_of_run(sb: Sandbox) -> None:
    assert sb.exec(["cat"], stdin="x" * 300_000).stdout == "x" * 300_000
    assert sb.exec(["cat"], stdin=b"").stdout == ""
    assert sb.exec(["cat"]).stdout == ""
    heard: list[str] = []
    sb.exec(["echo", "hi"], on_stdout=heard.append)
    assert heard == ["hi\n"]
    late = sb.exec(["sh", "-c", "echo begun; exec sleep 1235.1"], timeout=0.3)
    assert (late.exit_code, late.reason, late.stdout) == (124, Reason.timeout, "begun\n")
    assert sb.exec(["sh", "-c", "kill -15 $$"]).signal == 15
    with pytest.raises(CommandFailed):
        sb.exec(["false"], check=True)


def test_exec_is_interrupted_even_if_it_does_not_want_to_be(sb: Sandbox) -> None:
    mark = unique_seconds()
    begun = threading.Event()
    as_soon_as(begun.is_set, sb.interrupt)
    script = f"trap '' INT TERM; echo begun; sleep {mark}; sleep {mark}"
    got = sb.exec(["sh", "-c", script], timeout=100, on_stdout=lambda _: begun.set())
    assert (got.reason, got.stdout) == (Reason.cancelled, "begun\n")
    assert got.duration < 60
    assert until(lambda: not with_argument(mark))


def test_what_exec_leaves_behind_neither_holds_it_up_nor_dies_of_a_closed_pipe(sb: Sandbox) -> None:
    mark = unique_seconds()
    began = time.monotonic()
    script = f"(trap 'exit 1' PIPE; sleep 0.5; echo late; echo late >&2; exec sleep {mark}) & echo done"
    assert sb.exec(["bash", "-c", script]).stdout == "done\n"
    assert time.monotonic() - began < 60
    assert until(lambda: with_argument(mark))


# ---------------------------------------------------------------- stream


@pytest.mark.same_for_everyone
def test_a_stream_brings_chunks_as_they_come_and_the_result(sb: Sandbox) -> None:
    stream = sb.stream(r"printf 'caf\303'; sleep 0.2; printf '\251\n'; echo err >&2; exit 3")
    assert stream.result is None
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks if chunk.stream == "stdout") == "café\n"
    assert b"".join(chunk.data for chunk in chunks if chunk.stream == "stderr") == b"err\n"
    assert all("\ufffd" not in chunk.text for chunk in chunks)
    assert stream.result is not None
    assert (stream.result.exit_code, stream.result.stdout) == (3, "café\n")


@pytest.mark.same_for_everyone
def test_a_chunk_comes_when_it_is_printed(sb: Sandbox) -> None:
    with sb.stream("echo first; sleep 1236.4") as stream:
        assert next(stream).text == "first\n"
        assert stream.result is None
    assert stream.result is not None
    assert stream.result.duration < 60


@pytest.mark.same_for_everyone
def test_a_slow_reader_slows_the_command(sb: Sandbox, tmp_path: Path) -> None:
    stream = sb.stream("for i in {1..400}; do echo $i >&2; head -c 20000 /dev/zero; done")
    seen = 0
    for chunk in stream:
        if chunk.stream == "stderr":
            seen = int(chunk.text.split()[-1])
        if seen:
            break
    time.sleep(1)
    # Eight megabytes are to come; what pipes and one step hold is far less.
    for chunk in stream:
        if chunk.stream == "stderr":
            assert int(chunk.text.split()[-1]) < 200
            break
    stream.close()
    assert stream.result is not None
    assert stream.result.reason is Reason.cancelled
    assert sb.run("echo fine").ok


@pytest.mark.same_for_everyone
def test_leaving_a_stream_early_ends_the_command(sb: Sandbox) -> None:
    sb.run("x=1")
    with sb.stream("yes; echo never") as stream:
        next(stream)
    assert stream.result is not None
    assert stream.result.reason is Reason.cancelled
    for _ in sb.stream("yes"):
        break  # and it is forgotten
    assert sb.run("echo $x").stdout == "1\n"


@pytest.mark.same_for_everyone
def test_the_reader_of_a_stream_is_told_that_it_waits_for_itself(sb: Sandbox) -> None:
    with sb.stream("sleep 0.1; echo a") as stream, pytest.raises(SessionBusy, match="another"):
        sb.run("true")
    assert stream.result is not None
    assert sb.run("echo fine").ok


# ---------------------------------------------------------------- sessions, state, reset, close


@pytest.mark.same_for_everyone
def test_sessions_have_their_own_state_in_the_same_sandbox(sb: Sandbox) -> None:
    dev = sb.session("dev")
    file = f"/tmp/staddle-{unique_seconds()}"
    dev.run(f"x=1; cd /usr; echo shared > {file}")
    assert sb.run(f'echo "${{x-unset}}"; cat {file}; rm {file}').stdout == "unset\nshared\n"
    assert dev.run("pwd").stdout == "/usr\n"
    assert sb.session("dev") is dev
    dev.restart()
    assert dev.run('echo "${x-unset}"; pwd').stdout == f"unset\n{sb.run('pwd').stdout}"
    dev.close()
    with pytest.raises(SandboxClosed):
        dev.run("true")
    assert sb.session("dev").run("echo anew").stdout == "anew\n"


@pytest.mark.same_for_everyone
def test_two_sessions_run_at_the_same_time(sb: Sandbox) -> None:
    started = threading.Event()
    other = threading.Thread(
        target=lambda: sb.session("other").run(
            "echo; sleep 1235.4", on_stdout=lambda _: started.set(), timeout=30
        )
    )
    other.start()
    assert started.wait(60)
    assert sb.run("echo meanwhile").stdout == "meanwhile\n"
    sb.interrupt()
    other.join(60)
    assert not other.is_alive()


@pytest.mark.same_for_everyone
def test_state_is_there_to_be_read(sb: Sandbox) -> None:
    sb.run("cd /tmp; export A='x y'; b=(1 2); declare -A c=([k]=v); f() { echo f; }; alias l=ls; umask 077")
    sb.run(r"cd /usr; set -fu; shopt -s extglob; set -- p 'q r'; trap 'echo t' INT; readonly r=1; x=$'\xff'")
    state = sb.state
    assert (state.cwd, state.oldpwd, state.umask) == ("/usr", "/tmp", 0o077)
    assert state.env["A"] == "x y"
    assert "b" not in state.env
    assert state.variables["b"] == {0: "1", 1: "2"}
    assert state.variables["c"] == {"k": "v"}
    assert state.variables["x"] == "\udcff"
    assert state.functions["f"] == "f () \n{ \n    echo f\n}"
    assert state.aliases["l"] == "ls"
    assert {"noglob", "nounset"} <= set(state.options)
    assert "extglob" in state.shopts
    assert state.positional == ("p", "q r")
    assert state.traps == {"SIGINT": "echo t"}
    assert state.readonly == ("r",)
    assert state.history[-1].startswith("cd /usr")


def test_reset_leaves_nothing(sb: Sandbox) -> None:
    mark, other_mark = unique_seconds(), unique_seconds()
    dev = sb.session("dev")
    process = sb.start(f"sleep {mark}")
    sb.run(f"x=1; sleep {other_mark} &")
    sb.reset()
    assert sb.run('echo "${x-unset}"').stdout == "unset\n"
    assert sb.processes() == []
    assert process.wait(60) == 137
    with pytest.raises(SandboxClosed):
        dev.run("true")
    assert until(lambda: not with_argument(mark) and not with_argument(other_mark))


def test_close_ends_everything_and_says_so(sb: Sandbox) -> None:
    marks = [unique_seconds() for _ in range(4)]
    sb.run(f"sleep {marks[0]} & disown; setsid sleep {marks[1]} >/dev/null 2>&1 &")
    sb.start(f"sleep {marks[2]}")
    begun = threading.Event()
    closing = as_soon_as(begun.is_set, sb.close)
    got = sb.run(f"echo begun; sleep {marks[3]}", on_stdout=lambda _: begun.set())
    closing.join()
    assert (got.reason, got.stdout) == (Reason.closed, "begun\n")
    for call in (sb.run, sb.stream, sb.session, sb.start):
        with pytest.raises(SandboxClosed):
            call("x")
    with pytest.raises(SandboxClosed):
        sb.exec(["true"])
    with pytest.raises(SandboxClosed):
        sb.processes()
    with pytest.raises(SandboxClosed):
        _ = sb.state
    with pytest.raises(SandboxClosed):
        sb.reset()
    sb.close()
    assert not sb.alive
    assert until(lambda: not any(with_argument(mark) for mark in marks))


def test_a_stream_that_nobody_reads_does_not_hold_up_the_end(sb: Sandbox) -> None:
    stream = sb.stream("echo first; sleep 1236.5")
    assert next(stream).text == "first\n"
    sb.close()
    assert list(stream) == []
    assert stream.result is not None
    assert stream.result.reason is Reason.closed


def test_a_queue_of_runs_is_told_when_it_is_closed(sb: Sandbox) -> None:
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(sb.run("sleep 1236.2").reason)
        except SandboxClosed:
            answers.append(Reason.closed)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    sb.close()
    for thread in threads:
        thread.join(60)
    assert answers == [Reason.closed] * 4


PARENT = """
import os, sys, time
from staddle import Sandbox
sb = Sandbox(backend=sys.argv[1])
sb.run(f"sleep {os.environ['MARK']} &")
if os.fork() == 0:
    try:
        sb.run("true")
    except Exception as error:
        print(type(error).__name__, flush=True)
    sb.close()
    del sb
    time.sleep(600)
    os._exit(0)
time.sleep(0.3)
print(sb.run("echo mine").stdout, end="", flush=True)
time.sleep(600)
"""


@every_backend
def test_a_fork_of_the_program_neither_uses_nor_ends_nor_keeps_it(backend: str) -> None:
    mark = unique_seconds()
    environment = {**os.environ, "PYTHONPATH": str(Path(staddle.__file__).parents[1]), "MARK": mark}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, backend],
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        assert [next_line(parent) for _ in range(2)] == [b"SandboxClosed\n", b"mine\n"]
        assert with_argument(mark)
        parent.kill()
        parent.wait()
        assert until(lambda: not with_argument(mark))
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


# ---------------------------------------------------------------- the workspace and the policy


@confining
def test_the_workspace_is_at_its_place_and_nothing_else_is_there(work: Path, backend: str) -> None:
    with Sandbox(work, backend=backend, mode="bind") as sb:
        got = sb.run("pwd; cat a.txt; ls -A; echo $HOME; ls ~; id -un; hostname")
        assert got.stdout == "/workspace\na\na.txt\n/home/user\nuser\nsandbox\n"
        assert sb.run(f"cat {work.parent}/outside").exit_code == 1
        assert sb.run(f"ls {work.parent}").exit_code == 2


@confining
def test_bind_writes_through_and_readonly_does_not(work: Path, backend: str) -> None:
    with Sandbox(work, backend=backend, mode="bind") as sb:
        assert sb.run("echo new > made; echo b > a.txt").ok
    assert (work / "made").read_text() == "new\n"
    assert (work / "made").stat().st_uid == os.geteuid()
    with Sandbox(work, backend=backend, mode="readonly") as sb:
        assert sb.run("echo c > a.txt").exit_code == 1
        assert "ead-only" in sb.run("touch x").stderr
        assert sb.run("cat a.txt").stdout == "b\n"
    assert sorted(os.listdir(work)) == ["a.txt", "made"]


def test_overlay_changes_nothing_of_the_host(work: Path) -> None:
    with Sandbox(work) as sb:
        assert sb.run("echo new > made; echo b > a.txt; cat made a.txt").stdout == "new\nb\n"
        assert sb.enforced.backend == "namespaces"
    assert os.listdir(work) == ["a.txt"]
    assert (work / "a.txt").read_text() == "a\n"


@pytest.mark.parametrize("backend", ["bwrap", "landlock", "native"])
def test_overlay_is_a_copy_where_there_is_no_layer(work: Path, backend: str) -> None:
    with Sandbox(work, backend=backend) as sb:
        assert sb.run("echo new > made; echo b > a.txt; cat made a.txt").stdout == "new\nb\n"
        assert [gap.documented for gap in sb.enforced.gaps if gap.protection == "layers"] == [True]
    assert os.listdir(work) == ["a.txt"]
    assert (work / "a.txt").read_text() == "a\n"


@pytest.mark.parametrize("backend", ["landlock", "native"])
def test_where_nothing_can_be_moved_the_workspace_is_where_it_is(work: Path, backend: str) -> None:
    with Sandbox(work, backend=backend, mode="bind") as sb:
        assert sb.run("pwd; cat a.txt; echo b > a.txt").stdout == f"{work}\na\n"
        assert [gap.documented for gap in sb.enforced.gaps if gap.protection == "workspace"] == [True]
    assert (work / "a.txt").read_text() == "b\n"


def test_a_session_without_namespaces_is_a_whole_one() -> None:
    mark = unique_seconds()
    with Sandbox(backend="landlock") as sb:
        home = sb.run("pwd").stdout
        assert sb.run('test "$PWD" = "$HOME" && touch here "$TMPDIR/there" && ls').stdout == "here\n"
        assert sb.run("ls /root ~root 2>&1; echo x > /usr/x").exit_code == 1
        sb.run(f"x=1; sleep {mark} &")
        assert sb.run("exit 3").shell_exited
        assert sb.run("echo $x").stdout == "1\n"
        assert sb.exec(["pwd"]).stdout == home
        assert sb.run("sleep 1236.7", timeout=0.3).timed_out
        assert sb.start("cat").poll() is None
        assert sb.session("other").run("pwd").stdout == home
        with sb.terminal(["tty"]) as terminal:
            assert terminal.wait(60) == 0
        assert [chunk.text for chunk in sb.stream("echo a")] == ["a\n"]
    assert until(lambda: not with_argument(mark))
    assert not os.path.exists(home.strip())


@every_backend
def test_variables_come_from_nowhere_but_policy_and_env(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    policy = Policy.agent().with_env(A="1")
    with Sandbox(policy=policy, backend=backend, env={"B": "2"}) as sb:
        assert sb.run('echo "$A $B ${SECRET_TOKEN-none}"').stdout == "1 2 none\n"
        assert sb.session("other").run('echo "$A $B ${SECRET_TOKEN-none}"').stdout == "1 2 none\n"
        assert sb.exec(["sh", "-c", 'echo "$A $B ${SECRET_TOKEN-none}"']).stdout == "1 2 none\n"


def test_relative_paths_of_a_policy_count_from_where_the_program_stands(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work.parent)
    with Sandbox(policy=Policy.agent().with_read("work"), backend="bwrap") as sb:
        assert sb.run(f"cat {work}/a.txt").stdout == "a\n"


def test_protected_names_that_appear_are_told(work: Path) -> None:
    (work / ".git").mkdir()
    with Sandbox(work, backend="bwrap", mode="bind") as sb:
        sb.run("mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit")
        assert [event.kind for event in sb.violations()] == ["violation"]


def test_enforced_tells_the_truth() -> None:
    with Sandbox(backend="bwrap") as sb:
        assert sb.enforced.backend == "bwrap"
        limits = ["limits.memory", "limits.processes", "limits.disk"]
        assert [gap.protection for gap in sb.enforced.gaps] == [*limits, "layers"]
        assert all(gap.documented for gap in sb.enforced.gaps)
    with Sandbox(backend="native") as sb:
        assert "read" not in sb.enforced.held


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"backend": "nonsense"}, UnknownBackend),
        ({"mode": "nonsense"}, InvalidCall),
        ({"workspace": "/nowhere/at/all"}, InvalidCall),
        ({"workspace": 3}, InvalidCall),
        ({"workspace": "/etc/passwd"}, InvalidCall),
        ({"policy": "agent"}, PolicyError),
        ({"best_effort": 1}, InvalidCall),
        ({"env": {"A=B": "1"}}, PolicyError),
        ({"workspace": "/", "backend": "bwrap", "mode": "bind"}, InvalidCall),
    ],
)
def test_what_cannot_be_opened_is_refused_in_a_sentence(
    arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Sandbox(**arguments)  # type: ignore[arg-type]


def test_output_that_cannot_be_spilled_is_told(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    with Sandbox(policy=Policy.agent().with_limits(output="1K")) as sb:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("staddle.sandbox.capture.write_all", _no_room)
            result = sb.run("head -c 5000 /dev/zero", spill=full)
        assert (result.exit_code, result.stdout_spill) == (0, None)
        assert result.why == "what it printed could not be spilled: No space left on device"
        assert not list(full.iterdir())
        assert not sb.run("true", spill=full).why


def _no_room(_fd: int, _data: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["epoll", "poll"])
def test_a_program_that_gevent_or_eventlet_patched_is_told_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("select." + name)
    with pytest.raises(LaunchFailed, match="gevent or eventlet has patched"):
        Sandbox()


@pytest.mark.parametrize("error", [BlockingIOError(11, "Resource"), RuntimeError("can't start new thread")])
def test_a_user_who_may_have_no_more_processes_is_told(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("staddle.sandbox.open_sandbox.open_agent", refuse)
    with pytest.raises(LaunchFailed, match="no more processes and threads"):
        Sandbox()


def test_its_repr_names_it_and_its_workspace(tmp_path: Path) -> None:
    with Sandbox(tmp_path, name="mine") as sandbox:
        assert all(part in repr(sandbox) for part in (sandbox.id, "'mine'", str(tmp_path), "namespaces"))


def test_a_text_counts_all_that_it_leaves_out_and_says_a_timeout_once() -> None:
    with Sandbox() as sandbox:
        text = sandbox.run(r"head -c 3000000 /dev/zero | tr '\0' x").text(limit=300)
        (count,) = re.findall(r"([\d,]+) characters left out", text)
        assert abs(int(count.replace(",", "")) - 3_000_000) < 400
        ended = sandbox.run("sleep 5", timeout=0.2).text()
        assert ended.count("seconds") == 1
