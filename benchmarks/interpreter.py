"""Snapshots that keep an interpreter: `python benchmarks/interpreter.py [DIRECTORY WITH NUMPY]`.

Each row compares a snapshot and a restore with an interpreter to those without one, by turns in one sandbox.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial

from measure import timed
from staddle import Policy, Sandbox, Snapshot

_TOUCHED = "x = bytearray({0} << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"
_ROUNDS = 12


def _milliseconds(found: list[float]) -> str:
    return f"{statistics.median(found) * 1000:6.2f} ms (least {min(found) * 1000:5.2f})"


def _measure(name: str, cell: str, place: str, policy: Policy) -> None:
    with Sandbox(place, policy=policy) as sandbox:
        found: dict[str, list[float]] = {}
        made: list[Snapshot] = []
        assert sandbox.python(cell).ok
        for _ in range(_ROUNDS):
            kept = partial(sandbox.snapshot, processes="interpreter")
            for kind, take in (("plain", sandbox.snapshot), ("with interpreter", kept)):
                if kind == "plain":
                    sandbox.python("0")  # as long ago as in the other row
                sandbox.run("echo $RANDOM > file")
                found.setdefault(f"snapshot, {kind}", []).append(
                    timed(lambda: made.append(take()))  # noqa: B023 - called at once
                )
            point, other = made.pop(), made.pop()
            if not point.processes.kept or point.method != "swap":
                sys.exit(f"{point!r} did not keep the interpreter: {point.processes}")
            sandbox.run("echo $RANDOM > file")
            found.setdefault("restore, with interpreter", []).append(timed(lambda: sandbox.restore(point)))  # noqa: B023
            found.setdefault("the next cell", []).append(timed(lambda: sandbox.python("0")))
            other.close()
            point.close()
        print(name)
        for kind, times in found.items():
            print(f"    {kind:28}{_milliseconds(times[2:])}")


def main() -> None:
    policy = Policy.agent().with_limits(memory="6G")
    with tempfile.TemporaryDirectory() as place:
        _measure("an empty interpreter", "0", place, policy)
        for size in (100, 1000):
            _measure(f"{size} MB of Python's objects", _TOUCHED.format(size), place, policy)
        if len(sys.argv) > 1:
            cell = f"import sys; sys.path.insert(0, {sys.argv[1]!r})\nimport numpy; x = numpy.ones(125 << 20)"
            _measure("1 GB in an array of numpy", cell, place, policy.with_read(sys.argv[1]))


if __name__ == "__main__":
    main()
