"""Measure the field: every peer at the same work, in one run, by turns.

    python -m benchmarks.field.run [--quick] [--only NAMES] [--out FILE] [--no-page]

NAMES are peers and works, separated by commas. Written are benchmarks/results/field.json, the pictures
docs/images/bench-*.svg and the part of docs/benchmarks.md between its markers; with --only or --quick
nothing but the file of --out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.field import page
from benchmarks.field.peers import PEERS, ROOT, CannotRun, Place, chosen, install, versions
from benchmarks.field.works import WORKS, Field, Work

RESULTS = ROOT / "benchmarks/results/field.json"
#: Of one cell: enough for quartiles, and no more than is waited for.
LEAST, MOST = 3, 25


class Progress:
    """A bar with the time left, on a terminal; a line for each work elsewhere."""

    def __init__(self, works: list[Work], factor: float) -> None:
        self._left = {work.name: work.seconds * factor for work in works}
        self._whole = sum(self._left.values()) or 1.0
        self._factor = factor
        self._terminal = sys.stderr.isatty()
        self._told: set[str] = set()

    def at(self, work: Work, part: float) -> None:
        """`part` of this work is done, 0 to 1."""
        self._left[work.name] = work.seconds * self._factor * (1 - min(part, 1.0))
        left = sum(self._left.values())
        done = 1 - left / self._whole
        if self._terminal:
            bar = "#" * int(done * 30)
            print(
                f"\r[{bar:30}] {done:4.0%}  {left:4.0f} s left  {work.title[:36]:36}", end="", file=sys.stderr
            )
        elif work.name not in self._told:
            self._told.add(work.name)
            print(f"{done:4.0%}  about {left:.0f} s left  {work.title}", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


def measure(
    place: Place,
    peers: list[str],
    works: list[str],
    *,
    quick: bool = False,
    factor: float = 1.0,
    most: int = 0,
    show: bool = True,
) -> dict[str, Any]:
    """The figures of one run, in `factor` of the usual time; sizes above `most` are left out."""
    asked = chosen(peers)
    there, missing = versions(place, asked)
    todo = [work for name, work in WORKS.items() if not works or name in works]
    # A run of few peers takes the time of few.
    factor *= (0.15 if quick else 1.0) * max(0.2, len(there) / len(PEERS))
    progress = Progress(todo, factor)
    figures: dict[str, Any] = {}
    refused: dict[str, dict[str, str]] = {}
    for work in todo:
        with Field(place, {name: asked[name] for name in there}, quick=quick) as field:
            tell: Callable[[float], None] = lambda part, work=work: progress.at(work, part) if show else None  # type: ignore[misc]  # noqa: E731
            if work.seconds:
                figures[work.name], refused[work.name] = turns(field, work, work.seconds * factor, tell, most)
            for (other, peer, x), values in field.beside.items():
                told = figures.setdefault(other, {}).setdefault(peer, {})
                told[str(x)] = spread([value * 1000 for value in values])
                refused[other] = refused[work.name]
    if show:
        progress.end()
    return {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "make bench" if not (peers or works or quick) else "a part of the run, for trying",
        "versions": there,
        "missing": missing,
        "figures": figures,
        "refused": refused,
    }


def turns(
    field: Field, work: Work, budget: float, tell: Callable[[float], None], most: int = 0
) -> tuple[dict[str, Any], dict[str, str]]:
    """All cells of a work by turns, until its time is over; the first round of each warms it up."""
    tell(0)
    cells = [cell for cell in work.cells(field) if not most or cell[1] <= most]
    found: dict[tuple[str, int], list[float]] = {}
    refused: dict[str, str] = {}
    began = time.monotonic()
    first = 0 if work.warm_up else 1
    least = LEAST if work.warm_up else 1
    for number in range(first, MOST + 1):
        spent = time.monotonic() - began
        # Another round would go over the time; the least for quartiles is made up to twice of it.
        rounds = number - first
        takes = spent / rounds if rounds else 0.0
        if (number > least and spent + takes > budget) or (rounds > 1 and spent + takes > budget * 2):
            break
        for index, (peer, x, cell) in enumerate(cells):
            if peer in refused and (peer, x) not in found:
                continue
            try:
                value = cell()
            except (CannotRun, OSError, subprocess.SubprocessError, ValueError) as error:
                refused.setdefault(
                    peer, (f"{work.x} {x:,}: " if x else "") + (str(error) or type(error).__name__)[:200]
                )
                found.pop((peer, x), None)
                continue
            if number:  # the first round warms up
                found.setdefault((peer, x), []).append(value)
            else:
                found[peer, x] = []
            tell(
                min(0.99, (time.monotonic() - began) / budget) if number else index / len(cells) / (LEAST + 1)
            )
    tell(1)
    scale = 1000 if work.unit == "ms" else 1
    figures: dict[str, Any] = {}
    for (peer, x), values in found.items():
        if values:
            figures.setdefault(peer, {})[str(x)] = spread([value * scale for value in values])
    return figures, refused


def spread(values: list[float]) -> dict[str, float]:
    """The median and the quartiles."""
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {"median": _short(middle), "low": _short(low), "high": _short(high), "rounds": len(values)}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, as {who}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure staddle and its peers at the same work.")
    parser.add_argument("--quick", action="store_true", help="small works, few rounds: to see that all run")
    parser.add_argument("--only", default="", metavar="NAMES", help="peers and works, separated by commas")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--no-page", action="store_true", help="write no page and no pictures")
    parser.add_argument("--list", action="store_true", help="name the peers and the works")
    given = parser.parse_args()
    if given.list:
        print("peers:", ", ".join(PEERS), "\nworks:", ", ".join(WORKS))
        return 0
    names = page.names(given.only)
    works, peers = [n for n in names if n in WORKS], [n for n in names if n not in WORKS]
    chosen(peers)
    part = bool(names or given.quick)
    place = install()
    began = time.monotonic()
    made = measure(place, peers, works, quick=given.quick)
    made["seconds"] = round(time.monotonic() - began)
    out = given.out or (None if part else RESULTS)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    print(page.tables(made))
    if not part and not given.no_page:
        plots = [place.python, "-m", "benchmarks.field.plots", str(RESULTS), str(ROOT / "docs/images")]
        subprocess.run(plots, cwd=ROOT, check=True)
        page.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
