"""What the figures say: tables, exponents, and the sentences about who is ahead."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from benchmarks.field.peers import PEERS, ROOT
from benchmarks.field.works import WORKS, Work

PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- field: begin, written by `make bench` -->", "<!-- field: end -->"
#: What is not in the table of peers, but is measured as what people use without a snapshot.
WITHOUT = {"cp -a": "a copy of the directory", "git": "`git add -A` and `git write-tree`"}
Figures = dict[str, dict[str, dict[str, float]]]


def names(text: str) -> list[str]:
    """The names of a list with commas; a name that itself has a comma is recognised."""
    left, found = text, []
    for known in sorted([*PEERS, *WORKS], key=len, reverse=True):
        pattern = re.compile(rf"(?:^|,)\s*{re.escape(known)}\s*(?=,|$)")
        if pattern.search(left):
            found.append(known)
            left = pattern.sub(",", left)
    return found + [word.strip() for word in left.split(",") if word.strip()]


def exponent(points: dict[int, float]) -> float | None:
    """b of y = a·x^b through the points, by least squares of the logarithms; None for fewer than three."""
    known = [(math.log(x), math.log(y)) for x, y in points.items() if x > 0 and y > 0]
    if len(known) < 3:
        return None
    mean_x, mean_y = (sum(values) / len(known) for values in zip(*known, strict=True))
    below = sum((x - mean_x) ** 2 for x, _ in known)
    return sum((x - mean_x) * (y - mean_y) for x, y in known) / below if below else None


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(figure: dict[str, float] | None) -> str:
    if figure is None:
        return "\N{EN DASH}"
    return f"{_shown(figure['median'])} ({_shown(figure['low'])}\N{EN DASH}{_shown(figure['high'])})"


def table(work: Work, figures: Figures) -> str:
    """The medians of a work with their quartiles, the best first."""
    xs = sorted({int(x) for found in figures.values() for x in found})
    fitted = len(xs) >= 3

    def rank(item: tuple[str, dict[str, dict[str, float]]]) -> tuple[int, float]:
        top = max(map(int, item[1]))
        median = item[1][str(top)]["median"]
        return -top, -median if work.higher_is_better else median

    heads = [f"{x:,} {work.x}" for x in xs] if work.x else [work.unit]
    heads += ["grows with"] if fitted else []
    lines = ["| | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for name, found in sorted(figures.items(), key=rank):
        cells = [_cell(found.get(str(x))) for x in xs]
        if fitted:
            power = exponent({int(x): figure["median"] for x, figure in found.items()})
            cells.append("\N{EN DASH}" if power is None else f"x^{power:.2f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ahead(work: Work, figures: Figures) -> str:
    """Who is better than each way of staddle, and by how much, at the largest x that both have."""
    lines = []
    for own in sorted(name for name in figures if name.startswith("staddle")):
        better = []
        for name, found in figures.items():
            common = sorted(set(map(int, found)) & set(map(int, figures[own])))
            if name.startswith("staddle") or name == "nothing" or not common:
                continue
            ratio = figures[own][str(common[-1])]["median"] / found[str(common[-1])]["median"]
            ratio = 1 / ratio if work.higher_is_better else ratio
            if ratio > 1:
                better.append((-ratio, f"{name} ({ratio:.1f} times)"))
        who = ", ".join(text for _, text in sorted(better)) or "no peer in this run"
        lines.append(f"* ahead of **{own}**: {who}")
    return "\n".join(lines)


def tables(made: dict[str, Any]) -> str:
    """All of the results as Markdown."""
    parts = [f"Measured on {made['date']} by `{made['command']}`: {made['machine']}."]
    parts.append("Each figure is the median with its quartiles, of rounds in which all take turns.")
    rows = [
        f"| {name} | {made['versions'].get(name) or _absent(made['missing'][name])} | {peer.purpose} |"
        for name, peer in PEERS.items()
        if (name in made["versions"] or name in made["missing"]) and "scorecard" not in peer.only
    ]
    parts.append(
        "\n".join(
            [
                "| peer | version | purpose, by its makers or as it is used here |",
                "| --- | --- | --- |",
                *rows,
            ]
        )
    )
    for name, work in WORKS.items():
        figures = made["figures"].get(name)
        if figures is None:
            continue
        unit = {"ms": "milliseconds", "MiB": "MiB", "1/s": "commands a second"}[work.unit]
        parts.append(f"## {work.title}")
        parts.append(f"In {unit}; " + ("more is better." if work.higher_is_better else "less is better."))
        parts.append(picture(name, work.title))
        if figures:
            parts += [table(work, figures), ahead(work, figures)]
        if refused := made["refused"].get(name):
            parts.append(
                "\n".join(f"* {peer} stopped at: {_plain(why)}" for peer, why in sorted(refused.items()))
            )
    return "\n\n".join(part for part in parts if part)


def _absent(why: str) -> str:
    return "cannot run here: " + _plain(why)


def picture(name: str, title: str) -> str:
    """The plot, for light and for dark pages."""
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="images/bench-{name}-dark.svg">'
        f'<img alt="{title}" src="images/bench-{name}.svg"></picture>'
    )


def _plain(text: str) -> str:
    """An error of others as text in a table: no markup, one line."""
    return "`" + re.sub(r"[`|\x00-\x1f\x7f-\x9f]", " ", text).strip()[:200] + "`"


def write(made: dict[str, Any], file: Path = PAGE) -> None:
    """Replace what is between the markers."""
    text = file.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    file.write_text(f"{before}{BEGIN}\n{tables(made)}\n{END}{after}")
