"""The pictures of the figures: `python -m benchmarks.field.plots FIELD.json DIRECTORY`, with matplotlib.

One for light and one for dark pages of each work: bars where there is one size, lines where there are more.
Nothing of the machine and no date is in a file, so equal figures make equal pictures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.field.works import WORKS, Work

#: Ours in one hue; the others by form and shade, so that a reader without colours can tell them apart.
OURS = ("#0b6e4f", "#2fa37c", "#86c9b0")
OTHERS = {"light": ("#4a5568", "#7b8494", "#a3aab5"), "dark": ("#c3cad6", "#98a1b0", "#717a89")}
PAGES = {"light": ("#ffffff", "#1a202c", "#d9dee5"), "dark": ("#1e2129", "#e6e9ee", "#3a404c")}
MARKS = "osD^vPX*<>hp"


def style(mode: str) -> dict[str, Any]:
    back, text, grid = PAGES[mode]
    return {
        "figure.facecolor": back,
        "axes.facecolor": back,
        "savefig.facecolor": back,
        "text.color": text,
        "axes.labelcolor": text,
        "axes.edgecolor": grid,
        "xtick.color": text,
        "ytick.color": text,
        "grid.color": grid,
        "font.size": 10,
        "svg.fonttype": "none",
        "svg.hashsalt": "staddle",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def bars(axes: Any, work: Work, figures: dict[str, Any], mode: str) -> None:
    rows = sorted(((name, found["0"]) for name, found in figures.items()), key=lambda row: row[1]["median"])
    rows.reverse()
    names = [name for name, _ in rows]
    medians = [figure["median"] for _, figure in rows]
    spread = [
        [figure["median"] - figure["low"] for _, figure in rows],
        [figure["high"] - figure["median"] for _, figure in rows],
    ]
    colours = [OURS[1] if name.startswith("staddle") else OTHERS[mode][1] for name in names]
    axes.barh(
        names, medians, xerr=spread, color=colours, height=0.66, error_kw={"ecolor": PAGES[mode][1], "lw": 1}
    )
    if max(medians) > 20 * min(medians):
        axes.set_xscale("log")
        axes.set_xlim(min(medians) / 2, max(medians) * 3)
    else:
        axes.set_xlim(0, max(figure["high"] for _, figure in rows) * 1.15)
    for at, (_, figure) in enumerate(rows):
        shown = f"{figure['median']:,.0f}" if figure["median"] >= 100 else f"{figure['median']:.3g}"
        axes.annotate(
            shown, (figure["high"], at), (5, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_xlabel(work.unit)
    axes.grid(axis="x", lw=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def lines(axes: Any, work: Work, figures: dict[str, Any], mode: str) -> None:
    ours = [name for name in figures if name.startswith("staddle")]
    for number, (name, found) in enumerate(sorted(figures.items())):
        xs = sorted(map(int, found))
        own = name in ours
        colour = OURS[ours.index(name) % 3] if own else OTHERS[mode][number % 3]
        medians = [found[str(x)]["median"] for x in xs]
        axes.plot(
            xs,
            medians,
            MARKS[number % len(MARKS)] + "-",
            color=colour,
            lw=2.2 if own else 1.2,
            ms=5,
            label=name,
        )
        low, high = ([found[str(x)][edge] for x in xs] for edge in ("low", "high"))
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, lw=0)
    axes.set_xscale("log", base=2 if work.x == "threads" else 10)
    axes.set_yscale("log")
    axes.set_xlabel(work.x)
    axes.set_ylabel(work.unit)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(lw=0.6)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)


def draw(work: Work, figures: dict[str, Any], mode: str, file: Path) -> None:
    with mpl.rc_context(style(mode)):
        height = 1.0 + 0.3 * len(figures) if not work.x else 3.6
        drawn, axes = plt.subplots(figsize=(7.6, height))
        (lines if work.x else bars)(axes, work, figures, mode)
        axes.set_title(
            work.title + (" (more is better)" if work.higher_is_better else ""), loc="left", fontsize=11
        )
        drawn.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(drawn)


def main() -> int:
    made = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    for name, work in WORKS.items():
        if figures := made["figures"].get(name):
            for mode in PAGES:
                end = "" if mode == "light" else "-dark"
                draw(work, figures, mode, directory / f"bench-{name}{end}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
