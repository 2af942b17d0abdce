"""Time of commands through a server, against the same commands in this process.

    python benchmarks/server.py [ROUNDS]

It prints the best time of both and their ratio, by turns in one run. The targets are 2 for `true`, and 1.2
for 100 MB of output.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable

import staddle
from staddle.server.process import connected_or_started

_OUTPUT = "head -c 100000000 /dev/zero"


def best(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Return the best time of each work, which are done by turns."""
    found = [float("inf")] * len(works)
    for _ in range(rounds):
        for at, work in enumerate(works):
            began = time.perf_counter()
            work()
            found[at] = min(found[at], time.perf_counter() - began)
    return found


def read(sandbox: staddle.Sandbox) -> None:
    """Read 100 MB of output as it arrives."""
    size = sum(len(chunk.data) for chunk in sandbox.stream(_OUTPUT))
    assert size == 100_000_000, size


def main() -> None:
    """Print the figures."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/socket"
        connected_or_started(path, idle=20).close()
        with staddle.connect(path) as client, client.create() as served, staddle.Sandbox() as own:
            for name, count, works in (
                ("true", rounds, (lambda: own.run("true"), lambda: served.run("true"))),
                ("100 MB of output", max(3, rounds // 100), (lambda: read(own), lambda: read(served))),
            ):
                here, there = best(count, *works)
                print(f"{name:<18} {here * 1e3:9.3f} ms  {there * 1e3:9.3f} ms  ratio {there / here:.2f}")


if __name__ == "__main__":
    main()
