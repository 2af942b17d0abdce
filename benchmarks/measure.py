"""Measuring: everything in one run, interleaved, so that a busy machine is busy for all alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from staddle import Sandbox


@dataclass(frozen=True)
class Claim:
    """A measured ratio, and what we say it stays under."""

    what: str
    ratio: float
    at_most: float
    detail: str

    def __str__(self) -> str:
        verdict = "ok  " if self.ratio <= self.at_most else "OVER"
        return f"{verdict}  {self.what}: {self.ratio:.2f} (claimed: at most {self.at_most:g})   {self.detail}"


def interleaved(jobs: dict[str, Callable[[], object]], rounds: int = 30) -> dict[str, float]:
    """The median seconds of each job. All jobs take turns; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            seconds = timed(job)
            if number:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def timed(job: Callable[[], object]) -> float:
    """The seconds that `job` takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def first_result(pause: float, **settings: Any) -> float:
    """The seconds that a Sandbox with these settings takes to the end of its first command.

    There is a `pause` before, in which a spare can be made.
    """
    time.sleep(pause)
    began = time.perf_counter()
    with Sandbox(**settings) as sandbox:
        sandbox.run("true")
        return time.perf_counter() - began


def spawn(argv: list[str], env: dict[str, str] | None = None) -> None:
    """Start a program and wait for it, with as little Python as possible around it."""
    pid = os.posix_spawnp(argv[0], argv, env or {"PATH": "/usr/local/bin:/usr/bin:/bin"})
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise RuntimeError(f"{argv} ended with {status}")


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
