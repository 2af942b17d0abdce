"""As many processors as may be used are seen: whole ones, at least one, never more than there are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from staddle.limits import process_attributes


@pytest.mark.parametrize(
    ("cpu", "count"), [(None, 0), (0.1, 1), (1, 1), (1.0, 1), (1.5, 2), (2, 2), (63.01, 64)]
)
def test_a_limit_is_rounded_up(cpu: float | None, count: int) -> None:
    assert process_attributes.cpu_count(cpu) == count


@pytest.mark.parametrize("number", [0, 1, 2, 10_000])
def test_a_process_is_on_so_many(number: int) -> None:
    there = len(os.sched_getaffinity(0))
    code = f"import os; from staddle.limits.process_attributes import narrow_cpus; narrow_cpus({number})"
    code += "; print(len(os.sched_getaffinity(0)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert int(done.stdout) == (min(number, there) or there)
