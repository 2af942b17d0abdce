"""Compare the ratios of staddle to bubblewrap with the kept ones: `python -m benchmarks.field.check`.

Both are measured in the same run, so a busy machine is busy for both. A work has lost only if it has in each
of three runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.field.peers import install
from benchmarks.field.run import RESULTS, measure
from benchmarks.field.works import WORKS

PEER, LOSS, RUNS = "bubblewrap", 1.25, 3
#: Of each work the smallest size: it is in a quick run as well.
CHECKED = ("start", "files", "compile", "rate", "memory", "many", "network")
OURS = ("staddle", "staddle, library", "staddle, Sandbox()")


def ratios(made: dict[str, Any]) -> dict[tuple[str, str], float]:
    """How many times what bubblewrap takes, for each work and each of our ways; less is better."""
    found: dict[tuple[str, str], float] = {}
    for work, figures in made["figures"].items():
        if work not in CHECKED or PEER not in figures:
            continue
        for name in OURS:
            sizes = sorted(set(map(int, figures.get(name, {}))) & set(map(int, figures[PEER])))
            if sizes:
                size = str(sizes[0])
                ratio = figures[name][size]["median"] / figures[PEER][size]["median"]
                found[work, name] = 1 / ratio if WORKS[work].higher_is_better else ratio
    return found


def losses(kept: dict[tuple[str, str], float], runs: list[dict[tuple[str, str], float]]) -> list[str]:
    """What is slower than kept by more than the loss in every run, as sentences. What is missing is lost."""
    lost = []
    for key, before in sorted(kept.items()):
        now = [run.get(key) for run in runs]
        if runs and all(ratio is None or ratio > before * LOSS for ratio in now):
            shown = ", ".join("not measured" if ratio is None else f"{ratio:.2f}" for ratio in now)
            lost.append(f"{key[0]}, {key[1]}: {before:.2f} times {PEER} was kept, now it is {shown}")
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the ratios of staddle to bubblewrap with the kept ones."
    )
    parser.add_argument(
        "--kept", type=Path, default=RESULTS, metavar="FILE", help="the kept figures (default: %(default)s)"
    )
    given = parser.parse_args()
    if not given.kept.exists():
        print(f"there are no kept figures in {given.kept}: make bench writes them", file=sys.stderr)
        return 2
    kept = ratios(json.loads(given.kept.read_text()))
    if not kept:
        print(
            f"{given.kept} has no figures of {PEER} to compare with: make bench writes them", file=sys.stderr
        )
        return 2
    place, runs = install(), []
    for number in range(RUNS):
        runs.append(ratios(measure(place, [PEER, *OURS], list(CHECKED), factor=0.4, most=10)))
        if not (lost := losses(kept, runs)):
            print(f"run {number + 1}: none of {len(kept)} ratios to {PEER} lost more than {LOSS - 1:.0%}")
            return 0
        print(f"run {number + 1} of {RUNS}:", *lost, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
