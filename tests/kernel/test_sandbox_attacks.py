"""What a hostile or runaway program does to a sandbox: it runs into a limit, and everything of it ends.

As root with control groups, as anybody else without them; and, where it says so, with no limit at all.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Reason, Sandbox
from staddle.forkserver import client
from staddle.layers import trash
from staddle.limits.enforced import usable
from staddle.sandbox.spawn import spawn
from tests.support.limited import leftovers, no_groups_left  # noqa: F401 - a fixture for all
from tests.support.waiting import until

MIB = 1 << 20
#: Everything that can be limited here.
ALL: dict[str, object] = {
    "memory": "256M",
    "processes": 60,
    "disk": "64M",
    "file_size": "32M",
    "open_files": 64,
}
ALL |= {"max_lifetime": 300, "idle": 300, **({"cpu": 1.0} if usable().version("cpu") else {})}


def limited(**limits: object) -> Sandbox:
    return Sandbox(policy=Policy.agent().with_limits(**limits))


@pytest.fixture(params=[{}, ALL], ids=["unlimited", "limited"])
def sb(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with limited(**request.param) as made:
        yield made


# ---------------------------------------------------------------- what does not end by itself

#: Each says that it is there, and would stay for ever. All have the standard output that they were given.
STUBBORN = {
    "stopped": "there(); os.kill(os.getpid(), signal.SIGSTOP)",
    "deaf to TERM": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; there(); time.sleep(999)",
    "in a session of its own": "os.fork() and os._exit(0); os.setsid(); there(); time.sleep(999)",
    "forked twice": "for _ in 1, 2: os.fork() and os._exit(0); os.setsid()\nthere(); time.sleep(999)",
    "with a child that is": "if os.fork() == 0:\n    os.setsid(); signal.signal(15, signal.SIG_IGN)\n"
    "there(); time.sleep(999)",
    "with zombies": "os.fork() or os._exit(0); there(); time.sleep(999)",
    "one after the other": "there()\nwhile True:\n    if os.fork(): os._exit(0)\n    time.sleep(0.001)",
    "blocked in open": "os.mkfifo('/tmp/fifo'); there(); os.open('/tmp/fifo', os.O_RDONLY)",
}
BEGINNING = "import os, signal, time\ndef there(): os.write(1, b'!')\n"


def ends(pipe: int) -> bool:
    """Whether nobody has the other end any more: whoever lives, has it."""
    data = b"!"
    while data and select.select([pipe], [], [], 20)[0]:
        data = os.read(pipe, 4096)
    os.close(pipe)
    return not data


@pytest.mark.parametrize("kind", STUBBORN)
def test_nothing_outlives_its_sandbox(sb: Sandbox, kind: str) -> None:
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    code = BEGINNING + STUBBORN[kind]
    started = spawn(sb._now(), ["python3", "-c", code], (null, write, null))
    os.close(write)
    os.close(null)
    assert os.read(read, 1) == b"!"
    sb.close()
    assert ends(read)
    started.close()


@pytest.mark.parametrize("kind", ["stopped", "deaf to TERM", "with a child that is", "blocked in open"])
def test_a_command_whose_time_is_up_ends_whatever_it_does(kind: str) -> None:
    code = BEGINNING + STUBBORN[kind]
    with limited(**ALL) as sb:
        for shell in (True, False):
            if shell:
                result = sb.run(f'python3 -c "{code}"', timeout=0.7)
            else:
                result = sb.exec(["python3", "-c", code], timeout=0.7)
            assert (result.reason, result.exit_code) == (Reason.timeout, 124)
            sb.run("rm -f /tmp/fifo")
        left = "for p in /proc/[0-9]*; do cat $p/comm; done 2>/dev/null | grep -c python3"
        assert until(lambda: sb.run(left).stdout == "0\n")


@pytest.mark.slow
def test_a_bomb_of_many_processes_is_gone_with_its_sandbox() -> None:
    with limited(memory="1G", processes=600) as sb:
        bomb = "for (1..500) { my $p = fork; if (!$p) { sleep 999; exit } } syswrite STDOUT, '!'; sleep 999"
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        started = spawn(sb._now(), ["perl", "-e", bomb], (null, write, null))
        os.close(write)
        os.close(null)
        assert os.read(read, 1) == b"!"
        assert (sb.usage.processes or 0) >= 501
    assert ends(read)
    started.close()


# ---------------------------------------------------------------- what is used up


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_output_without_end_is_ended_and_told_so() -> None:
    with limited(output="64K") as sb:
        result = sb.run("yes", timeout=60)
        assert (result.reason, result.ok) == (Reason.output_limit, False)
        assert "limits.output" in result.why
        assert len(result.stdout_bytes) == 64 << 10
        assert result.stdout_bytes_dropped > 1 << 29
        assert sb.run("echo alive").stdout == "alive\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_output_that_somebody_takes_is_not_too_much() -> None:
    with limited(output="64K") as sb:
        heard = 0

        def hear(text: str) -> None:
            nonlocal heard
            heard += len(text)

        assert sb.run("head -c 1200M /dev/zero", timeout=60, on_stdout=hear).ok
        assert heard == 1200 * MIB


def test_open_files_are_used_up_by_who_opens_them() -> None:
    code = (
        "import os\nn = 0\ntry:\n    while True: os.open('/dev/null', 0); n += 1\n"
        "except OSError as error: print(error.errno, n)"
    )
    with limited(open_files=40) as sb:
        result = sb.exec(["python3", "-c", code])
        number, count = result.stdout.split()
        assert (number, int(count) < 40) == ("24", True)
        assert sb.run("ulimit -n; ulimit -n 4096 || echo no").stdout == "40\nno\n"
        assert sb.run("echo alive").stdout == "alive\n"


def test_a_file_is_no_larger_than_it_may_be() -> None:
    with limited(file_size="1M") as sb:
        assert sb.run("head -c 2M /dev/zero > /workspace/file").signal == signal.SIGXFSZ
        assert sb.run("stat -c %s /workspace/file").stdout == f"{MIB}\n"
        assert sb.run("ulimit -f unlimited || echo no").stdout == "no\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "writing",
    [
        "fallocate -l 200M /workspace/file; sleep 20",
        "truncate -s 1T /workspace/file; head -c 200M /dev/zero >> /workspace/file; sleep 20",
        "for i in $(seq 9); do head -c 2M /dev/zero > /workspace/$i; done; sleep 20",
        "i=0; while :; do mkdir -p /workspace/$i/{0..99}; i=$((i + 1)); done",
    ],
    ids=["reserved", "at the end of a sparse one", "many", "directories"],
)
def test_what_takes_room_counts(writing: str) -> None:
    with limited(disk="8M") as sb:
        result = sb.run(writing)
        assert (result.reason, "8 MiB" in result.why) == (Reason.disk, True)
        assert sb.run("rm -rf /workspace/*; echo alive").stdout == "alive\n"


@pytest.mark.parametrize("limits", [{"disk": "8M"}, {"memory": "16M"}], ids=["disk", "memory"])
def test_empty_files_in_memory_are_bounded(limits: dict[str, object]) -> None:
    code = "n = 0\ntry:\n    while True: open(f'/dev/shm/{n}', 'w').close(); n += 1\nexcept OSError: print(n)"
    with limited(**limits) as sb:
        assert int(sb.exec(["python3", "-c", code], timeout=60).stdout) <= 2048


def test_many_names_of_one_file_take_no_room() -> None:
    with limited(disk="8M") as sb:
        assert sb.run("head -c 6M /dev/zero > one; for i in $(seq 9); do ln one $i; done; sleep 0.3").ok


# ---------------------------------------------------------------- the same for all


def test_limits_are_inherited_and_cannot_be_raised() -> None:
    with limited(**ALL) as sb:
        code = (
            "import resource as r\nfor what in (r.RLIMIT_FSIZE, r.RLIMIT_NOFILE): print(*r.getrlimit(what))"
        )
        assert sb.run(f"bash -c 'setsid python3 -c \"{code}\"'").stdout == f"{32 * MIB} {32 * MIB}\n64 64\n"


@pytest.mark.slow
def test_sandboxes_with_all_limits_leave_nothing() -> None:
    def left() -> tuple[int, int, int]:
        mounts = Path("/proc/self/mountinfo").read_text().count("\n")
        groups = sum(1 for own in leftovers() for _ in Path(own).iterdir() if _.is_dir())
        return groups, mounts, len(os.listdir("/proc/self/fd"))

    def cycle() -> None:
        with limited(**ALL) as sb:
            sb.run("sleep 999 & head -c 1M /dev/zero > file")

    for _ in range(4):  # then everything is there that is made in advance
        cycle()
    assert until(lambda: all(not server.live for server in client._servers.values()))
    trash.wait()  # what is made ahead for the next is there
    before = left()
    for _ in range(40):
        cycle()
    assert until(lambda: all(map(int.__le__, left(), before))), (before, left())
