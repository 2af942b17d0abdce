"""Programs run in processes made ahead: as confined as others, not seen, not counted, and dispensable."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from staddle import Sandbox

#: What a process tells of itself that must not depend on how it was started.
_SELF = """
import os
keep = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Sig", "Umask")
for line in open("/proc/self/status"):
    if line.startswith(keep) and not line.startswith("SigQ"):
        print(line.strip())
for name in ("cgroup", "limits", "uid_map", "gid_map", "oom_score_adj"):
    print(name, open(f"/proc/self/{name}").read())
print(os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), sorted(os.listdir("/proc/self/fd"))[:3])
print(sorted(os.environ))
"""


@pytest.fixture
def sb() -> Iterator[Sandbox]:
    with Sandbox(backend="namespaces") as opened:
        yield opened


def _is_ahead(sb: Sandbox) -> bool:
    """Whether the next program has a process already: its number is lower than that of a newer one."""
    newer = int(sb.run("sh -c 'echo $$'").stdout)
    return int(sb.exec(["sh", "-c", "echo $$"]).stdout) < newer


def _made_ahead(sb: Sandbox) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if _is_ahead(sb):
            return True
    return False


def test_the_process_of_a_program_is_made_before_it_is_asked_for(sb: Sandbox) -> None:
    assert not _is_ahead(sb), "the first program of a sandbox may be its only one"
    assert _made_ahead(sb)


def test_it_is_confined_as_one_that_was_not_made_ahead(sb: Sandbox) -> None:
    before = sb.exec(["python3", "-I", "-c", _SELF])
    assert _made_ahead(sb)
    sb.run("true")
    after = sb.exec(["python3", "-I", "-c", _SELF])
    assert before.ok
    assert before.stdout == after.stdout
    assert {"Seccomp:\t2", "NoNewPrivs:\t1"} <= {*after.stdout.splitlines()}


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


def test_it_is_not_seen_inside_and_is_not_counted(sb: Sandbox) -> None:
    count = "ls /proc | grep -c '^[0-9]'"
    seen = sb.run(count).stdout
    assert _made_ahead(sb)
    for _ in range(5):
        assert sb.exec(["/bin/true"]).usage.processes == 1
        assert sb.run("/bin/true; /bin/true").usage.processes == 2
    assert sb.run(count).stdout == seen


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
