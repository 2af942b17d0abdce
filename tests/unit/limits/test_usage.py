"""What a command used, from what /proc says of its shell."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from staddle import Limits
from staddle.limits.usage import Events, ProcessMeter, Usage, of_process, ran_into, size


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


# Which limit made a command fail.


LIMITS = Limits(memory="100M", processes=64, disk="1G")
NONE = Events()


def told(exit_code: int, after: Events = NONE, **more: int) -> str | None:
    found = ran_into(LIMITS, exit_code, NONE, after, **more)  # type: ignore[arg-type]
    return found.limit if found else None


@pytest.mark.parametrize(
    ("exit_code", "after", "more", "limit"),
    [
        (0, NONE, {}, None),
        (1, NONE, {}, None),
        (137, NONE, {}, None),
        (137, Events(out_of_memory=1), {}, "memory"),
        (1, Events(out_of_memory=1), {}, "memory"),
        (0, Events(out_of_memory=1), {}, None),
        (137, NONE, {"ended": 2}, "memory"),
        (254, Events(refused_processes=9), {}, "processes"),
        (0, Events(refused_processes=9), {}, None),
        (1, Events(1, 1), {}, "memory"),
        (1, NONE, {"full": True}, "disk"),
        (0, NONE, {"full": True}, None),
    ],
)
def test_a_limit_is_a_reason_for_a_command_that_failed(
    exit_code: int, after: Events, more: dict[str, int], limit: str | None
) -> None:
    assert told(exit_code, after, **more) == limit


def test_what_happened_before_is_not_this_commands() -> None:
    before = Events(3, 4)
    assert ran_into(LIMITS, 1, before, before) is None


def test_a_limit_that_was_not_asked_for_is_not_told() -> None:
    assert ran_into(Limits(), 137, NONE, Events(1, 1), full=True) is None


def test_the_sentence_has_the_limit_in_it() -> None:
    found = ran_into(LIMITS, 137, NONE, Events(out_of_memory=1))
    assert found is not None
    assert "100 MiB" in found.sentence
    assert "limits.memory" in found.sentence
    assert [size(n) for n in (5, 1536, 1 << 30)] == ["5 bytes", "1.5 KiB", "1 GiB"]


def test_a_full_disk_tells_of_files_as_well_as_bytes() -> None:
    found = ran_into(Limits(disk="200M"), 1, NONE, NONE, full=True)
    assert found is not None
    assert "200 MiB, or 51,200 files" in found.sentence
