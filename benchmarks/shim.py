"""The shim of a coding agent's shell against plain bash: a command that does nothing."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator

from measure import Claim, timed
from staddle import Policy, Sandbox
from staddle.agents.broker import ShellBroker

ROUNDS = 100
#: Milliseconds over plain bash that a command through the shim may take.
MOST = 12.0


def shim() -> Iterator[Claim]:
    """`bash -c true` by the shim and by bash, in turns, with a pause in which an agent would think.

    A command through the shim changes five times from one process to another. Where other programs
    want the processor, each of these waits for its turn, and the median tells about them.
    """
    with tempfile.TemporaryDirectory() as project:

        def run(program: str) -> float:
            words = [program, "-c", "true"]
            return 1000 * timed(
                lambda: subprocess.run(
                    words, check=True, cwd=project, stdin=subprocess.DEVNULL, capture_output=True
                )
            )

        took = []
        with ShellBroker(Sandbox(None, Policy.agent().with_write(project))) as broker:
            run(f"{broker.home}/bash")
            for _ in range(ROUNDS):
                took.append((run("/bin/bash"), run(f"{broker.home}/bash")))
                time.sleep(0.05)
    bash, by_shim = zip(*took, strict=True)
    tenths = [statistics.quantiles(times, n=10) for times in (bash, by_shim)]
    detail = f"bash {statistics.median(bash):.1f} ms; load {os.getloadavg()[0]:.0f}"
    median = statistics.median(by_shim) - statistics.median(bash)
    yield Claim("a command through the shim, median milliseconds over plain bash", median, MOST, detail)
    quiet = tenths[1][0] - tenths[0][0]
    yield Claim("the same, the fastest tenth of the rounds", quiet, MOST, f"bash {tenths[0][0]:.1f} ms")


CLAIMS = (shim,)

if __name__ == "__main__":
    for claim in shim():
        print(claim)
