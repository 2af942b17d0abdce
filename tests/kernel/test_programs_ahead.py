"""Programs are started by a process confined ahead: as confined as others, not counted, and dispensable.

Nothing depends on that process: what happens to it happens to no program.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from staddle import Sandbox
from staddle.linux.process_tree import descendants

#: What a process tells of itself that must not depend on how it was started.
_SELF = """
import os
keep = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Sig", "Umask")
for line in open("/proc/self/status"):
    if line.startswith(keep) and not line.startswith("SigQ"):
        name, value = line.split(":", 1)
        if name == "SigIgn":  # but the two of the C library's own, which its posix_spawn sets to that
            value = hex(int(value, 16) & ~(3 << 31))
        print(name, value.strip())
for name in ("cgroup", "limits", "uid_map", "gid_map", "oom_score_adj"):
    print(name, open(f"/proc/self/{name}").read())
print(os.getpgrp() == os.getsid(0) == os.getpid(), os.getcwd(), sorted(os.listdir("/proc/self/fd"))[:3])
print(sorted(os.environ))
"""


@pytest.fixture
def sb() -> Iterator[Sandbox]:
    with Sandbox(backend="namespaces") as opened:
        yield opened


def _is_ahead(sb: Sandbox) -> bool:
    """Whether the starter starts the next program: the agent is the parent of others."""
    return sb.exec(["sh", "-c", "echo $PPID"]).stdout != "1\n"


def _made_ahead(sb: Sandbox) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if _is_ahead(sb):
            return True
    return False


def _started_ahead(sb: Sandbox, command: list[str]) -> list[str]:
    """What a command prints that the starter has started; the number of its parent is the first word."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (words := sb.exec(command).stdout.split()) and words[0] != "1":
            return words
    raise AssertionError("there is no starter")


def test_the_starter_is_made_for_the_second_program(sb: Sandbox) -> None:
    assert not _is_ahead(sb), "the first program of a sandbox may be its only one"
    assert _made_ahead(sb)


def test_it_is_confined_as_one_that_was_not_made_ahead(sb: Sandbox) -> None:
    before = sb.exec(["python3", "-I", "-c", _SELF])
    assert _made_ahead(sb)
    sb.run("true")
    after = sb.exec(["python3", "-I", "-c", _SELF])
    assert before.ok
    assert before.stdout == after.stdout
    assert {"Seccomp 2", "NoNewPrivs 1"} <= {*after.stdout.splitlines()}


def test_directory_environment_streams_and_errors_are_the_program_s_own(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    sb.run("mkdir -p a/b; export MINE=1; cd a")
    for _ in range(3):
        told = sb.exec(
            ["sh", "-c", "pwd; echo $MINE $MORE; cat; echo err >&2"], stdin=b"in", env={"MORE": "2"}
        )
        assert (told.stdout, told.stderr) == ("/workspace/a\n1 2\nin", "err\n")
        assert sb.exec(["pwd"], cwd="b").stdout == "/workspace/a/b\n"
        missing = sb.exec(["no-such-program"])
        assert (missing.exit_code, missing.reason, missing.errno) == (127, "not_started", 2)
        nowhere = sb.exec(["true"], cwd="/nowhere")
        assert (nowhere.reason, "cannot be entered" in nowhere.why) == ("not_started", True)
    assert len(sb.exec(["sh", "-c", "echo ${#LONG}"], env={"LONG": "x" * 100_000}).stdout) == 7


def test_it_is_not_counted(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    for _ in range(5):
        assert sb.exec(["/bin/true"]).usage.processes == 1
        assert sb.exec(["sh", "-c", "/bin/true; /bin/true"]).usage.processes == 3
        assert sb.run("/bin/true; /bin/true").usage.processes == 2
    assert len(sb.ps()) == 1


def test_it_ends_when_no_program_is_started_for_a_while(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    end = time.monotonic() + 60
    while _is_ahead(sb) and time.monotonic() < end:
        time.sleep(5.5)
    assert time.monotonic() < end


def test_a_snapshot_still_needs_no_copy(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    sb.run("echo 1 > f")
    assert sb.snapshot().method != "copy"
    assert sb.exec(["cat", "f"]).stdout == "1\n"
    assert _made_ahead(sb)


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
def test_a_program_that_signals_everything_takes_nothing_from_the_next(sb: Sandbox, signal: str) -> None:
    shell = sb.run("echo $$").stdout.strip()
    assert _made_ahead(sb)
    for _ in range(5):
        script = f"for p in $(seq 2 300); do [ $p = {shell} ] || [ $p = $$ ] || kill -{signal} $p; done 2>&-"
        assert sb.exec(["sh", "-c", script]).exit_code in (0, 1)
        # A process that was stopped while it waits is its program's: that is stopped, as any could be.
        told = sb.exec(["echo", "here"], timeout=5)
        assert told.stdout == "here\n" or (signal == "STOP" and told.reason == "timeout")
    assert sb.exec(["echo", "here"]).stdout == "here\n"


def test_what_a_program_used_is_counted_once(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    script = "import os; os.write(1, b'x' * 50_000); sum(range(3_000_000))"
    told = sb.exec(["python3", "-I", "-S", "-c", script])
    assert told.usage.user > 0.01
    assert 50_000 <= told.usage.written < 60_000
    before = sb.usage.written
    sb.exec(["true"])
    time.sleep(6)  # until the starter has ended
    assert sb.usage.written - before < 10_000


def test_a_program_is_ended_with_what_has_lost_its_parent(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    orphan = "(setsid sleep 1234 &) ; sleep 1235"
    assert sb.exec(["sh", "-c", orphan], timeout=0.5).reason == "timeout"
    assert sb.run("pgrep -f 'sleep 123[45]'").stdout == ""


def test_what_a_program_leaves_running_goes_on(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    assert sb.exec(["sh", "-c", "setsid sleep 1234 >/dev/null 2>&1 &"]).ok
    assert sb.run("pgrep -f 'sleep 1234'").stdout != ""
    assert sb.exec(["echo", "here"]).stdout == "here\n"
    assert _made_ahead(sb)


def test_programs_at_the_same_time_do_not_wait_for_each_other(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    with ThreadPoolExecutor(3) as pool:
        slow = pool.submit(sb.exec, ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 7"])
        assert sb.exec(["echo", "here"], timeout=60).stdout == "here\n"
        assert sb.exec(["touch", "go"]).ok
        assert slow.result(60).exit_code == 7


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
def test_a_program_whose_starter_is_gone_is_waited_for_by_the_agent(sb: Sandbox, signal: str) -> None:
    for code in (1, 2):  # after three it is not made again
        assert _made_ahead(sb)
        told = sb.exec(["sh", "-c", f"kill -{signal} $PPID; sleep 0.1; exit {code}"], timeout=60)
        assert (told.exit_code, told.reason) == (code, "exited")
        sb.exec(["true"])


def test_a_pause_while_a_program_runs_ends_nothing(sb: Sandbox) -> None:
    assert _made_ahead(sb)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(sb.exec, ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 7"])
        time.sleep(0.3)
        sb.pause()
        sb.resume()
        sb.files.write("go", "")
        assert slow.result(60).exit_code == 7


def test_nothing_inside_looks_into_it(sb: Sandbox) -> None:
    look = "echo $PPID; cat /proc/$PPID/maps /proc/$PPID/environ; ls /proc/$PPID/fd /proc/$PPID/cwd/"
    assert len(_started_ahead(sb, ["sh", "-c", look])) == 1
    attach = "import ctypes, os; print(os.getppid(), ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0))"
    assert _started_ahead(sb, ["python3", "-I", "-c", attach])[1] != "0"  # PTRACE_ATTACH
    control = "sleep 50 & until cat /proc/$!/environ | grep -q .; do sleep 0.1; done; ls /proc/$!/fd"
    assert sb.exec(["sh", "-c", control], timeout=30).ok, "of another process it can be read"


@pytest.mark.parametrize(
    "change",
    [
        "export A=2",
        "A=2",
        "/bin/true; A=2",
        "/bin/true && A=2",
        "f() { A=2; }\nf",
        "eval A=2",
        "read A <<< 2",
        "printf -v A 2",
        "shopt -s expand_aliases; alias ls='A=2; /bin/ls'\nls",
        "trap 'A=2' DEBUG; /bin/true",
        "trap 'A=2' ERR; /bin/false",
        "for A in 1 2; do /bin/true; done",
        ": ${A:=2}; A=2",
        "source <(echo A=2)",
    ],
)
def test_a_program_has_the_variables_of_the_shell_whatever_was_run_before(sb: Sandbox, change: str) -> None:
    def variable() -> str:
        return sb.exec(["printenv", "A"]).stdout

    sb.run("export A=1")
    assert variable() == "1\n"
    sb.run("/bin/true")
    assert variable() == "1\n"
    sb.run(change)
    sb.run("ls / | head -1")
    assert variable() == "2\n"


def test_a_function_or_an_alias_that_looks_like_a_program_is_none(sb: Sandbox) -> None:
    sb.run("export A=1; ls() { A=$((A + 1)); }; shopt -s expand_aliases; alias cat='A=$((A + 10)); true'")
    assert sb.exec(["printenv", "A"]).stdout == "1\n"
    sb.run("ls")
    assert sb.exec(["printenv", "A"]).stdout == "2\n"
    sb.run("cat")
    assert sb.exec(["printenv", "A"]).stdout == "12\n"
    sb.run("cd /tmp")
    sb.run("/bin/true")
    assert sb.exec(["pwd"]).stdout == "/tmp\n"


def test_many_programs_take_no_memory_in_the_helpers() -> None:
    def memory() -> int:
        return sum(_anonymous(pid) for pid in descendants(os.getpid()))

    with Sandbox() as sb:
        for _ in range(100):
            sb.exec(["true"])
        before = memory()
        for _ in range(500):  # not in the first directory of PATH
            sb.exec(["true"])
        assert memory() - before < 400 << 10


def _anonymous(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return 0
