"""What a command used, from what /proc says of its shell."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from staddle.limits.usage import ProcessMeter, Usage, of_process


def test_what_a_process_and_those_it_waited_for_used_is_read() -> None:
    meter = ProcessMeter(os.getpid())
    before = meter.now()
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000)); print('x' * 4096)"], check=True, stdout=-3)
    after = meter.now()
    meter.park()
    assert before is not None
    assert after is not None
    assert after.user - before.user > 0.02
    assert after.written - before.written > 4096
    assert after.faults > before.faults


def test_it_is_read_again_after_it_was_parked() -> None:
    meter = ProcessMeter(os.getpid())
    assert meter.now() is not None
    meter.park()
    assert meter.now() is not None
    meter.park()


def test_of_a_process_that_has_ended_or_is_not_known_nothing_is_said() -> None:
    done = subprocess.Popen(["true"])
    meter = ProcessMeter(done.pid)
    done.wait()
    assert meter.now() is None
    assert ProcessMeter(0).now() is None


def test_the_end_of_a_process_tells_what_it_used() -> None:
    told = of_process((1_500_000, 500_000, 2, 4, 4096, 7), 3.0)
    assert told == Usage(3.0, 1.5, 0.5, 4096, 2, 4, 7)
    assert of_process((-1, -1, -1, -1, -1, -1), 3.0) == Usage(3.0, 0, 0, None, 0, 0, None)


def test_of_a_process_that_may_not_be_traced_the_times_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread

    def refused(fd: int, size: int, at: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/io"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", refused)
    meter = ProcessMeter(os.getpid())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        now = meter.now()
        assert now is not None
        assert (now.read, now.written) == (None, None)
        assert now.user + now.system > 0
    meter.park()
    assert len(os.listdir("/proc/self/fd")) == before
