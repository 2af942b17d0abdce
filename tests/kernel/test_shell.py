"""A shell as its callers see it: threads, sinks, interruptions, descriptors, processes."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from staddle import Policy, Sandbox
from staddle.background import wait_for_jobs
from staddle.errors import (
    BackendUnavailable,
    InvalidCall,
    LaunchFailed,
    SandboxClosed,
    SandboxLost,
    SessionBusy,
)
from staddle.sandbox.open.next_sandbox import NEXT
from staddle.sandbox.session import Session
from staddle.shell import idle
from staddle.shell.command import CommandSpec, Outcome
from staddle.shell.running_command import RunningCommand
from staddle.shell.shell import Shell
from tests.support.in_a_child import SRC, captured
from tests.support.shell_habitats import FULLY, HABITATS, TriedShell
from tests.support.waiting import as_soon_as, until


@pytest.fixture(params=FULLY)
def tried(request: pytest.FixtureRequest) -> Iterator[TriedShell]:
    """A fresh shell in an empty directory."""
    with HABITATS[request.param]() as made:
        yield made


@pytest.fixture
def unconfined() -> Iterator[TriedShell]:
    """The same without a namespace: its processes have the numbers that it says, and can be killed."""
    with HABITATS["native"]() as made:
        yield made


def nowhere(_: bytes) -> None:
    pass


# Output.


@pytest.mark.same_for_everyone
def test_late_output_has_its_own_place(tried: TriedShell) -> None:
    done = tried.run("(sleep 0.2; echo late; echo worse >&2) & echo now")
    assert done.out == b"now\n"
    assert tried.run("echo next").out == b"next\n"
    (late,) = tried.shell.background_output()
    assert late.job == done.outcome.newest_job
    assert until(lambda: not late.open)
    assert late.texts() == (b"late\n", b"worse\n")
    assert late.command == b"(sleep 0.2; echo late; echo worse >&2) & echo now"


@pytest.mark.same_for_everyone
def test_late_output_stays_bounded_and_its_job_lives(tried: TriedShell) -> None:
    tried.run("yes & echo $! >p")
    (late,) = tried.shell.background_output()
    assert until(lambda: late.stdout.total > 3_000_000)
    assert len(late.texts()[0]) <= 256 << 10
    assert tried.run("kill -0 $(cat p) && echo alive; kill $(cat p)").out == b"alive\n"


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("is_held", [False, True], ids=["", "held"])
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131072, 262144, 300_000])
def test_all_that_is_printed_comes_whether_its_pipe_is_held_or_not(
    tried: TriedShell, size: int, is_held: bool
) -> None:
    job = "sleep 60 & job=$!; " if is_held else ""
    for _ in range(2):
        done = tried.run(f"{job}head -c {size} /dev/zero; head -c {size} /dev/zero >&2")
        assert (len(done.out), len(done.err)) == (size, size)
    assert len(tried.shell.background_output()) == 2 * is_held
    tried.run("kill $(jobs -p)" if is_held else "true")


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("lasts", [False, True], ids=["ends", "lasts"])
def test_output_in_packets_comes_whole(tried: TriedShell, lasts: bool) -> None:
    """With O_DIRECT a pipe keeps each write apart, and a read gives one of them."""
    code = "import fcntl, os, time; fcntl.fcntl(1, fcntl.F_SETFL, os.O_WRONLY | os.O_DIRECT)\n"
    code += "for i in range(9): os.write(1, b'%d' % i)\n" + ("time.sleep(60)" if lasts else "")
    came = b""

    def slow(data: bytes) -> None:
        nonlocal came
        if not came:
            time.sleep(0.2)  # until all of them are there
        came += data
        if lasts and len(came) == 9:
            raise OverflowError("enough")

    spec = CommandSpec(f'python3 -c "{code}"'.encode(), out=slow, err=nowhere, timeout=10)
    with pytest.raises(OverflowError) if lasts else nullcontext():
        tried.shell.run(spec)
    assert came == b"012345678"
    assert tried.run("true").out == b""


@pytest.mark.same_for_everyone
def test_a_sink_cannot_run_a_command_in_its_own_session(tried: TriedShell) -> None:
    with pytest.raises(SessionBusy):
        tried.shell.run(CommandSpec(b"echo a", out=lambda _: tried.run("echo b") and None, err=nowhere))
    assert tried.run("echo ok").out == b"ok\n"


# Interruptions.


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_an_interruption_at_the_very_beginning_is_not_lost(tried: TriedShell) -> None:
    def interrupt() -> None:
        while not tried.shell.busy:
            pass
        tried.shell.interrupt()

    for _ in range(20):
        thread = threading.Thread(target=interrupt)
        thread.start()
        assert tried.run("sleep 20", timeout=10).outcome.reason == "cancelled"
        thread.join()


@pytest.mark.same_for_everyone
def test_keyboard_interrupt_ends_the_command_and_keeps_the_session(tmp_path: Path) -> None:
    code = f"""
        import sys; sys.path[:0] = [{str(SRC)!r}, {str(SRC.parent)!r}]
        import os, signal, threading
        from tests.support.shell_habitats import native
        from tests.support.waiting import as_soon_as, until
        def interrupt():
            until(lambda: os.path.exists({str(tmp_path / "begun")!r}))
            os.kill(os.getpid(), signal.SIGINT)
        with native() as tried:
            threading.Thread(target=interrupt).start()
            try:
                tried.run("x=1; touch {tmp_path / "begun"}; sleep 20")
            except KeyboardInterrupt:
                print("interrupted", tried.run("echo $x").out)
    """
    import textwrap

    done = captured([sys.executable, "-c", textwrap.dedent(code)])
    assert done.stdout == "interrupted b'1\\n'\n", done.stderr


SLEEPERS = {
    "ignores every signal it can": "(trap '' INT TERM; sleep 20)",
    "lists the traps": "trap -p; (trap '' INT TERM; sleep 9)",
    "handles it": "python3 -c 'import time\ntry: time.sleep(9)\nexcept KeyboardInterrupt: pass'",
}


@pytest.mark.parametrize("sleeper", SLEEPERS)
def test_nothing_is_run_after_what_was_interrupted(tried: TriedShell, sleeper: str) -> None:
    tried.run("x=1")
    for _ in range(3):
        done = tried.run(f"{SLEEPERS[sleeper]}; touch after", timeout=0.2)
        assert done.outcome.reason == "timeout"
        assert b"fork" not in done.err
    # Where the traps are listed, the brake is off; of the other means, root is free.
    if sleeper != "lists the traps" or tried.run("id -u").out != b"0\n":
        assert tried.run("ls").out == b""
    assert tried.run("echo $x").out == b"1\n"


# Turns.


@pytest.mark.same_for_everyone
def test_a_run_in_pieces(tried: TriedShell) -> None:
    shell, out = tried.shell, bytearray()
    shell.begin(CommandSpec(b"seq 1 100000; x=1", timeout=10, out=out.extend, err=nowhere))
    poll = select.poll()
    poll.register(shell.fileno(), select.POLLIN)
    while not shell.step():
        if not shell.pending:
            assert shell.deadline is not None
            poll.poll(max(0, shell.deadline - time.monotonic()) * 1000)
    assert shell.finish().exit_code == 0
    assert len(out) == 588_895
    assert tried.run("echo $x").out == b"1\n"


@pytest.mark.same_for_everyone
def test_what_is_no_command_is_refused(tried: TriedShell) -> None:
    with pytest.raises(InvalidCall, match="NUL"):
        tried.run(b"echo a\0b")
    for env in ({"a-b": "1"}, {"1a": "1"}, {"": "1"}, {"a": "x\0"}):
        with pytest.raises(InvalidCall):
            tried.run("true", env=env)
    assert tried.run("echo ok").out == b"ok\n"


@pytest.mark.same_for_everyone
def test_close_ends_a_run_and_refuses_the_next(tried: TriedShell) -> None:
    as_soon_as(lambda: tried.shell.busy, tried.shell.close)
    assert tried.run("sleep 20").outcome.reason == "closed"
    with pytest.raises(SandboxClosed):
        tried.run("true")


# State.


@pytest.mark.same_for_everyone
def test_our_own_traps_are_seen_by_nobody(tried: TriedShell) -> None:
    assert tried.run("trap; trap -p").out == b""
    tried.run("exit 3")
    assert tried.run("trap -p").out == b""
    tried.run("trap 'echo mine' RTMAX")
    assert tried.run("kill -RTMAX $$").out == b"mine\n"
    assert tried.shell.state().traps == {"SIGRTMAX": "echo mine"}
    assert tried.run("sleep 9", timeout=0.1).outcome.reason == "timeout"
    assert tried.run("trap -p").out == b"trap -- 'echo mine' SIGRTMAX\n"


@pytest.mark.same_for_everyone
def test_asking_for_the_state_changes_nothing(tried: TriedShell) -> None:
    tried.run("false")
    tried.shell.state()
    assert tried.run("echo $?").out == b"1\n"


@pytest.mark.same_for_everyone
def test_state_survives_any_number_of_deaths(tried: TriedShell) -> None:
    tried.run("k=\"a'b]\"; declare -A h; h[$k]=$'c\\nd'; f() { cat <<E\nin $1\nE\n}; export X='q\"$`'")
    for number in range(4):
        assert tried.run(f"exit {number}").outcome.exit_code == number
        assert tried.run('echo "${h[$k]}"; f 1; printenv X').out == b'c\nd\nin 1\nq"$`\n'


@pytest.mark.same_for_everyone
def test_a_shell_that_ended_between_runs_is_replaced(unconfined: TriedShell) -> None:
    unconfined.run("x=1")
    assert until(lambda: not unconfined.shell._state.known.is_dirty)
    pid = unconfined.shell.pid
    os.kill(pid, 9)
    assert until(lambda: not os.path.exists(f"/proc/{pid}"))
    done = unconfined.run("echo $x")
    assert (done.out, done.outcome.shell_exited) == (b"1\n", False)


def test_jobs_outlive_their_shell(tried: TriedShell) -> None:
    tried.run("sleep 20 >/dev/null 2>&1 & echo $! >p")
    tried.run("exit")
    assert tried.run("kill -0 $(cat p) && kill $(cat p) && echo alive").out == b"alive\n"


# Descriptors and processes.


def open_descriptors() -> int:
    wait_for_jobs()
    NEXT.close()  # which may be opened at any time
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.same_for_everyone
def test_a_shell_at_rest_has_two_descriptors(tried: TriedShell) -> None:
    tried.run("x=1")
    assert until(lambda: not tried.shell._state.known.is_dirty)
    in_use = open_descriptors()
    assert tried.shell.park()
    # The meter has two, and where there are cgroups up to five more.
    assert in_use - open_descriptors() in ((7,) if tried.shell._state._meter is None else range(9, 15))
    assert tried.run("echo $x").out == b"1\n"
    assert until(lambda: open_descriptors() == in_use)


@pytest.mark.same_for_everyone
def test_a_short_command_that_was_released_late_is_followed_by_maintenance(
    unconfined: TriedShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the caller's thread waits for a processor, and maintenance finds the shell in use."""
    assert unconfined.shell.state()
    finish = unconfined.shell._finish

    def late(command: RunningCommand) -> Outcome:
        outcome = finish(command)
        outcome.duration = 0.0
        time.sleep(0.2)
        return outcome

    monkeypatch.setattr(unconfined.shell, "_finish", late)
    unconfined.run("x=1")
    assert until(lambda: not unconfined.shell._state.known.is_dirty, 20)


@pytest.mark.same_for_everyone
def test_only_the_shells_used_last_keep_their_files(
    unconfined: TriedShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "room", lambda _: 3)
    monkeypatch.setattr(idle.OPEN_SHELLS, "_room", 3)
    before = open_descriptors()
    shells = [Shell(unconfined.agent, unconfined.agent.shell({}, "")) for _ in range(8)]
    for number in range(3):
        for shell in shells:
            shell.run(CommandSpec(b"n=$((n+1))", out=nowhere, err=nowhere))
            shell.maintain()
        assert [int(str(shell.state().variables["n"])) for shell in shells] == [number + 1] * 8
    assert open_descriptors() - before <= 2 * 8 + 7 * 3
    for shell in shells:
        shell.close()


@pytest.mark.same_for_everyone
def test_runs_leave_no_descriptor(tried: TriedShell) -> None:
    tried.run("sleep 0.01 & exit")
    tried.run("true")
    until(lambda: not any(late.open for late in tried.shell.background_output()))
    before = open_descriptors()
    for _ in range(5):
        tried.run("cat", stdin=b"x")
        tried.run("sleep 0.01 &")
        tried.run("exit")
        tried.run("sleep 9", timeout=0.05)
    assert until(lambda: open_descriptors() <= before)


@pytest.mark.same_for_everyone
def test_a_large_argument_list(tried: TriedShell) -> None:
    read, write = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    words = ["x" * 65536] * 16
    spawned = tried.agent.spawn(
        ["sh", "-c", "echo ${#2}$#", *words], {"PATH": "/bin"}, "/", stdio=(null, write, null)
    )
    assert spawned.wait(60) == 0
    assert os.read(read, 99) == b"6553615\n"
    spawned.close()
    for fd in (read, write, null):
        os.close(fd)


def test_a_lost_sandbox_is_an_error_with_a_sentence(unconfined: TriedShell) -> None:
    agent = int(unconfined.run("echo $PPID").out)
    threading.Timer(0.2, os.kill, (agent, 9)).start()
    with pytest.raises(SandboxLost, match="stopped by itself"):
        unconfined.run("sleep 2")  # nobody ends it any more
    with pytest.raises(SandboxLost):
        unconfined.run("true")


@pytest.mark.same_for_everyone
def test_input_that_is_larger_than_its_place_is_an_error(unconfined: TriedShell) -> None:
    unconfined.run("x=1")
    inside = unconfined.shell._state.bash.files.input
    with open("/dev/full", "r+b", 0) as full:  # a place without room
        os.dup2(full.fileno(), inside, inheritable=False)
    with pytest.raises(LaunchFailed, match="could not be handed over"):
        unconfined.run("cat", stdin=b"x")
    assert unconfined.run("echo $x").out == b"1\n"


# The bash that is there.


@pytest.mark.same_for_everyone
def test_a_shell_that_is_not_there_is_an_error_with_a_sentence(unconfined: TriedShell) -> None:
    shell = Shell(unconfined.agent, unconfined.agent.shell({}, "", "/nosuch/bash"))
    with pytest.raises(LaunchFailed, match="/nosuch/bash"):
        shell.run(CommandSpec(b"true", out=nowhere, err=nowhere))
    shell.close()


@pytest.mark.same_for_everyone
def test_an_old_bash_is_refused(unconfined: TriedShell) -> None:
    shell = Shell(unconfined.agent, unconfined.agent.shell({}, ""))
    shell._state.bash.hello = b"3.2."
    with pytest.raises(BackendUnavailable, match=r"bash 3\.2 is too old"):
        shell.run(CommandSpec(b"true", out=nowhere, err=nowhere))
    shell.close()


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("enable -n $(enable | while read -r _ name; do echo $name; done)", "it ran no text"),
        ("shopt -s extdebug; trap false DEBUG", "it ran no text"),
        ('"true" $(', "bash is damaged"),
    ],
)
def test_a_shell_that_is_replaced_is_told_with_the_next_result(text: str, why: str) -> None:
    with Sandbox() as sb:
        sb.run("kept=1")
        assert not sb.run(text).why
        result = sb.run("echo $kept")
        assert (result.stdout, result.exit_code) == ("1\n", 0)
        assert "the shell was replaced" in result.why
        assert why in result.why
        assert not sb.run("true").why


# ---------------------------------------------------------------- where another shell begins


LIMITED = Policy.agent().with_limits(disk="10M")
#: Commands that end their shell: by a limit, a signal, or themselves.
ENDS = {
    "disk": "dd if=/dev/zero of=core.dump bs=1M count=5000",
    "SIGKILL": "kill -9 $$",
    "exec": "exec true",
    "exit": "exit 3",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for up in (tmp_path, *tmp_path.parents[:2]):
        up.chmod(0o755)
    (tmp_path / "project/sub").mkdir(parents=True)
    return tmp_path / "project"


def _main(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED)
    return sandbox, sandbox.session("main"), "/workspace"


def _workdir(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED, workdir="sub")
    return sandbox, sandbox.session("main"), "/workspace/sub"


def _named(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED)
    return sandbox, sandbox.session("other"), "/workspace"


def _without_workspace(_: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(policy=LIMITED)
    return sandbox, sandbox.session("main"), "/workspace"


def _linked(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED, workspace_at="/app")
    return sandbox, sandbox.session("main"), "/app"


SHELLS: dict[str, Callable[[Path], tuple[Sandbox, Session, str]]] = {
    "main": _main,
    "workdir": _workdir,
    "named": _named,
    "without a workspace": _without_workspace,
    "workspace_at": _linked,
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("end", ENDS)
def test_when_the_first_command_ends_it(project: Path, shell: str, end: str) -> None:
    sandbox, session, start = SHELLS[shell](project)
    with sandbox:
        first = session.run(ENDS[end])
        assert first.shell_exited
        assert first.cwd == start
        assert session.run("pwd").stdout == f"{start}\n"
        assert session.run("pwd").cwd == start
        if shell in {"main", "without a workspace"} and end != "disk":
            sandbox.files.write("here", "x")
            assert sandbox.exec(["ls", "/workspace/here"]).ok


@pytest.mark.parametrize("end", ENDS)
def test_when_a_later_command_ends_it(project: Path, end: str) -> None:
    with Sandbox(project, LIMITED) as sandbox:
        sandbox.run("mkdir -p a/b; cd a/b; x=1")
        assert sandbox.state.cwd == "/workspace/a/b"  # and so the state is known
        assert sandbox.run(ENDS[end]).cwd == "/workspace/a/b"
        assert sandbox.run("pwd; echo $x").stdout == "/workspace/a/b\n1\n"


def test_when_its_directory_is_gone_it_is_in_the_nearest_above(project: Path) -> None:
    with Sandbox(project, LIMITED) as sandbox:
        sandbox.run("mkdir -p a/b/c; cd a/b/c")
        sandbox.run("rm -r /workspace/a/b")
        sandbox.run("kill -9 $$")
        assert sandbox.run("pwd").stdout == "/workspace/a\n"


def test_after_a_restore_to_a_time_without_its_directory(project: Path) -> None:
    with Sandbox(project) as sandbox:
        before = sandbox.snapshot()
        sandbox.run("mkdir -p d/e; cd d/e")
        sandbox.restore(before)
        assert sandbox.run("pwd").stdout == "/workspace\n"


def test_a_shell_that_was_killed_between_two_commands_is_told_of(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run("cd sub; x=kept")
        assert sandbox.state.env  # and so the state is known
        pid = sandbox.run("echo $$").stdout.strip()
        other = sandbox.session("other")
        other.run(f"kill -9 {pid}")
        other.run(f"while kill -0 {pid} 2>/dev/null; do :; done")
        result = sandbox.run("pwd; echo $x")
        assert result.stdout == "/workspace/sub\nkept\n"
        assert "another one" in result.why
        assert sandbox.run("true").why == ""
