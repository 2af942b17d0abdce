"""Limits on a whole sandbox: what runs into one is told so, the sandbox lives on, and nothing is left.

As root with control groups, as anybody else without: the same promises, but for what is said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Policy, Reason, Sandbox, wrap
from staddle.errors import CommandFailed, LaunchFailed, PolicyNotEnforceable, SandboxClosed
from staddle.limits import here
from staddle.limits.standing_in import usable
from tests.kernel.in_a_child import SRC
from tests.kernel.limited import GROUPS, leftovers
from tests.kernel.waiting import until

MIB = 1 << 20
grouped = pytest.mark.skipif(not usable().version("memory"), reason="only control groups can do that")

#: Starts processes until it cannot, and leaves them.
BOMB = """
import os, time
for turn in range(300):
    if not os.fork():
        time.sleep(60)
        os._exit(0)
"""


@pytest.fixture(autouse=True, scope="module")
def no_groups_left() -> Iterator[None]:
    yield
    here.close()
    assert leftovers() == []


def limited(**limits: object) -> Sandbox:
    return Sandbox(policy=Policy.agent().with_limits(**limits))


def groups_in_use() -> list[str]:
    """The groups of sandboxes of ours, which are two levels below what we are in."""
    return [str(path) for own in leftovers() for path in Path(own).iterdir() if path.is_dir()]


# ---------------------------------------------------------------- memory


def test_what_takes_too_much_memory_is_ended_and_told_so() -> None:
    with limited(memory="64M") as sb:
        result = sb.run("python3 -c 'a = bytearray(150 << 20)'")
        assert (result.reason, result.exit_code, result.ok) == (Reason.memory, 137, False)
        assert "64 MiB" in result.why
        with pytest.raises(CommandFailed, match=r"limits\.memory"):
            result.check()
        assert sb.run("echo alive").stdout == "alive\n"


def test_a_program_without_a_shell_is_told_the_same() -> None:
    with limited(memory="64M") as sb:
        result = sb.exec(["python3", "-c", "a = bytearray(150 << 20)"])
        assert (result.reason, result.signal) == (Reason.memory, 9)


def test_a_shell_that_was_the_victim_itself_is_replaced_with_its_state() -> None:
    with limited(memory="64M") as sb:
        sb.run("cd /tmp; kept=yes")
        assert sb.state.cwd == "/tmp"
        result = sb.run("a=0123456789; while :; do a=$a$a; done")
        assert (result.reason, result.shell_exited) == (Reason.memory, True)
        assert sb.run("pwd; echo $kept").stdout == "/tmp\nyes\n"


@grouped
def test_memory_in_which_nothing_can_run_is_an_error_that_says_so() -> None:
    with pytest.raises(LaunchFailed, match=r"limits\.memory"):
        limited(memory="64K")
    assert groups_in_use() == []


def test_files_in_memory_count() -> None:
    with limited(memory="64M") as sb:
        result = sb.run("head -c 300M /dev/zero > /dev/shm/file")
        assert not result.ok
        assert b"No space" in result.stderr_bytes  # half of it: the rest is left to run in
        assert sb.run("wc -c < /dev/shm/file").stdout == f"{32 * MIB}\n"
        assert sb.run("python3 -c 'a = bytearray(40 << 20)'").reason is Reason.memory


def test_a_command_that_coped_has_come_to_its_own_end() -> None:
    with limited(memory="64M") as sb:
        result = sb.run("python3 -c 'a = bytearray(150 << 20)'; echo $?")
        assert (result.reason, result.stdout, result.why) == (Reason.exited, "137\n", "")


def test_a_failure_of_its_own_is_not_blamed_on_a_limit() -> None:
    with limited(memory="64M", processes=50) as sb:
        sb.run("python3 -c 'a = bytearray(150 << 20)'")
        time.sleep(0.5)  # a supervisor that measures may come to tell a moment later
        assert sb.run("exit 3").reason is Reason.shell_exited
        assert sb.run("false").reason is Reason.exited
        assert sb.run("kill -9 $BASHPID; sh -c 'kill -9 $$'").reason is not Reason.memory


# ---------------------------------------------------------------- processes


def test_a_fork_bomb_is_bounded_told_so_and_gone_with_the_sandbox() -> None:
    with limited(processes=40) as sb:
        result = sb.exec(["python3", "-c", BOMB])
        assert (result.reason, result.exit_code) == (Reason.processes, 1)
        assert "40" in result.why
    assert groups_in_use() == []


def test_threads_count_as_processes() -> None:
    with limited(processes=20) as sb:
        code = "for _ in range(60): t.Thread(target=t.Event().wait, daemon=True).start()"
        result = sb.exec(["python3", "-c", f"import threading as t\n{code}"])
        assert result.exit_code
        if usable().version("pids"):  # else nobody tells: they have all gone with their process
            assert result.reason is Reason.processes


def test_a_bomb_in_a_shell_ends_with_its_time() -> None:
    with limited(processes=60) as sb:
        began = time.monotonic()
        result = sb.run("bomb() { bomb | bomb & }; bomb; sleep 30", timeout=1.5)
        assert result.reason in (Reason.timeout, Reason.processes)
        assert time.monotonic() - began < 20
    assert groups_in_use() == []


def test_a_second_sandbox_has_limits_of_its_own() -> None:
    with limited(processes=30) as one, limited(processes=30) as other:
        assert one.exec(["python3", "-c", BOMB]).reason is Reason.processes
        assert other.run("for i in 1 2 3 4 5; do sleep 0 & done; wait; echo fine").stdout == "fine\n"


# ---------------------------------------------------------------- cpu


@grouped
def test_processors_are_given_no_more_than_their_share() -> None:
    with limited(cpu=0.2) as sb:
        result = sb.run("timeout 1 sh -c 'while :; do :; done'")
        # What the kernel counted for the group, not what the clock says: at most a fifth of the time, and
        # what one period may be over.
        assert (result.usage.user or 0) + (result.usage.system or 0) < result.usage.wall * 0.2 + 0.1
        assert result.reason is Reason.exited


@pytest.mark.skipif(bool(usable().version("cpu")), reason="there is a control group for it")
def test_without_control_groups_a_share_of_the_processors_is_refused() -> None:
    with pytest.raises(PolicyNotEnforceable, match="control group"):
        limited(cpu=0.5)


# ---------------------------------------------------------------- disk


def test_what_writes_more_than_it_may_is_ended_and_told_so() -> None:
    with limited(disk="8M") as sb:
        sb.run("kept=yes")
        assert sb.state.variables["kept"]
        result = sb.run("head -c 200M /dev/zero > /workspace/large; sleep 20")
        assert (result.reason, result.ok) == (Reason.disk, False)
        assert "8 MiB" in result.why
        assert result.duration < 15
        assert sb.run("rm /workspace/large; echo $kept").stdout == "yes\n"
        assert sb.run("head -c 4M /dev/zero > /workspace/small; sleep 0.3").ok


def test_empty_files_count_as_well() -> None:
    with limited(disk="1M") as sb:
        code = "import time\nfor i in range(200000): open(f'/workspace/{i}', 'w').close()\ntime.sleep(20)"
        assert sb.exec(["python3", "-c", code]).reason is Reason.disk


def test_what_only_looks_large_is_no_matter() -> None:
    with limited(disk="8M") as sb:
        assert sb.run("truncate -s 1G /workspace/sparse; sleep 0.4").reason is Reason.exited


def test_private_directories_are_no_larger() -> None:
    with limited(disk="8M") as sb:
        assert "No space" in sb.run("head -c 20M /dev/zero > /tmp/large").stderr


def test_a_directory_of_the_host_cannot_be_limited(tmp_path: Path) -> None:
    with pytest.raises(PolicyNotEnforceable, match="file systems"):
        Sandbox(tmp_path, policy=Policy.agent().with_limits(disk="8M"), mode="bind")


# ---------------------------------------------------------------- what is known


def test_enforced_says_by_what_each_limit_is_held() -> None:
    with limited(memory="64M", processes=20) as sb:
        by = {held.limit: held.by for held in sb.enforced.limits}
        assert {"memory", "processes", "timeout", "output"} <= set(by)
        assert ("control group" in by["memory"]) == bool(usable().version("memory"))
        assert not [gap for gap in sb.enforced.gaps if gap.protection.startswith("limits.")]


@grouped
def test_what_a_command_used_is_told() -> None:
    with limited(memory="256M") as sb:
        result = sb.run("python3 -c 'a = bytearray(50 << 20); sum(range(10**6))'")
        used = result.usage
        assert 50 * MIB <= (used.memory or 0) <= 256 * MIB
        assert (used.user or 0) > 0
        assert 0 < used.wall == result.duration
        assert (sb.usage.memory or 0) >= 50 * MIB


def test_without_limits_only_the_clock_is_told() -> None:
    with Sandbox() as sb:
        assert sb.run("true").usage.memory is None
        assert sb.usage.wall > 0
        assert sb.enforced.limits == ()


def test_what_a_program_without_a_shell_used_is_known_without_limits() -> None:
    with Sandbox() as sb:
        used = sb.exec(["python3", "-c", "sum(range(10**7))"]).usage
        assert (used.user or 0) > 0.01
        assert used.written is not None


@grouped
def test_nothing_inside_can_see_its_groups() -> None:
    with limited(memory="64M") as sb:
        for result in (sb.run("cat /proc/self/cgroup"), sb.exec(["cat", "/proc/self/cgroup"])):
            assert {line.rsplit(":", 1)[1] for line in result.stdout.splitlines()} == {"/"}


# ---------------------------------------------------------------- pausing, time


@pytest.mark.parametrize("limits", [{}, {"memory": "256M"}], ids=["by signals", "limited"])
def test_a_paused_sandbox_stands_still_and_goes_on(limits: dict[str, object]) -> None:
    with limited(**limits) as sb:
        counter = sb.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
        assert until(lambda: bool(counter.output().stdout))
        sb.pause()
        time.sleep(0.05)
        before = counter.output().stdout
        time.sleep(0.2)
        assert counter.output().stdout == before
        sb.resume()
        assert until(lambda: counter.output().stdout != before)
        assert sb.run("echo alive").stdout == "alive\n"


def test_a_paused_sandbox_can_be_closed() -> None:
    sb = limited(memory="256M")
    sb.start("sleep 60")
    sb.pause()
    sb.close()
    assert groups_in_use() == []


def test_pausing_is_there_for_asyncio() -> None:
    async def both() -> str:
        async with AsyncSandbox(policy=Policy.agent().with_limits(memory="256M")) as sb:
            await sb.run("true")
            await sb.pause()
            await sb.resume()
            assert sb.usage.wall > 0
            return (await sb.run("echo alive")).stdout

    assert asyncio.run(both()) == "alive\n"


def test_a_sandbox_ends_when_its_time_is_up_whatever_runs() -> None:
    sb = limited(max_lifetime=0.5)
    result = sb.run("sleep 30")
    assert result.reason is Reason.closed
    with pytest.raises(SandboxClosed, match="max_lifetime"):
        sb.run("true")


def test_a_sandbox_that_nobody_uses_is_closed_but_not_one_in_use() -> None:
    sb = limited(idle=0.4)
    assert sb.run("sleep 0.8; echo done").stdout == "done\n"
    assert sb.alive
    assert until(lambda: not sb.alive)
    with pytest.raises(SandboxClosed, match="idle"):
        sb.run("true")


# ---------------------------------------------------------------- nothing is left


def test_a_closed_sandbox_leaves_no_group_and_no_process() -> None:
    for _ in range(3):
        with limited(memory="64M", processes=20) as sb:
            sb.start("sleep 60")
            sb.run("sleep 60 & disown")
    assert groups_in_use() == []


@grouped
def test_a_host_program_that_is_killed_leaves_no_group() -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(SRC)!r})
from staddle import Policy, Sandbox
sb = Sandbox(policy=Policy.agent().with_limits(memory="64M", processes=20))
sb.start("sleep 60")
print("ready", flush=True)
time.sleep(60)
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        assert _groups_of(program.pid)
    finally:
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        program.stdout.close()  # type: ignore[union-attr]
    assert until(lambda: not _groups_of(program.pid))


def _groups_of(pid: int) -> list[Path]:
    return [path for path in Path(GROUPS).rglob("staddle-*") if path.name.split("-")[2:3] == [str(pid)]]


def test_commands_of_two_sessions_at_once_are_each_told_their_own_end() -> None:
    with limited(memory="128M") as sb:
        results: dict[str, object] = {}

        def calm() -> None:
            results["calm"] = sb.session("calm").run("sleep 0.5; echo calm").reason

        thread = threading.Thread(target=calm)
        thread.start()
        results["hog"] = sb.run("python3 -c 'a = bytearray(300 << 20)'").reason
        thread.join()
        assert results == {"calm": Reason.exited, "hog": Reason.memory}


# ---------------------------------------------------------------- one command alone


def alone(code: str, **limits: object) -> subprocess.CompletedProcess[str]:
    policy = Policy.agent().with_limits(**limits)
    wrapped = wrap(["python3", "-c", code], policy, backend="namespaces")
    done: subprocess.CompletedProcess[str] = wrapped.run(capture_output=True, text=True)
    return done


@grouped
def test_one_command_alone_is_held_to_its_memory() -> None:
    assert alone("a = bytearray(150 << 20)", memory="64M").returncode == 137
    assert alone("a = bytearray(20 << 20)", memory="64M").returncode == 0
    assert groups_in_use() == []


@grouped
def test_one_command_alone_is_held_to_its_processes() -> None:
    done = alone(BOMB, processes=20)
    assert done.returncode == 1
    assert "BlockingIOError" in done.stderr
    assert groups_in_use() == []


def test_one_command_alone_lives_no_longer_than_a_sandbox_may() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        alone("import time; time.sleep(20)", max_lifetime=0.5, timeout=None)


@grouped
def test_one_command_alone_sees_no_groups() -> None:
    said = alone("print(open('/proc/self/cgroup').read())", processes=20).stdout
    assert {line.rsplit(":", 1)[1] for line in said.split()} == {"/"}


@grouped
def test_one_command_that_is_only_started_leaves_no_group_once_it_was_waited_for() -> None:
    process = wrap(["true"], Policy.agent().with_limits(memory="64M"), backend="namespaces").popen()
    assert process.wait() == 0
    del process
    assert until(lambda: groups_in_use() == [])


@grouped
def test_one_command_that_is_never_started_leaves_no_group() -> None:
    wrap(["true"], Policy.agent().with_limits(memory="64M"), backend="namespaces").close()
    assert groups_in_use() == []


@pytest.mark.skipif(bool(usable().version("memory")), reason="there are control groups for it")
def test_without_control_groups_one_command_alone_is_refused() -> None:
    with pytest.raises(PolicyNotEnforceable, match="control group"):
        alone("", memory="64M")


@pytest.mark.parametrize("limit", [{"memory": "64M"}, {"processes": 20}])
def test_with_best_effort_what_is_not_held_is_listed(limit: dict[str, object]) -> None:
    policy = Policy.agent().with_limits(**limit)
    wrapped = wrap(["true"], policy, backend="namespaces", best_effort=True)
    listed = [gap.protection for gap in wrapped.enforced.gaps]
    assert listed == ([] if usable().version("memory") else [f"limits.{name}" for name in limit])
    assert wrapped.run().returncode == 0
