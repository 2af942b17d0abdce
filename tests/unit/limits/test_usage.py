"""What a command used, from what /proc says of its shell."""

from __future__ import annotations

import os
import subprocess
import sys

from staddle.limits.usage import ProcessMeter, Usage, last_pid, of_process, started


def test_a_process_that_did_nothing_used_nothing() -> None:
    meter = ProcessMeter(os.getpid())
    meter.begin()
    usage = meter.end(0.5)
    assert usage.wall == 0.5
    assert usage.user is not None
    assert usage.user < 0.5


def test_what_was_waited_for_counts() -> None:
    meter = ProcessMeter(os.getpid())
    meter.begin()
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    usage = meter.end(1.0)
    assert usage.user is not None
    assert usage.user > 0.02


def test_a_process_that_has_ended_is_no_error() -> None:
    done = subprocess.Popen(["true"])
    meter = ProcessMeter(done.pid)
    meter.begin()
    done.wait()
    assert meter.end(0.1).wall == 0.1


def test_the_end_of_a_process_tells_what_it_used() -> None:
    assert of_process((1_500_000, 500_000, 2, 4), 3.0) == Usage(3.0, 1.5, 0.5, None, 1024, 2048)
    assert of_process((-1, -1, -1, -1), 3.0) == Usage(3.0, 0, 0, None, 0, 0)


def test_processes_are_counted_by_their_numbers() -> None:
    before = last_pid()
    for _ in range(3):
        subprocess.run(["true"], check=True)
    assert started(before, last_pid(), 1 << 22) >= 3
    assert started(100, 100, 32768) == 0
    assert started(32760, 10, 32768) == 18
