"""Compare the speed of this tree with that of another revision: `python benchmarks/revision.py REVISION`.

REVISION may be the directory of another tree, where there is no repository.

A program for each runs all the time, and they take turns in blocks, so that a busy machine is busy for both
alike. Printed is the median of each, the least value, and the median of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import staddle
from measure import first_result, timed
from staddle import Sandbox

_HERE = Path(__file__).resolve().parent.parent
#: Changes nothing of its shell but files, by plain words and otherwise.
_PLAIN, _OTHER = "echo h > g", "for i in 1; do echo h > g; done; unset i"


def _runs(sandbox: Sandbox, count: int, pause: float = 0.0) -> list[float]:
    found = []
    for _ in range(count):
        time.sleep(pause)
        found.append(timed(lambda: sandbox.run("true")))
    return found


def _snapshots(sandbox: Sandbox, command: str) -> list[float]:
    found = []
    for _ in range(8):
        sandbox.run(command)
        found.append(timed(sandbox.snapshot))
    return found


def _restores(sandbox: Sandbox, command: str) -> list[float]:
    found = []
    for _ in range(8):
        point = sandbox.snapshot()
        sandbox.run(command)
        found.append(timed(lambda: sandbox.restore(point)))  # noqa: B023 - called at once
    return found


def _cycles(directory: str) -> list[float]:
    def cycle() -> None:
        for _ in range(8):
            with Sandbox(directory) as made:
                made.run("true")

    return [timed(cycle) / 8] * 3


def _work(source: str, directory: str) -> None:
    """Be the program of the staddle in `source`: measure what each line of the input names."""
    if not Path(staddle.__file__).is_relative_to(source):
        sys.exit(f"{staddle.__file__} was imported, not what is in {source}")
    with Sandbox(directory) as sandbox:
        blocks: dict[str, Callable[[], list[float]]] = {
            "a builtin": lambda: _runs(sandbox, 120)[20:],
            "a builtin after 5 ms": lambda: _runs(sandbox, 12, 0.005),
            "snapshot": lambda: _snapshots(sandbox, _PLAIN),
            "snapshot, asking the shell": lambda: _snapshots(sandbox, _OTHER),
            "restore": lambda: _restores(sandbox, _PLAIN),
            "restore, asking the shell": lambda: _restores(sandbox, _OTHER),
            "to the first result": lambda: [first_result(0.02, workspace=directory) for _ in range(6)],
            "create, run, close": lambda: _cycles(directory),
        }
        _runs(sandbox, 30)
        print(*blocks, sep="\t", flush=True)
        for line in sys.stdin:
            time.sleep(0.03)  # what the last block left to be done is done
            found = blocks[line.strip()]()[2:]
            print(statistics.median(found), min(found), flush=True)


class _Program:
    """The program of the staddle in `source`."""

    def __init__(self, source: Path, directory: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", str(source), directory],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names = self._answer().strip("\n").split("\t")
        self.medians: dict[str, list[float]] = {name: [] for name in self.names}
        self.least: dict[str, float] = dict.fromkeys(self.names, float("inf"))

    def measure(self, name: str) -> None:
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        median, least = map(float, self._answer().split())
        self.medians[name].append(median)
        self.least[name] = min(self.least[name], least)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or sys.exit("one of the programs has ended")

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {sys.argv[0]} REVISION [ROUNDS]")
    revision, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 40
    with tempfile.TemporaryDirectory() as place:
        other = Path(revision).absolute()
        if not other.is_dir():
            other = Path(place)
            archive = ["git", "archive", revision, "src"]
            source = subprocess.run(archive, cwd=_HERE, check=True, capture_output=True)
            subprocess.run(["tar", "-x", "-C", place], input=source.stdout, check=True)
        workspace = Path(place, "workspace")
        workspace.mkdir()
        (workspace / "file").write_text("a file\n")
        before, now = (_Program(tree, str(workspace)) for tree in (other / "src", _HERE / "src"))
        for name in now.names:
            for number in range(rounds):
                for program in (before, now) if number % 2 else (now, before):
                    program.measure(name)
            _show(name, before, now)
        before.close()
        now.close()


def _show(name: str, before: _Program, now: _Program) -> None:
    ratios = [one / other for one, other in zip(now.medians[name], before.medians[name], strict=True)]
    figures = [
        f"{statistics.median(program.medians[name]) * 1000:7.3f} ms (least {program.least[name] * 1000:.3f})"
        for program in (before, now)
    ]
    print(f"{name:28} {figures[0]}  now {figures[1]}  ratio {statistics.median(ratios):.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        _work(*sys.argv[2:])
    else:
        main()
