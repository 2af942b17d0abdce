"""What a command used, from what /proc says of its shell."""

from __future__ import annotations

import os
import subprocess
import sys

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
